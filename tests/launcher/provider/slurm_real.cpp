#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/slurm/machines.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable_is.hpp"

// Against a real Slurm of four nodes, which tests/support/slurm.py runs beside this program.
using namespace dtrain;
using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

namespace {

void wait_until(const char* what, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (!holds()) {
    REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, "not so: ", what);
    std::this_thread::sleep_for(10ms);
  }
}

// Keeps the user's own jobs of each cluster apart by its name.
struct Site {
  explicit Site(const std::string& name) : name(name) {
    REQUIRE_MESSAGE(std::getenv("SLURM_CONF") != nullptr, "tests/support/slurm.py runs this");
  }
  ~Site() { give_back_all(); }

  slurm::Machines machines() {
    return slurm::Machines(slurm::Client(std::make_shared<LocalTransport>()), name,
                           folder.path() / "with space %j" / "boot",
                           [this](const std::string&) { return options; });
  }

  // What each of them does: says who it is, and waits for a file of the test's.
  Request request(int first, int last) {
    Request wanted;
    wanted.type = "gpu";
    wanted.cluster = ClusterId(name + "-id");
    wanted.launch = "abcd";
    for (int i = first; i <= last; ++i) wanted.nodes.emplace_back("node-" + std::to_string(i));
    wanted.boot = [this](const NodeId& node) {
      return "echo \"$SLURMD_NODENAME\" > '" + (folder.path() / node.str()).string() +
             "'; while ! [ -e '" + (folder.path() / "end").string() + "' ]; do sleep 0.05; done; " +
             "touch '" + (folder.path() / node.str()).string() + ".over'; echo " + node.str() +
             " says why >&2; exit 3\n";
    };
    return wanted;
  }

  std::vector<MachineOutcome> ask(const Request& wanted) {
    std::vector<MachineOutcome> outcomes;
    machines().create({wanted}, [&](const MachineOutcome& each) { outcomes.push_back(each); });
    return outcomes;
  }
  static std::vector<Machine> of(const std::vector<MachineOutcome>& outcomes) {
    std::vector<Machine> all;
    for (const MachineOutcome& each : outcomes) all.push_back(each.machine);
    return all;
  }

  // Until none moves any more: how each ended up.
  std::map<NodeId, Machine> follow(const std::vector<Machine>& these) {
    std::map<NodeId, Machine> last;
    for (const Machine& each : these) last[each.node] = each;
    machines().follow(
        these, [&](const MachineOutcome& each) { last[each.machine.node] = each.machine; }, {});
    return last;
  }

  std::vector<MachineOutcome> give_back(const std::vector<Machine>& these) {
    std::vector<MachineOutcome> outcomes;
    machines().release(these, [&](const MachineOutcome& each) { outcomes.push_back(each); });
    return outcomes;
  }
  void give_back_all() { follow(of(give_back(machines().list()))); }

  // "node-1 running", of those that are not over.
  Strings listed() {
    Strings rows;
    for (const Machine& each : machines().list()) {
      if (each.state == MachineState::gone) continue;
      rows.push_back(each.node.str() + " " + to_string(each.state));
    }
    return rows;
  }

  std::string name;
  testing::TemporaryFolder folder;
  Strings options{"--exclusive"};
};

}  // namespace

TEST_CASE("nodes of one request are one allocation, found by its comment and given back whole") {
  Site site("whole");
  const std::vector<MachineOutcome> asked = site.ask(site.request(1, 3));
  REQUIRE(asked.size() == 3);
  for (const MachineOutcome& each : asked) {
    CHECK_FALSE(each.error.has_value());
    CHECK(each.machine.state == MachineState::pending);
  }
  CHECK(asked[2].machine.id == asked[0].machine.id.substr(0, asked[0].machine.id.size() - 1) + "2");
  const auto ran = site.follow(Site::of(asked));
  for (const auto& [node, machine] : ran) CHECK(machine.state == MachineState::running);
  // Each node is another of Slurm's, told as another laptop sees it.
  const std::vector<Machine> there = site.machines().list();
  REQUIRE(there.size() == 3);
  CHECK(there[1].node == NodeId("node-2"));
  CHECK(there[1].id == asked[1].machine.id);
  CHECK(there[1].type == "gpu");
  CHECK(there[1].cluster == ClusterId("whole-id"));
  CHECK(there[1].launch == "abcd");
  CHECK(there[1].zone == "normal");
  std::set<std::string> names;
  for (const Machine& each : there) {
    wait_until("it has started", [&] { return fs::exists(site.folder.path() / each.node.str()); });
    names.insert(read_file(site.folder.path() / each.node.str()));
  }
  CHECK(names.size() == 3);
  // Asked for again, nothing is made twice, but what is new.
  const std::vector<MachineOutcome> again = site.ask(site.request(2, 4));
  REQUIRE(again.size() == 3);
  CHECK(again[0].machine.id == asked[1].machine.id);
  CHECK(again[2].machine.node == NodeId("node-4"));
  CHECK(again[2].machine.id != asked[0].machine.id);
  // One of them alone does not go, and takes no other along.
  const std::vector<MachineOutcome> one = site.give_back({there[1]});
  REQUIRE(one.front().error.has_value());
  CHECK(one.front().error->message().find("with node-1, node-3, and is given back with it") !=
        std::string::npos);
  CHECK(site.listed().size() == 4);
  const std::vector<MachineOutcome> all = site.give_back(there);
  for (const MachineOutcome& each : all) CHECK(each.machine.state == MachineState::stopping);
  for (const auto& [node, machine] : site.follow(Site::of(all))) {
    CHECK(machine.state == MachineState::gone);
  }
  CHECK(site.listed().size() == 1);
  // What is gone may be given back.
  CHECK_FALSE(site.give_back({there[1]}).front().error.has_value());
}

TEST_CASE("what waits is told with Slurm's reason") {
  Site site("waits");
  const std::vector<MachineOutcome> first = site.ask(site.request(1, 4));
  site.follow(Site::of(first));
  const std::vector<MachineOutcome> second = site.ask(site.request(5, 6));
  // At once, or when Slurm has looked at it.
  std::string reason;
  std::stop_source stop;
  const auto hear = [&](const MachineOutcome& each) {
    reason = each.machine.reason;
    if (reason.find("Resources") != std::string::npos) stop.request_stop();
  };
  hear(second.front());
  site.machines().follow(Site::of(second), hear, stop.get_token());
  CHECK(reason.find("waits in partition normal: Resources") == 0);
}

TEST_CASE("what can never run is refused in Slurm's words, and nothing is left of it") {
  Site site("never");
  for (const MachineOutcome& each : site.ask(site.request(1, 9))) {
    REQUIRE(each.error.has_value());
    CHECK(each.error->code() == ErrorCode::failed);
    CHECK(each.error->message().find("sbatch: allocation failure: Requested node configuration is "
                                     "not available") == 0);
    CHECK(each.machine.id.empty());
  }
  site.options = {"--partition=nobodys"};
  CHECK(site.ask(site.request(1, 1)).front().error->message().find("invalid partition") !=
        std::string::npos);
  site.options = {"--no-such-option"};
  CHECK(site.ask(site.request(1, 1)).front().error->message().find("unrecognized option") !=
        std::string::npos);
  CHECK(site.listed().empty());
}

TEST_CASE("an allocation that ended says what it said last") {
  Site site("ended");
  const std::vector<MachineOutcome> asked = site.ask(site.request(1, 2));
  // It fails before anybody sees it run, or after.
  write_file_atomic(site.folder.path() / "end", "", 0600);
  std::vector<Machine> pending = Site::of(asked);
  wait_until("it has ended", [&] { return site.listed().empty(); });
  const auto last = site.follow(pending);
  const Machine& machine = last.at(NodeId("node-2"));
  CHECK(machine.state == MachineState::gone);
  CHECK(machine.reason.find("has failed: ") != std::string::npos);
  CHECK(machine.reason.find("says why") != std::string::npos);
  // What it had started with is gone with it.
  CHECK(fs::is_empty(site.folder.path() / "with space %j" / "boot"));
}

TEST_CASE("an allocation that somebody cancels is told so") {
  Site site("causes");
  const std::vector<MachineOutcome> asked = site.ask(site.request(1, 1));
  const std::string job = asked[0].machine.id.substr(0, asked[0].machine.id.find('/'));
  CHECK(LocalTransport().run({"scancel", job}, {}, 30s).exit.ok());
  const auto last = site.follow(Site::of(asked));
  CHECK(last.begin()->second.reason.find("was cancelled") != std::string::npos);
}

TEST_CASE("a node that is had whole has all its GPUs, else as many as were asked for") {
  Site site("gpus");
  Request wanted = site.request(1, 2);
  wanted.boot = [&](const NodeId& node) {
    return "echo \"$CUDA_VISIBLE_DEVICES\" > '" + (site.folder.path() / node.str()).string() +
           "'\n";
  };
  const auto seen = [&](const Strings& options) {
    site.options = options;
    site.follow(Site::of(site.ask(wanted)));
    Strings devices;
    for (const char* node : {"node-1", "node-2"}) {
      wait_until("it has said so", [&] { return fs::exists(site.folder.path() / node); });
      wait_until("it has ended", [&] { return site.listed().empty(); });
      devices.push_back(read_file(site.folder.path() / node));
      fs::remove(site.folder.path() / node);
    }
    return devices;
  };
  CHECK(seen({"--exclusive", "--mem=0"}) == Strings{"0,1\n", "0,1\n"});
  CHECK(seen({"--cpus-per-task=1", "--gres=gpu:1"}) == Strings{"0\n", "0\n"});
  CHECK(seen({"--cpus-per-task=1"}) == Strings{"\n", "\n"});
}

TEST_CASE("a node that fails leaves the others of its allocation alone") {
  Site site("fails");
  site.follow(Site::of(site.ask(site.request(1, 3))));
  for (const char* node : {"node-1", "node-2", "node-3"}) {
    wait_until("it has started", [&] { return fs::exists(site.folder.path() / node); });
  }
  std::string failed = read_file(site.folder.path() / "node-2");
  failed.pop_back();
  LocalTransport here;
  const std::string name = "nodename=" + failed;
  CHECK(here.run({"scontrol", "update", name, "state=down", "reason=tried"}, {}, 30s).exit.ok());
  // Both others go on until they are told, as they say then.
  CHECK(site.listed().size() == 3);
  write_file_atomic(site.folder.path() / "end", "", 0600);
  wait_until("it has ended", [&] { return site.listed().empty(); });
  // By their files: what the last ones print srun may lose once a node is gone.
  CHECK(fs::exists(site.folder.path() / "node-1.over"));
  CHECK_FALSE(fs::exists(site.folder.path() / "node-2.over"));
  CHECK(fs::exists(site.folder.path() / "node-3.over"));
  // What they have started with nobody is to read afterwards.
  for (const auto& boot : fs::directory_iterator(site.folder.path() / "with space %j" / "boot")) {
    CHECK_FALSE(fs::exists(boot.path() / "0"));
  }
  here.run({"scontrol", "update", name, "state=resume"}, {},
           30s);  // it may have come back by itself
  wait_until("all are idle again", [&] {
    return here.run({"sinfo", "-h", "-p", "normal", "-t", "idle", "-o", "%D"}, {}, 30s).out ==
           "4\n";
  });
}

TEST_CASE("of two who ask for the same node the first has it") {
  Site site("twice");
  // The other one asks when this one has looked.
  Request wanted = site.request(1, 2);
  const auto boot = wanted.boot;
  wanted.boot = [&](const NodeId& node) {
    if (node == NodeId("node-1")) site.ask(site.request(2, 2));
    return boot(node);
  };
  const std::vector<MachineOutcome> asked = site.ask(wanted);
  REQUIRE(asked.size() == 2);
  for (const MachineOutcome& each : asked) {
    REQUIRE(each.error.has_value());
    CHECK(each.error->code() == ErrorCode::conflict);
  }
  wait_until("only one is there", [&] { return site.listed().size() == 1; });
}

TEST_CASE("what the submitter's environment says changes nothing") {
  Site site("environment");
  const testing::VariableIs clusters("SBATCH_CLUSTERS", "other");
  const testing::VariableIs none("SBATCH_EXPORT", "NONE");
  const testing::VariableIs memory("SLURM_MEM_PER_CPU", "5");
  const testing::VariableIs states("SQUEUE_STATES", "PENDING");
  const testing::VariableIs cancel("SCANCEL_STATE", "PENDING");
  site.options = {"--exclusive", "--mem=0"};
  const auto ran = site.follow(Site::of(site.ask(site.request(1, 2))));
  for (const auto& [node, machine] : ran) CHECK(machine.state == MachineState::running);
  site.give_back_all();
  CHECK(site.listed().empty());
}

TEST_CASE("without Slurm's commands it is said what is missing") {
  slurm::Client client(std::make_shared<LocalTransport>(), {"PATH=/nowhere"});
  try {
    client.jobs("c", "dtrain ");
    FAIL("there are none");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_found);
    CHECK(error.message().find("there is no squeue here") == 0);
  }
}
