#include "trainer/launch/fit.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

using namespace dtrain::train;
using nlohmann::json;

namespace {

json cluster(const std::vector<json>& nodes) {
  return {{"cluster", {{"name", "c"}}}, {"nodes", nodes}};
}

json node(double cpus, double gpus = 0, double memory = 1e10) {
  return {{"state", "ready"}, {"cpus", cpus}, {"gpus", gpus}, {"memory", memory}};
}

json in_state(const char* state, json node) {
  node["state"] = state;
  return node;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// A `dtrain` that is a script of the test's.
class Script {
 public:
  explicit Script(const std::string& text) {
    char name[] = "/tmp/dtrain-launch-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::ofstream(path()) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  ~Script() { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "dtrain"; }
  DtrainCommand command() const { return DtrainCommand(path()); }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("workers go to as few nodes as have room for them") {
  const ScalingConfig cpu{.num_workers = 4};
  CHECK(place_workers(cpu, cluster({node(4), node(4)})) == JobShape{1, 4});
  CHECK(place_workers(cpu, cluster({node(2), node(2)})) == JobShape{2, 2});
  CHECK(place_workers(cpu, cluster({node(2), node(1), node(1), node(1)})) == JobShape{4, 1});
  CHECK(place_workers(cpu, cluster({node(3), node(1)})) == JobShape{1, 4});  // 2 each do not fit
  CHECK(place_workers(cpu, cluster({})) == JobShape{1, 4});

  const ScalingConfig gpu{.num_workers = 8, .use_gpu = true};
  CHECK(place_workers(gpu, cluster({node(1, 8)})) ==
        JobShape{1, 8});  // no CPU is counted beside GPUs
  CHECK(place_workers(gpu, cluster({node(8, 4), node(8, 0), node(8, 4)})) == JobShape{2, 4});
  CHECK(place_workers({.num_workers = 4, .resources_per_worker = {{"GPU", 0.25}}},
                      cluster({node(1, 2), node(1, 2)})) == JobShape{2, 2});
  CHECK(place_workers({.num_workers = 2, .resources_per_worker = {{"GPU", 2}}},
                      cluster({node(8, 2), node(8, 2)})) == JobShape{2, 1});
  CHECK(place_workers({.num_workers = 2, .resources_per_worker = {{"CPU", 0.5}}},
                      cluster({node(1), node(1)})) == JobShape{1, 2});
  CHECK(place_workers({.num_workers = 2, .resources_per_worker = {{"memory", 6e9}}},
                      cluster({node(8), node(8)})) == JobShape{2, 1});
  CHECK(place_workers({.num_workers = 6, .nodes = 3}, cluster({node(64)})) == JobShape{3, 2});

  // One that takes no ranks is not counted while others have room.
  const json drained = in_state("drained", node(8));
  CHECK(place_workers(cpu, cluster({drained, node(2), node(2)})) == JobShape{2, 2});
  CHECK(place_workers(cpu, cluster({in_state("lost", node(4)), node(3)})) == JobShape{1, 4});
  CHECK(place_workers(cpu, cluster({in_state("joining", node(2)), node(2)})) == JobShape{2, 2});
}

TEST_CASE("what cannot be placed is an error that says why") {
  const json one = cluster({node(8)});
  CHECK_THROWS_WITH(place_workers({.num_workers = 0}, one),
                    "ScalingConfig: num_workers is 0, at least 1 is needed");
  CHECK_THROWS_WITH(place_workers({.num_workers = 3, .nodes = 2}, one),
                    "ScalingConfig: 3 workers on 2 nodes: each node has the same number");
  CHECK_THROWS_WITH(place_workers({.resources_per_worker = {{"TPU", 1}}}, one),
                    "ScalingConfig: resources_per_worker knows CPU, GPU and memory, not 'TPU'");
  CHECK_THROWS_AS(place_workers({.resources_per_worker = {{"GPU", 1.5}}}, one), Error);
  CHECK_THROWS_AS(place_workers({.resources_per_worker = {{"CPU", -1}}}, one), Error);
}

TEST_CASE("a job is submitted with what the configurations say, and nothing else") {
  CHECK(joined(submit_words({}, {}, {1, 1}, {"/x/train", "-e", "3"})) ==
        "submit -d --json --nnodes 1 --nproc-per-node 1 --max-restarts 0 --env DTRAIN_FIT=1 "
        "-- /x/train -e 3");
  const ScalingConfig scaling{
      .num_workers = 8, .use_gpu = true, .resources_per_worker = {{"CPU", 0.5}, {"memory", 6e9}}};
  const RunConfig run{.name = "n",
                      .storage_path = "/s",
                      .checkpoint_config = {.num_to_keep = 2, .score_attribute = "a"},
                      .failure_config = {.max_failures = -1}};
  CHECK(joined(submit_words(scaling, run, {2, 4}, {"t"})) ==
        "submit -d --json --nnodes 2 --nproc-per-node 4 --max-restarts 1000000 --env DTRAIN_FIT=1 "
        "--name n --storage-path /s --num-to-keep 2 --score-attribute a --score-order max "
        "--gpus 1 --cpus 0.5 --memory 6000000000 -- t");
  CHECK_THROWS_WITH(submit_words({}, {.checkpoint_config = {.score_order = "up"}}, {1, 1}, {"t"}),
                    "CheckpointConfig: score_order is max or min, not 'up'");
  CHECK_THROWS_AS(submit_words({}, {.failure_config = {.max_failures = -2}}, {1, 1}, {"t"}), Error);
  CHECK_THROWS_WITH_AS(submit_words({}, {.checkpoint_config = {.num_to_keep = 0}}, {1, 1}, {"t"}),
                       "CheckpointConfig: num_to_keep must be at least 1", Error);
}

TEST_CASE("a result has the metrics, the checkpoints with the best first, and the cause") {
  const json checkpoints = {{{"path", "/0"}, {"step", 1}, {"metrics", {{"acc", 0.9}}}},
                            {{"path", "/1"}, {"step", 2}, {"metrics", {{"acc", "nan"}}}},
                            {{"path", "/2"}, {"step", 3}, {"metrics", {{"acc", 0.5}}}}};
  const json good = {{"job", "j-1"},
                     {"state", "succeeded"},
                     {"metrics", {{"l", "inf"}, {"m", 2}}},
                     {"checkpoints", checkpoints},
                     {"error", nullptr},
                     {"reason", ""}};
  const auto order = [](const Result& result) {
    std::string text;
    for (const auto& [path, metrics] : result.best_checkpoints) text += path.string();
    return text;
  };
  const Result result = result_of(good, {.score_attribute = "acc"});
  CHECK(result.job == "j-1");
  CHECK(result.metrics.at("m") == 2);
  CHECK(result.metrics.at("l") == std::numeric_limits<double>::infinity());
  CHECK(result.checkpoint == "/2");
  CHECK(order(result) == "/0/2/1");
  CHECK(order(result_of(good, {.score_attribute = "acc", .score_order = "min"})) == "/2/0/1");
  CHECK(order(result_of(good, {})) == "/2/1/0");
  CHECK(result.exit_code == 0);
  CHECK_FALSE(result.error);

  json bad = good;
  bad["state"] = "failed";
  bad["reason"] = "rank 1: exit code 1";
  bad["error"] = {{"message", "rank 1 on n: exit code 1"}, {"error_message", "no such file"}};
  CHECK(result_of(bad, {}).error == "rank 1 on n: exit code 1\nno such file");
  CHECK(result_of(bad, {}).exit_code == 1);
  bad["state"] = "stopped";
  bad["error"] = nullptr;
  CHECK(result_of(bad, {}).error == "rank 1: exit code 1");
  CHECK(result_of(bad, {}).exit_code == 3);
}

TEST_CASE("the command is $DTRAIN or in PATH, else the error says what to do") {
  const Script script("exit 0\n");
  const auto with = [](std::map<std::string, std::string> variables) {
    return [variables](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
  };
  const std::string folder = script.path().parent_path();
  CHECK(DtrainCommand::find(with({{"DTRAIN", script.path()}, {"PATH", "/none"}})).program() ==
        script.path());
  CHECK(DtrainCommand::find(with({{"PATH", "/none::" + folder}})).program() == script.path());
  CHECK(DtrainCommand::find(with({{"DTRAIN", "dtrain"}, {"PATH", "/none:" + folder}})).program() ==
        script.path());
  CHECK_THROWS_WITH(DtrainCommand::find(with({{"DTRAIN", "other"}, {"PATH", folder}})),
                    "DTRAIN=other: no such program");
  // A folder that cannot be looked into is passed over.
  const std::string round = folder + "/round";
  std::filesystem::create_symlink(round, round);
  CHECK(DtrainCommand::find(with({{"PATH", round + ":" + folder}})).program() == script.path());
  CHECK_THROWS_WITH(DtrainCommand::find(with({{"DTRAIN", "/none"}})),
                    "DTRAIN=/none: no such program");
  CHECK_THROWS_WITH(DtrainCommand::find(with({{"PATH", "/none"}})),
                    doctest::Contains("torchrun --no-python"));
}

TEST_CASE("an answer is the last JSON line, an error is thrown with its code and hint") {
  CHECK(Script("echo words; echo '{\"a\":1}'; echo \"[\\\"$1\\\",\\\"$2\\\"]\"\n")
            .command()
            .ask({"x y", "$z"}) == json({"x y", "$z"}));
  // What a `result` has below error is no error of the command.
  CHECK(Script("echo '{\"error\":{\"message\":\"m\"}}'\n").command().ask({}).contains("error"));
  const Script failing(
      "echo '{\"error\":{\"code\":\"conflict\",\"message\":\"no room\",\"hint\":\"wait\"}}'\nexit "
      "1\n");
  CHECK_THROWS_WITH_AS(failing.command().ask({}), "no room\n  wait", CommandError);
  const Script several(
      "echo '{\"error\":{\"code\":\"invalid\",\"message\":\"2 problems\",\"problems\":["
      "{\"message\":\"nodes: too many\"},{\"message\":\"name: too long\"}]}}'\n");
  CHECK_THROWS_WITH_AS(several.command().ask({}), "nodes: too many\nname: too long", CommandError);
  CHECK_THROWS_WITH(Script("exit 7\n").command().ask({"status"}),
                    doctest::Contains("status: no answer, exit code 7"));
  CHECK_THROWS_WITH(DtrainCommand("/none/dtrain").ask({}), doctest::Contains("cannot start"));
  // Longer than a pipe holds.
  CHECK(Script("head -c 300000 /dev/zero | tr '\\0' '\\n'; echo '{}'\n").command().ask({}).empty());
}

TEST_CASE("a command that is shown gets SIGINT, this process does not; its code comes back") {
  CHECK(Script("exit 3\n").command().show({}) == 3);
  CHECK(Script("kill -TERM $$\n").command().show({}) == 128 + 15);
  // As from a terminal: both are told. The command has the default action, whatever we have.
  CHECK(Script("kill -INT $PPID; kill -INT $$\n").command().show({}) == 128 + 2);
}

TEST_CASE("a command that is shown ends with the process that shows it") {
  const Script script("echo $$ > \"$1\"; exec sleep 600\n");
  const std::filesystem::path told = script.path().parent_path() / "pid";
  REQUIRE(::mkfifo(told.c_str(), 0600) == 0);
  for (const int signal : {SIGTERM, SIGHUP}) {
    const pid_t driver = ::fork();
    if (driver == 0) {
      ::signal(signal, SIG_DFL);  // doctest's own would tell of a crash
      script.command().show({told});
      ::_exit(0);  // the signal is raised again before this
    }
    pid_t shown = 0;
    std::ifstream(told) >> shown;
    REQUIRE(shown > 0);
    ::kill(driver, signal);
    int status = 0;
    REQUIRE(::waitpid(driver, &status, 0) == driver);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    CHECK(::kill(shown, 0) != 0);
  }
}

TEST_CASE("signals that this process blocks reach the command") {
  sigset_t block;
  sigset_t before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &block, &before);
  const int code = Script("kill -TERM $$; exit 5\n").command().show({});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  CHECK(code == 128 + SIGTERM);
}
