#include "agent/head/server/doctor.hpp"

#include <doctest/doctest.h>

using namespace dtrain;
using namespace dtrain::head;
using link::Findings;
using namespace std::chrono_literals;

namespace {

const JobId kMnist("mnist-abcdef");
const std::pair<JobId, int> kFirst{kMnist, 1};

WallTime at(std::chrono::milliseconds time) {
  return from_millis(1767323045500) + time;
}

nlohmann::json node_row(const std::string& state, const std::string& reason) {
  return {{"node", "node-1"},
          {"state", state},
          {"reason", reason},
          {"version", DTRAIN_VERSION},
          {"joined", false}};
}

}  // namespace

TEST_CASE("doctor: head and node agree on attempts, or did not both when it was asked and after") {
  const auto judge = [](Engine::NodeJobs asked, bool runs, bool is_open, wire::DoctorReport said) {
    Findings findings;
    const Still still{[&](const auto&) { return runs; }, [&](const auto&) { return is_open; }};
    judge_attempts(asked, still, said, findings);
    return findings.found;
  };
  wire::DoctorReport has;
  has.attempts = has.running = {kFirst};
  const Engine::NodeJobs runs{{kFirst}, {kMnist}};
  CHECK(judge(runs, true, true, has).empty());
  CHECK(judge(runs, false, false, has).empty());  // it ended meanwhile
  CHECK(judge({}, true, true, has).empty());      // it began meanwhile
  const auto missing = judge(runs, true, true, {});
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].what ==
        "attempt 1 of mnist-abcdef is to run here, and the node knows nothing of it");
  CHECK(judge(runs, false, true, {}).empty());
  const auto left = judge({}, false, false, has);
  REQUIRE(left.size() == 1);
  CHECK(left[0].what == "attempt 1 of mnist-abcdef runs here, and the job is over");
  wire::DoctorReport told;  // its end waits to be acknowledged: nothing of it runs
  told.attempts = {kFirst};
  CHECK(judge({}, false, false, told).empty());
}

TEST_CASE("doctor: a clock's offset is what the messages' way does not explain") {
  // 100 ms there, 5 s of work, 300 ms back; two minutes ahead.
  const ClockOffset ahead = clock_offset(at(0ms), at(100ms + 2min), at(5100ms + 2min), at(5400ms));
  CHECK(ahead.by == 2min - 100ms);
  CHECK(ahead.uncertain == 201ms);
  const ClockOffset none = clock_offset(at(0ms), at(0ms), at(0ms), at(0ms));
  CHECK(none.by == 0ms);
  CHECK(none.uncertain == 1ms);
  // Its clock was set while it looked.
  CHECK(clock_offset(at(0ms), at(0ms), at(1h), at(1s)).uncertain == 1ms);

  const auto judge = [](const ClockOffset& offset) {
    Findings findings;
    judge_clock(offset, findings);
    return findings.found.empty() ? "well: " + findings.looked.at(0)
                                  : findings.found.at(0).severity + ": " + findings.found[0].what;
  };
  CHECK(judge({-3ms, 1ms}) == "well: clock: -3 ms (± 1 ms) against the head's");
  CHECK(judge({5s, 5s}).starts_with("well"));  // a slow way explains it
  CHECK(judge({-2s, 100ms}).starts_with("note: its clock is 2.0 s (± 100 ms) behind the head's"));
  CHECK(judge({90min, 1s}).starts_with("problem: its clock is 1 h 30 m (± 1.0 s) ahead of"));
}

TEST_CASE("doctor: nodes that are not as they should be, and why") {
  const auto judge = [](const nlohmann::json& row) {
    Findings findings;
    judge_node(row, findings);
    return findings.found;
  };
  CHECK(judge(node_row("ready", "")).empty());
  CHECK(judge(node_row("joining", "")).empty());
  CHECK(judge(node_row("lost", "silent for 30 s")).at(0).severity == "problem");
  CHECK(judge(node_row("lost", "silent for 30 s")).at(0).what == "it is lost: silent for 30 s");
  CHECK(judge(node_row("drained", "")).at(0).hint == "dtrain drain node-1 --undo");
  CHECK(judge(node_row("ready", "an old attempt is being stopped")).at(0).severity == "note");
  nlohmann::json old = node_row("ready", "");
  old["version"] = "0.0.1";
  CHECK(judge(old).at(0).what == "its agent is of dtrain 0.0.1, the head of " DTRAIN_VERSION);
}

TEST_CASE("doctor: nodes that never came, and a database that cannot be written") {
  nlohmann::json status{
      {"cluster", {{"expected_nodes", 2}, {"trouble", ""}, {"warnings", nlohmann::json::array()}}},
      {"nodes", {node_row("ready", ""), node_row("lost", "")}}};
  const auto judge = [&] {
    Findings findings;
    judge_cluster(status, findings);
    return findings.found;
  };
  CHECK(judge().empty());
  status["nodes"][1]["state"] = "gone";
  status["cluster"]["trouble"] = "disk is full";
  status["cluster"]["warnings"] = {"few descriptors"};
  const auto found = judge();
  REQUIRE(found.size() == 3);
  CHECK(found[0].what == "the head cannot write its database: disk is full");
  CHECK(found[1].what == "1 of 2 nodes have come that the cluster is to have");
  CHECK(found[2].severity == "note");
}
