#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/slurm/client.hpp"
#include "launcher/provider/slurm/job_transport.hpp"
#include "launcher/provider/slurm/machines.hpp"
#include "launcher/provider/slurm/options.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using nlohmann::json;
using Strings = std::vector<std::string>;

namespace {

const std::string kWarns = "--signal=B:USR1@120";

// At a whole second of a day.
std::chrono::system_clock::time_point at(std::int64_t seconds) {
  return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
}

std::string standing(const slurm::Job& job, std::chrono::system_clock::time_point now = at(1000)) {
  const slurm::Standing found = slurm::standing_of(job, now);
  return std::string(to_string(found.state)) + " " + found.reason;
}

slurm::Job job(const std::string& state, const std::string& reason = "None") {
  return {"12", state, reason, "gpu", "", "", at(900), std::nullopt};
}

ClusterSpec cluster(const json& config, const std::map<std::string, double>& resources = {}) {
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::slurm;
  NodeType type;
  type.name = "node";
  type.node_config = config;
  type.resources = resources;
  spec.node_types = {type};
  return spec;
}

Strings options(const json& config, const std::map<std::string, double>& resources = {}) {
  return slurm::batch_options(cluster(config, resources), "node");
}

std::string refused(const json& config) {
  try {
    options(config);
    return "taken";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("what squeue says of jobs is read, whatever a comment holds") {
  const std::vector<slurm::Job> jobs = slurm::parse_jobs(
      "a banner of the site's\n"
      "12_[1-3]|PENDING|None|gpu|1795430021|N/A||(null)\n"
      "9|RUNNING|None|gpu|1795430021|1795430022|n1|hello |dtrain you\n"
      "1|RUNNING|None|gpu|1795430021|1795430022|n[1-2]|dtrain a|b=\xc3\xa9 |\n"
      "22|PENDING|ReqNodeNotAvail, UnavailableNodes:n1|gpu|1795430021|N/A||dtrain c\n",
      "dtrain ");
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].id == "1");
  CHECK(jobs[0].state == "RUNNING");
  CHECK(jobs[0].partition == "gpu");
  CHECK(jobs[0].nodes == "n[1-2]");
  CHECK(jobs[0].comment == "dtrain a|b=\xc3\xa9 |");
  CHECK(jobs[0].submitted == at(1795430021));
  CHECK(jobs[0].start == at(1795430022));
  CHECK(jobs[1].reason == "ReqNodeNotAvail, UnavailableNodes:n1");
  CHECK_FALSE(jobs[1].start.has_value());
  CHECK(slurm::parse_jobs("", "dtrain ").empty());
  for (const char* bad : {"1|RUNNING|None|gpu|1795430021|1795430022|dtrain c\n",
                          "1_2|RUNNING|None|gpu|1795430021|1795430022|n1|dtrain c\n", "|dtrain c\n",
                          "1||None|gpu|1795430021|1795430022|n1|dtrain c\n",
                          "1|RUNNING|None|gpu|2026-11-23T10:33:40|N/A|n1|dtrain c\n"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(slurm::parse_jobs(bad, "dtrain "), Error);
  }
}

TEST_CASE("who a Slurm job's nodes are stands in its comment") {
  slurm::Allocation allocation{"my.cluster",  ClusterId("my.cluster-ab12"),
                               "gpu-large",   "0f0f",
                               "boot-ab12cd", {NodeId("node-1"), NodeId("node-2")}};
  const auto read = slurm::allocation_of(slurm::comment_of(allocation));
  REQUIRE(read.has_value());
  CHECK(read->cluster_name == allocation.cluster_name);
  CHECK(read->cluster == allocation.cluster);
  CHECK(read->type == allocation.type);
  CHECK(read->launch == allocation.launch);
  CHECK(read->boot == allocation.boot);
  CHECK(read->nodes == allocation.nodes);
  CHECK(slurm::comment_of(allocation).find(" nodes=node-1..node-2") != std::string::npos);
  // In their order, whatever they are called.
  allocation.nodes = {NodeId("node-9"), NodeId("node-10"), NodeId("node-11"), NodeId("a"),
                      NodeId("node-3"), NodeId("node-2"),  NodeId("x007"),    NodeId("x008")};
  CHECK(slurm::comment_of(allocation).find(" nodes=node-9..node-11,a,node-3,node-2,x007,x008") !=
        std::string::npos);
  CHECK(slurm::allocation_of(slurm::comment_of(allocation))->nodes == allocation.nodes);
  allocation.nodes.clear();
  for (int i = 0; i < 10000; ++i) allocation.nodes.emplace_back("node-" + std::to_string(i));
  CHECK(slurm::comment_of(allocation).size() < slurm::Machines::kMostComment);
  CHECK(slurm::allocation_of(slurm::comment_of(allocation))->nodes == allocation.nodes);
  // Others' comments, and such as name a folder that is not ours.
  for (const char* other : {"", "hello", "dtrain", "dtrain cluster=c", "dtrain cluster=c nodes=",
                            "dtrain cluster=c nodes=a,,b", "dtrain cluster=c boot=../x nodes=a",
                            "dtrain cluster=c boot=/ nodes=a"}) {
    CAPTURE(other);
    CHECK_FALSE(slurm::allocation_of(other).has_value());
  }
}

TEST_CASE("each state of Slurm's is one of machines, with why") {
  CHECK(standing(job("RUNNING")) == "running ");
  CHECK(standing(job("SUSPENDED")) == "running Slurm job 12 is suspended");
  CHECK(standing(job("COMPLETING")) == "stopping ");
  CHECK(standing(job("PREEMPTED")) == "gone Slurm job 12 was preempted");
  CHECK(slurm::standing_of(job("PREEMPTED"), at(1000)).taken_back);
  CHECK_FALSE(slurm::standing_of(job("CANCELLED"), at(1000)).taken_back);
  CHECK(standing(job("TIMEOUT")) == "gone Slurm job 12 reached its time limit");
  CHECK(standing(job("NODE_FAIL")) == "gone Slurm job 12 lost a node");
  CHECK(standing(job("CONFIGURING")) == "pending waits in partition gpu: CONFIGURING");
  CHECK(standing(job("A_STATE_OF_LATER_YEARS")) ==
        "pending waits in partition gpu: A_STATE_OF_LATER_YEARS");
  CHECK(standing(job("PENDING")) == "pending waits in partition gpu");
  CHECK(standing(job("PENDING", "Priority")) == "pending waits in partition gpu: Priority");
}

TEST_CASE("when it starts is told where Slurm knows it") {
  slurm::Job waits = job("PENDING", "Resources");
  const auto now = std::chrono::system_clock::now();
  const auto shown = [&] { return standing(waits, now); };
  waits.start = now + 1s;
  CHECK(shown().find("pending waits in partition gpu: Resources, starts about ") == 0);
  waits.start = now - 1s;
  CHECK(shown() == "pending waits in partition gpu: Resources");
  waits.start = now + std::chrono::hours(24 * 3);
  CHECK(shown().size() == std::string("pending waits in partition gpu: Resources, starts about "
                                      "2026-11-26 10:00")
                              .size());
  // Its word for never.
  waits.start = now + std::chrono::hours(24 * 365 * 200L);
  CHECK(shown() == "pending waits in partition gpu: Resources");
}

TEST_CASE("node_config is sbatch's long options") {
  CHECK(options(json::object()) == Strings{"--exclusive", "--mem=0", kWarns});
  CHECK(options({{"time", "08:00:00"},
                 {"gpus-per-node", 4},
                 {"exclusive", true},
                 {"spread-job", false}}) ==
        Strings{"--exclusive", "--gpus-per-node=4", "--time=08:00:00", kWarns});
  CHECK(options({{"exclusive", true}, {"mem", 0}, {"reservation", "2024.10"}}) ==
        Strings{"--exclusive", "--mem=0", "--reservation=2024.10", kWarns});
  CHECK(options({{"constraint", "a100&nvlink"}, {"exclude", {"n1", "n2"}}, {"cpus-per-task", 8}}) ==
        Strings{"--constraint=a100&nvlink", "--cpus-per-task=8", "--exclude=n1,n2", kWarns});
}

TEST_CASE("resources ask for what node_config leaves open") {
  const double gib = 1 << 30;
  CHECK(options(json::object(), {{"CPU", 32}, {"GPU", 4}, {"memory", 2 * gib}}) ==
        Strings{"--cpus-per-task=32", "--mem=2097152K", "--gres=gpu:4", kWarns});
  CHECK(options({{"exclusive", true}, {"gres", "gpu:a100:8"}, {"mem", "0"}},
                {{"CPU", 32}, {"GPU", 4}, {"memory", 2 * gib}}) ==
        Strings{"--exclusive", "--gres=gpu:a100:8", "--mem=0", kWarns});
}

TEST_CASE(
    "an option that is false, and a node that is only kept from others, leave the rest to "
    "resources") {
  CHECK(options({{"exclusive", false}, {"mem", false}}, {{"CPU", 32}}) ==
        Strings{"--cpus-per-task=32", kWarns});
  CHECK(options({{"exclusive", "user"}}, {{"CPU", 32}}) ==
        Strings{"--cpus-per-task=32", "--exclusive=user", kWarns});
}

TEST_CASE("the provider's partition, account and qos hold for types that say none") {
  ClusterSpec spec = cluster({{"partition", "large"}, {"exclusive", true}});
  spec.provider.other = {{"partition", "gpu"}, {"account", "physics"}, {"login_node", "login"}};
  CHECK(slurm::batch_options(spec, "node") ==
        Strings{"--account=physics", "--exclusive", "--partition=large", kWarns});
  CHECK_THROWS_AS(slurm::batch_options(spec, "other"), Error);
}

TEST_CASE("what a node has is known where resources alone say it") {
  const auto known = [](const json& config, const std::map<std::string, double>& resources) {
    return slurm::known_of(cluster(config.is_null() ? json::object() : config, resources), "node");
  };
  const slurm::Known all = known({}, {{"CPU", 7.5}, {"GPU", 2}, {"memory", 1e9}});
  CHECK(all.cpus == 8);
  CHECK(all.gpus == 2);
  CHECK(all.memory == 1000000000);
  CHECK(known({}, {{"CPU", 8}}).gpus == 0);
  CHECK_FALSE(known({}, {{"CPU", 8}}).memory.has_value());
  CHECK_FALSE(known({{"gpus-per-node", 4}}, {{"CPU", 8}}).gpus.has_value());
  CHECK_FALSE(known({}, {{"GPU", 4}}).cpus.has_value());  // a whole node
  CHECK_FALSE(known({{"exclusive", true}}, {{"CPU", 8}}).cpus.has_value());
}

TEST_CASE("an allocation hears that its time is nearly over, unless it is short") {
  const auto warns = [](const char* time) {
    const Strings all = options({{"time", time}});
    return std::find(all.begin(), all.end(), kWarns) != all.end();
  };
  for (const char* enough : {"4", "4:00", "0:04:00", "0-0:4", "1-0", "08:00:00", "UNLIMITED"}) {
    CHECK_MESSAGE(warns(enough), enough);
  }
  for (const char* little : {"3", "1", "3:59", "0:03:59", "0-0:3", "0-0:3:59"}) {
    CHECK_FALSE_MESSAGE(warns(little), little);
  }
}

TEST_CASE("what sbatch would not take, or is dtrain's to say, is refused by name") {
  const std::string where = "available_node_types.node.node_config.";
  CHECK(refused({{"nodes", 4}}) == where + "nodes is for dtrain to say");
  CHECK(refused({{"clusters", "other"}}) == where + "clusters is for dtrain to say");
  CHECK(refused({{"wrap", "true"}}) == where + "wrap is for dtrain to say");
  CHECK(refused({{"-p", "gpu"}}) == where + "-p is none of sbatch's long options");
  CHECK(refused({{"gpus_per_node", 4}}) ==
        where + "gpus_per_node is none of sbatch's long options");
  CHECK(refused({{"time", "a\nb"}}) == where + "time has a value that sbatch does not take");
  CHECK(refused({{"time", ""}}) == where + "time has a value that sbatch does not take");
  CHECK(refused({{"reservation", 2024.10}}) ==
        where + "reservation must be a text or a whole number");
  CHECK(refused({{"exclude", {"n1", 2.5}}}) == where + "exclude must be a text or a whole number");
  CHECK(refused({{"exclude", {"n1", true}}}) == where + "exclude has true or false in its list");
  CHECK(refused({{"time", {{"a", 1}}}}) == where + "time is no text, number, list or true");
}

TEST_CASE("a program that a signal ended was ended with its job, where that runs no more") {
  const testing::TemporaryFolder commands;
  const auto says = [&](const std::string& program, const std::string& script) {
    write_file_atomic(commands.path() / program, "#!/bin/sh\n" + script, 0700);
  };
  slurm::JobTransport there(
      slurm::Client(std::make_shared<LocalTransport>(),
                    {"PATH=" + commands.path().native() + ":/usr/sbin:/usr/bin:/sbin:/bin"}),
      [] { return "12"; });
  // As it is when Slurm's "*** STEP 12.0 ON n1 CANCELLED AT …" comes too late.
  says("srun", "echo 'srun: error: n1: task 0: Terminated' >&2; exit 143\n");
  says("squeue", "echo 112; echo 12\n");
  CHECK(there.run({"true"}, {}, 60s).exit.code == 143);
  CHECK(there.open({"true"})->wait(60s) == 143);
  says("squeue", "echo 112\n");
  CHECK_THROWS_WITH(there.run({"true"}, {}, 60s), "Slurm's job 12 has ended");
  CHECK_THROWS_WITH(there.open({"true"})->wait(60s), "Slurm's job 12 has ended");
  says("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1\n");
  CHECK_THROWS_AS(there.run({"true"}, {}, 60s), Error);
  says("srun", "echo 'srun: error: n1: task 0: Exited with exit code 3' >&2; exit 3\n");
  CHECK(there.run({"true"}, {}, 60s).exit.code == 3);
}

TEST_CASE("each node of an allocation has all of its GPUs, however many others have") {
  const testing::TemporaryFolder folder;
  const std::string here = folder.path().native();
  const auto says = [&](const std::string& program, const std::string& script) {
    write_file_atomic(folder / program, "#!/bin/sh\n" + script, 0700);
  };
  says("sbatch", "for each; do case $each in --comment=*) echo \"${each#*=}\" >'" + here +
                     "/comment';; --test-only) exit;; esac; done; cat >'" + here +
                     "/script'; echo 12\n");
  says("squeue",
       "echo \"12|RUNNING|None|gpu|1700000000|N/A|name|$(cat '" + here + "/comment')\"\n");
  says("scontrol", "case $* in '--details show job 12') cat '" + here +
                       "/details';; 'show hostnames '*) echo \"$3\" | tr , '\\n';; esac\n");
  // A step's tasks, one after the other.
  says("srun", R"sh(gres= nodes= i=0 status=0
while :; do
  case $1 in
    --gres=*) gres=${1#*=} ;;
    --nodelist=*) nodes=${1#*=} ;;
    --ntasks=*) count=${1#*=} ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
while [ $i -lt "$count" ]; do
  SLURM_NODEID=$i SEEN="$gres of $nodes" "$@" || status=$?
  i=$((i + 1))
done
exit $status
)sh");
  const std::string path = "PATH=" + here + ":/usr/sbin:/usr/bin:/sbin:/bin";
  LocalTransport local;
  const auto seen = [&](const std::string& details, const Strings& options, int code = 0) {
    write_file_atomic(folder / "details", details);
    fs::remove(folder / "comment");  // no job is there yet
    slurm::Machines machines(slurm::Client(std::make_shared<LocalTransport>(), {path}), "lab",
                             folder / "boot", [&](const std::string&) { return options; });
    Request wanted;
    wanted.type = "gpu";
    wanted.cluster = ClusterId("lab-abcdef");
    for (int i = 1; i <= 4; ++i) wanted.nodes.emplace_back("node-" + std::to_string(i));
    wanted.boot = [&](const NodeId& node) {
      const std::string status = node == NodeId("node-1") ? std::to_string(code) : "0";
      return "echo \"$SEEN\" >'" + (folder / node.str()).native() + "'; exit " + status + "\n";
    };
    machines.create({wanted}, [](const MachineOutcome& each) { CHECK_FALSE(each.error); });
    const Captured ran = local.run({"env", path, "SLURM_JOB_ID=12", "SLURM_JOB_NUM_NODES=4",
                                    "SLURM_GPUS_ON_NODE=2", "sh", (folder / "script").native()},
                                   {}, 60s);
    CHECK_MESSAGE(ran.exit.code == code, ran.err);
    Strings said;
    for (const NodeId& node : wanted.nodes) {
      said.push_back(trimmed(read_file(folder / node.str())));
      fs::remove(folder / node.str());
    }
    return said;
  };
  const Strings whole{"--exclusive", "--mem=0"};
  const std::string first =
      "JobId=12 JobName=dtrain-lab\n   NodeList=n[1-4] BatchHost=n1\n   JOB_GRES=gpu:8\n"
      "     Nodes=n1,n3 CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)\n";
  CHECK(seen(first + "     Nodes=n2 CPU_IDs=0-3 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:v100:3(IDX:1,3-4),"
                     "shard:5(IDX:1)\n     Nodes=n4 CPU_IDs=0-1 Mem=0 GRES=\n",
             whole) == Strings{"gpu:2 of n1,n3", "gpu:2 of n1,n3", "gpu:4 of n2", "gpu:0 of n4"});
  const Strings all(4, "gpu:2 of");
  const std::string alike = "     Nodes=n2,n4 CPU_IDs=0-3 Mem=0 GRES=gpu:a100(CNT:2)\n";
  CHECK(seen(first + alike, whole) == all);
  // What Slurm does not say, or not of all, is as it is on the first.
  CHECK(seen("", whole) == all);
  const std::string other = "     Nodes=n2 CPU_IDs=0-3 Mem=0 GRES=gpu:4(IDX:0-3)\n";
  CHECK(seen(first + other, whole) == all);
  // A step has what was asked for by itself.
  CHECK(seen(first + other, {"--gres=gpu:1"}) == Strings(4, "of"));
  seen(first + "     Nodes=n2,n4 CPU_IDs=0-3 Mem=0 GRES=gpu:4(IDX:0-3)\n", whole, 3);
}
