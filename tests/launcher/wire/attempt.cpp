#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"

using namespace dtrain;
using nlohmann::json;

namespace {

// What is said on the wire may only grow: each file here is one message of version 1, which every
// later version must read and write. DTRAIN_ACCEPT=1 writes them anew.
const fs::path kAttemptGolden = fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/wire/attempt/v1";

const WallTime kTime = from_millis(1767323045678);

wire::AttemptSpec full_spec() {
  wire::AttemptSpec spec;
  spec.cluster = ClusterId("local-k3x7qa");
  spec.job = JobId("mnist-abcdef");
  spec.job_name = "mnist";
  spec.attempt = 2;
  spec.node = NodeId("node-1");
  spec.token = "00ff";
  spec.node_rank = 1;
  spec.nnodes = 2;
  spec.first_rank = 2;
  spec.nproc = 2;
  spec.world_size = 4;
  spec.node_ips = {"10.0.0.1", "10.0.0.2"};
  spec.master_addr = "10.0.0.1";
  spec.master_port = 29500;
  spec.command = {"./train", "--epochs", "3"};
  spec.shell = false;
  spec.workdir = "/home/ada/mnist";
  spec.env = {{"LR", "0.1"}, {"EMPTY", ""}};
  spec.setup = "make\n";
  spec.storage_path = "/storage/mnist";
  spec.checkpoint = "/storage/mnist/checkpoints/checkpoint_000003";
  spec.gpus = {0, 3};
  spec.gpus_assigned = true;
  spec.max_restarts = 3;
  spec.stop_grace = std::chrono::seconds(20);
  spec.on_head_lost = OnHeadLost::stop;
  spec.lease = std::chrono::milliseconds(45000);
  return spec;
}

// Of a machine that other nodes of the attempt are on, too.
wire::AttemptSpec machine_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.machine_ranks = 4;
  return spec;
}

// Of a job whose files were sent.
wire::AttemptSpec sent_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.content = JobContent{std::string(64, 'a'), std::string(64, 'b'), "bin/train", "2.34",
                            "libc10.so",          std::string(64, 'c'), 1 << 20};
  spec.library_path = "/roots/content/bundles/b/lib";
  return spec;
}

// Of a job whose ranks' memory is limited.
wire::AttemptSpec memory_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.rank_memory = std::uint64_t{2} << 30;
  return spec;
}

// Of a job whose ranks are tasks of srun.
wire::AttemptSpec srun_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.srun = wire::SrunStep{"4711", {{"n1", 2}, {"n2", 2}}, "00ff"};
  return spec;
}

wire::AttemptSpec beats_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.beats = true;
  return spec;
}

wire::AttemptSpec limited_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.log_limit = std::uint64_t{1} << 30;
  return spec;
}

wire::AttemptSpec bound_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.rank_cpus = 4;
  return spec;
}

wire::AttemptSpec threads_spec() {
  wire::AttemptSpec spec = full_spec();
  spec.rank_threads = 2;
  return spec;
}

wire::RankBeats full_beats() {
  wire::RankBeats all;
  all.beats.push_back(
      {0, 12, "data", wire::RankBeat::Collective{7, "all_reduce", 4096, 1767323045.5, false}});
  all.beats.push_back(
      {1, std::nullopt, "",
       wire::RankBeat::Collective{6, "", std::nullopt, std::nullopt, std::nullopt}});
  all.beats.push_back({2, 0, "", std::nullopt});
  return all;
}

wire::RankBeats timed_beats() {
  wire::RankBeats all;
  all.beats.push_back({0, 40, "compute", std::nullopt,
                       wire::RankBeat::StepTimes{40, 8.5, 0.5, 6.25, 0.25, 1.5, 0.2, 0.25, 0.75}});
  all.beats.push_back({1, 40, "", std::nullopt, wire::RankBeat::StepTimes{40, 8.5}});
  return all;
}

wire::RankExited full_exit() {
  wire::RankExited exited;
  exited.rank = 1;
  exited.exit = {0, 9};
  exited.time = kTime;
  exited.stopped = true;
  exited.error_message = "RuntimeError: nan";
  exited.error_time = 1767323045.5;
  exited.last_lines = {"one", "två"};
  exited.address_in_use = true;
  return exited;
}

using Read = std::function<json(const json&)>;  // from JSON and back
json read_spec(const json& text) {
  return wire::to_json(wire::attempt_spec_from_json(text));
}
json read_event(const json& text) {
  return wire::to_json(wire::attempt_event_from_json(text));
}
json read_command(const json& text) {
  return wire::to_json(wire::attempt_command_from_json(text));
}

wire::RankExited killed_for_memory() {
  wire::RankExited exited = full_exit();
  exited.cause = "killed for memory: it used 2.0 GiB of 2.0 GiB";
  return exited;
}

wire::RankExited dated_exit() {
  wire::RankExited exited = full_exit();
  exited.boot_time = std::chrono::nanoseconds(86400000000001);
  return exited;
}

struct Golden {
  json value;
  Read read;
};

std::map<std::string, Golden> all_messages() {
  using Outcome = wire::NodeFinished::Outcome;
  const auto event = [](std::uint64_t seq, wire::AttemptEventBody body) {
    return Golden{wire::to_json(wire::AttemptEvent{seq, std::move(body)}), read_event};
  };
  const auto command = [](wire::AttemptCommand body) {
    return Golden{wire::to_json(body), read_command};
  };
  const json report = {{"type", "metrics"}, {"step", 10}, {"metrics", {{"loss", 0.5}}}};
  return {
      {"spec", {wire::to_json(full_spec()), read_spec}},
      {"spec_machine", {wire::to_json(machine_spec()), read_spec}},
      {"spec_sent", {wire::to_json(sent_spec()), read_spec}},
      {"spec_memory", {wire::to_json(memory_spec()), read_spec}},
      {"spec_srun", {wire::to_json(srun_spec()), read_spec}},
      {"spec_beats", {wire::to_json(beats_spec()), read_spec}},
      {"spec_limited", {wire::to_json(limited_spec()), read_spec}},
      {"spec_bound", {wire::to_json(bound_spec()), read_spec}},
      {"spec_threads", {wire::to_json(threads_spec()), read_spec}},
      {"event_master_ready", event(1, wire::MasterReady{29500})},
      {"event_setup_started", event(2, wire::SetupStarted{})},
      {"event_ranks_started", event(3, wire::RanksStarted{{{0, 4001}, {1, 4002}}, kTime})},
      {"event_report", event(4, wire::RankReport{1, report})},
      {"event_warning", event(5, wire::AttemptWarning{std::nullopt, "no space"})},
      {"event_warning_rank", event(6, wire::AttemptWarning{1, "a report was dropped"})},
      {"event_rank_exited", event(7, full_exit())},
      {"event_rank_exited_cause", event(7, killed_for_memory())},
      {"event_rank_exited_boot_time", event(7, dated_exit())},
      {"event_finished",
       event(8, wire::NodeFinished{Outcome::failed, "rank 1 on node-1: exit code 3", {77}, 4096})},
      {"event_finished_succeeded", event(9, wire::NodeFinished{})},
      {"event_finished_lasting",
       event(9, wire::NodeFinished{Outcome::failed, "on node-1: no program x", {}, 0, true})},
      {"event_finished_stopped", event(10, wire::NodeFinished{Outcome::stopped, "by ada", {}, 0})},
      {"event_beats", event(11, full_beats())},
      {"event_beats_times", event(12, timed_beats())},
      {"command_ack", command(wire::EventAck{7, std::nullopt})},
      {"command_ack_answer", command(wire::EventAck{8, json{{"ok", true}, {"path", "/c"}}})},
      {"command_stop", command(wire::StopRanks{std::nullopt, "by ada"})},
      {"command_stop_grace", command(wire::StopRanks{std::chrono::seconds(5), "by ada"})},
      {"command_lease", command(wire::RenewLease{})},
      {"command_beats_heard", command(wire::EventHeard{11, std::nullopt})},
      {"command_beats_heard_answer", command(wire::EventHeard{12, json{{"ok", true}}})},
  };
}

template <typename Read>
std::string refusal(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    return error.message();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("times and leases that no clock holds are refused") {
  json started = wire::to_json(wire::AttemptEvent{3, wire::RanksStarted{{{0, 4001}}, kTime}});
  started["time"] = 9767323045678;
  CHECK(refusal([&] { wire::attempt_event_from_json(started); }).find("\"time\"") !=
        std::string::npos);
  json spec = wire::to_json(full_spec());
  spec["lease_ms"] = std::int64_t{1} << 52;
  CHECK(refusal([&] { wire::attempt_spec_from_json(spec); }).find("\"lease_ms\"") !=
        std::string::npos);
}

TEST_CASE("golden files are read and written byte for byte") {
  const bool accept = std::getenv("DTRAIN_ACCEPT") != nullptr;
  std::set<std::string> known;
  for (const auto& entry : all_messages()) {
    const auto& name = entry.first;
    const auto& golden = entry.second;
    CAPTURE(name);
    const fs::path path = kAttemptGolden / (name + ".json");
    known.insert(path.filename().string());
    const std::string text = golden.value.dump(2) + "\n";
    if (accept) std::ofstream(path) << text;
    const std::string kept = read_file(path);
    CHECK(kept == text);
    CHECK(golden.read(json::parse(kept)).dump(2) + "\n" == kept);
  }
  for (const auto& entry : fs::directory_iterator(kAttemptGolden)) {
    CHECK_MESSAGE(known.count(entry.path().filename().string()) == 1, entry.path().string());
  }
}

TEST_CASE("unknown fields are ignored: a newer head may speak") {
  for (const auto& entry : all_messages()) {
    const auto& name = entry.first;
    const auto& golden = entry.second;
    CAPTURE(name);
    json more = golden.value;
    more["of_the_future"] = {1, 2};
    CHECK(golden.read(more) == golden.value);
  }
}

TEST_CASE("a missing or wrong field is refused by name, whatever it is") {
  const json wrong_values[] = {nullptr,
                               -1,
                               1.5,
                               "x",
                               json::array({nullptr}),
                               json::object({{"a", 1}}),
                               true,
                               1e300,
                               18446744073709551615ULL};
  for (const auto& entry : all_messages()) {
    const auto& name = entry.first;
    const auto& golden = entry.second;
    for (const auto& field : golden.value.items()) {
      const auto& key = field.key();
      CAPTURE(name);
      CAPTURE(key);
      for (const json& wrong : wrong_values) {
        json changed = golden.value;
        changed[key] = wrong;
        // Either it is refused by that name, or it is a value that this field may have.
        try {
          golden.read(changed);
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::invalid);
          const bool named = error.message().find("\"") != std::string::npos;
          CHECK(named);
        }
      }
    }
  }
  json spec = wire::to_json(full_spec());
  spec.erase("token");
  CHECK(refusal([&] { read_spec(spec); }) == "\"token\" is missing");
  spec = wire::to_json(full_spec());
  spec["job"] = "../../etc";
  CHECK(refusal([&] { read_spec(spec); }) == "\"job\" is not a name");
  spec = wire::to_json(full_spec());
  spec["version"] = wire::kSuperviseVersion + 1;
  CHECK(refusal([&] { read_spec(spec); }).find("newer") != std::string::npos);
  spec = wire::to_json(full_spec());
  spec["gpus"] = {0, -1};
  CHECK(refusal([&] { read_spec(spec); }).find("\"gpus\"") == 0);
  CHECK(refusal([] {
          read_event({{"type", "dance"}, {"seq", 1}});
        }) == "\"type\" is no event: dance");
  CHECK(refusal([] { read_event({{"type", "setup_started"}}); }) == "\"seq\" is missing");
  CHECK(refusal([] { read_command({{"type", "ack"}, {"seq", 0}}); }).find("\"seq\"") == 0);
  CHECK(refusal([] {
          read_command({{"type", "ack"}, {"seq", 1}, {"answer", 3}});
        }).find("\"answer\"") == 0);
  CHECK(refusal([] { read_command(json::array()); }) != "not refused");
}
