#include <doctest/doctest.h>

#include "launcher/spec/values.hpp"
#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;

TEST_CASE("a job of one line") {
  const JobSpec spec = job("command: [./train, --epochs, 3, true, 1.50, ~x]");
  CHECK(spec.name == "train");
  CHECK(spec.command == std::vector<std::string>{"./train", "--epochs", "3", "true", "1.50", "~x"});
  CHECK_FALSE(spec.shell);
  CHECK(spec.workdir == "/work");
  CHECK_FALSE(spec.resources_given);
}

TEST_CASE("a text is a shell's") {
  const JobSpec spec = job("command: ./train $HOME && echo ${RANK} $$\n");
  CHECK(spec.shell);
  CHECK(spec.command == std::vector<std::string>{"./train $HOME && echo ${RANK} $$"});
  CHECK(job("command: |\n  a\n  b\n").command.front() == "a\nb\n");
}

TEST_CASE("every key of a job") {
  const JobSpec spec = job(R"(
name: mnist
command: [./train]
workdir: code/..
env: {A: 1, B: yes, C: "x", D: 010}
secrets: [TOKEN, {KEY: {file: ~/key}}]
setup: |
  make -j
nnodes: "2:8"
nproc_per_node: gpu
max_restarts: 3
restart: {on: [75, SIGUSR1, node_lost], count: [preempted], window_s: 60, backoff_s: 5, same_failure: restart}
resources: {CPU: 2.5, GPU: 1, memory: 4GiB, tpu: 2}
label_selector: {tier: '!in(gold, silver)'}
storage_path: ../shared/
checkpoint: {num_to_keep: 2, score_attribute: acc, score_order: min}
bundle: off
on_head_lost: stop
launcher: srun
cpu_bind: none
stop_grace_s: 0
timeout_s: 3600
queue_timeout_s: 60
hang_timeout_s: 120
on_hang: restart
log_limit: 256MiB
priority: -5
)");
  JobSpec expected;
  expected.name = "mnist";
  expected.command = {"./train"};
  expected.workdir = "/work";
  expected.env = {{"A", "1"}, {"B", "yes"}, {"C", "x"}, {"D", "010"}};
  expected.secrets = {{"TOKEN", std::nullopt}, {"KEY", "/home/me/key"}};
  expected.setup = "make -j\n";
  expected.nnodes = {2, 8};
  expected.nproc_per_node = {ProcsKind::gpu, 1};
  expected.max_restarts = 3;
  expected.restart = {{{"75", "SIGUSR1", "node_lost"}},
                      {"preempted"},
                      std::chrono::seconds(60),
                      std::chrono::seconds(5),
                      SameFailure::restart};
  expected.resources = {2.5, 1, 4ULL << 30};
  expected.resources_given = true;
  expected.custom_resources = {{"tpu", 2}};
  expected.label_selector = {{"tier", "!in(gold, silver)"}};
  expected.storage_path = "/shared";
  expected.checkpoint = {2, "acc", ScoreOrder::min};
  expected.bundle = BundleMode::off;
  expected.on_head_lost = OnHeadLost::stop;
  expected.launcher = Launcher::srun;
  expected.stop_grace = std::chrono::seconds(0);
  expected.timeout = std::chrono::seconds(3600);
  expected.queue_timeout = std::chrono::seconds(60);
  expected.hang_timeout = std::chrono::seconds(120);
  expected.on_hang = OnHang::restart;
  expected.log_limit = std::uint64_t{256} << 20;
  expected.priority = -5;
  CHECK(spec == expected);
}

TEST_CASE("numbers of nodes and ranks are written in several ways") {
  CHECK(job("command: x\nnnodes: 4").nnodes == NodeCount{4, 4});
  CHECK(job("command: x\nnnodes: 1:4").nnodes == NodeCount{1, 4});
  CHECK(job("command: x\nnproc_per_node: cpu").nproc_per_node.kind == ProcsKind::cpu);
  CHECK(job("command: x\nnproc_per_node: 8").nproc_per_node == ProcsPerNode{ProcsKind::number, 8});
  CHECK(job("command: x\nmax_restarts: 3.0").max_restarts == 3);
  CHECK(job("command: x\nspares: 2").spares == 2);
  CHECK(job("command: x").spares == 0);
}

TEST_CASE("a part of a GPU is exact, and of one alone") {
  const auto parts = [](const std::string& gpus) {
    return job("command: x\nresources: {GPU: " + gpus + "}").resources.gpu->parts;
  };
  CHECK(parts("0.25") == 2500);
  CHECK(parts("0.0001") == 1);
  CHECK(parts("0.9999") == 9999);
  CHECK(parts("0.3") == 3000);
  CHECK(parts("1.0") == GpuAmount::kOne);
  CHECK(parts("1024") == 1024 * GpuAmount::kOne);
  CHECK(parts("0") == 0);
  CHECK_FALSE(job("command: x\nresources: {GPU: }").resources.gpu.has_value());
  for (const char* wrong : {"0.00005", "0.33333", "1.5", "-0.5", "1025", ".inf", ".nan"}) {
    const auto problems = job_problems(std::string("command: x\nresources: {GPU: ") + wrong + "}");
    CAPTURE(wrong);
    REQUIRE(problems.size() == 1);
    CHECK(problems.front().starts_with("2:18 resources.GPU: "));
  }
  CHECK(job_problems("command: x\nresources: {GPU: half}") ==
        std::vector<std::string>{"2:18 resources.GPU: 'half' is no number of GPUs [for example: "
                                 "GPU: 1, or GPU: 0.25]"});
}

TEST_CASE("cpu_bind needs a whole number of CPUs") {
  const JobSpec bound = job("command: x\ncpu_bind: cores\nresources: {CPU: 4}");
  CHECK(bound.cpu_bind == CpuBind::cores);
  CHECK(bound.bound_cpus() == 4);
  CHECK(job("command: x\nresources: {CPU: 4}").bound_cpus() == 0);
  CHECK(job_problems("command: x\ncpu_bind: cores") ==
        std::vector<std::string>{
            "2:11 cpu_bind: is cores, so that resources must say how many CPUs each rank has: a "
            "whole number [for example: resources: {CPU: 2}]"});
  for (const char* cpus : {"0", "0.5", "1.5"}) {
    CHECK(
        job_problems(std::string("command: x\ncpu_bind: cores\nresources: {CPU: ") + cpus + "}") ==
        std::vector<std::string>{
            std::string("2:11 cpu_bind: is cores, so that resources must say how many CPUs each "
                        "rank has: a whole number, not ") +
            cpus + " [for example: resources: {CPU: 2}]"});
  }
}

TEST_CASE("a log limit below what is possible is refused, with what is") {
  CHECK(job("command: x").kept_log() == std::uint64_t{1} << 30);
  CHECK(job("command: x\nlog_limit: 0").kept_log() == 0);
  CHECK(job_problems("command: x\nlog_limit: 1MiB") ==
        std::vector<std::string>{"2:12 log_limit: must be 16.0 MiB to 1 EiB, not 1048576 bytes "
                                 "[log_limit: 0 keeps all]"});
}

TEST_CASE("what restart.on cannot name is said in its place") {
  CHECK(job_problems(
            "command: x\nrestart:\n  on: [0, SIGNOPE]\n  count: [hang]\n  backoff_s: 3601") ==
        std::vector<std::string>{
            "3:8 restart.on[0]: '0' is no failure that is known [exit_code, signal, out_of_memory, "
            "not_started, node_lost, preempted, hang, other, an exit code of 1 to 255, or a signal "
            "as SIGUSR1]",
            "3:11 restart.on[1]: 'SIGNOPE' is no failure that is known [exit_code, signal, "
            "out_of_memory, not_started, node_lost, preempted, hang, other, an exit code of 1 to "
            "255, or a signal as SIGUSR1]",
            "4:11 restart.count[0]: must be node_lost or preempted, not 'hang'",
            "5:14 restart.backoff_s: must be a whole number of 0 to 3600, not 3601"});
  CHECK(
      job_problems("command: x\nrestart: {on: 75}") ==
      std::vector<std::string>{"2:15 restart.on: must be a list of failures [for example: on: [75, "
                               "SIGKILL, node_lost, preempted]]"});
  CHECK(job_problems("command: x\nrestart: {on: []}") ==
        std::vector<std::string>{"2:11 restart.on: names no failure; max_restarts: 0 is for none"});
}

TEST_CASE("an empty value is an absent one where absence means something") {
  CHECK(job("command: x\ntimeout_s:\nworkdir: ~\nresources: null").workdir == "/work");
  CHECK(job_problems("command: x\nmax_restarts:\nname: y\n") ==
        std::vector<std::string>{"2:1 max_restarts: must be a whole number of 0 to 1000000, not "
                                 "empty [remove the key for its default]"});
  CHECK(job_problems("command: x\nenv: {A: }") ==
        std::vector<std::string>{
            "2:7 env.A: must be a text, not empty [write \"\" for an empty text]"});
}

TEST_CASE("every problem at once, each in its place") {
  const std::string text = R"(nam: mnist
command: [./train, {a: b}]
env:
  RANK: 3
  1X: y
  A: "${NOPE}"
nnodes: 0
nproc_per_node: auto
resources: {CPU: lots, GPU: 2.5, memory: 4Gx}
bundle: of
timeout_s: 1e99
stop_grace_s: "30"
checkpoint:
  num_to_keep: 0
  score_ordr: max
command: again
)";
  const std::vector<std::string> expected{
      "1:1 nam: no such key in a job YAML [did you mean name?]",
      "4:9 env.RANK: is set by dtrain for each rank, so it cannot be set here "
      "[docs/rank_contract.md lists these names]",
      "5:7 env.1X: '1X' is no name of an environment variable: letters, digits and _, not "
      "beginning with a digit",
      "6:6 env.A: the environment variable NOPE is not set [export NOPE=…, or write $${NOPE} for "
      "the text itself]",
      "7:9 nnodes: must be 1 to 10000, not 0",
      "8:17 nproc_per_node: 'auto' is no number of ranks: N, gpu or cpu [write gpu for one rank "
      "per GPU, or cpu for one rank per CPU]",
      "9:18 resources.CPU: must be a number of 0 to 1000000, not the text 'lots' [for example: "
      "CPU: 4]",
      "9:29 resources.GPU: must be a whole number of 0 to 1024, or below 1 a part of a GPU in "
      "ten-thousandths, not 2.5 [for example: GPU: 1, or GPU: 0.25]",
      "9:42 resources.memory: '4Gx' is no amount of memory: the units are kB MB GB TB PB and KiB "
      "MiB GiB TiB PiB [for example: 4GiB, 500MB, or a number of bytes]",
      "10:9 bundle: must be one of: auto, off, not 'of' [did you mean off?]",
      "11:12 timeout_s: must be a whole number of 1 to 315360000, not 1e99 [for example: "
      "timeout_s: 3600]",
      "12:15 stop_grace_s: must be a whole number of 0 to 86400, not the text '30' [remove the "
      "quotes]",
      "14:16 checkpoint.num_to_keep: must be a whole number of 1 to 1000000, not 0 [for example: "
      "num_to_keep: 3]",
      "15:3 checkpoint.score_ordr: no such key in checkpoint [did you mean score_order?]",
      "16:1 command: is there twice in this mapping, first in line 2",
  };
  CHECK(job_problems(text) == expected);
  try {
    parse_job_yaml(text, "job.yaml", environment());
  } catch (const SpecError& error) {
    CHECK(std::string(error.what()) ==
          "job.yaml:1:1: nam: no such key in a job YAML (and 14 more problems)");
    CHECK(error.code() == ErrorCode::invalid);
    CHECK(error.hint() == "did you mean name?");
  }
}

TEST_CASE("a missing command is said once, a wrong one too") {
  CHECK(job_problems("name: x") ==
        std::vector<std::string>{
            "1:1 command: is missing [for example: command: [./train, --epochs, 3]]"});
  CHECK(job_problems("").size() == 1);
  CHECK(job_problems("command: {a: b}").size() == 1);
  CHECK(job_problems("command: []").size() == 1);
  CHECK(job_problems("command: ''").size() == 1);
  CHECK(job_problems("- a").size() == 1);
  CHECK(job_problems("just text").size() == 1);
}

TEST_CASE("a text that YAML takes for something else wants quotes") {
  CHECK(job_problems("command: x\nname: 123") ==
        std::vector<std::string>{
            "2:7 name: must be a text, not the number 123 [put quotes around it]"});
  CHECK(job("command: x\nname: '123'").name == "123");
}

TEST_CASE("a secret's value in the file is refused and not repeated") {
  for (const char* text :
       {"command: x\nsecrets: {TOKEN: hunter2}", "command: x\nsecrets: [TOKEN=hunter2]",
        "command: x\nsecrets: {TOKEN: {value: hunter2}}", "command: x\nsecrets: [{TOKEN: hunter2}]",
        "command: x\nsecrets: hunter2", "command: x\nsecrets: {TOKEN: {file: [hunter2]}}",
        "command: x\nsecrets: {TOKEN: [hunter2]}"}) {
    CAPTURE(text);
    const auto problems = job_problems(text);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find("hunter2") == std::string::npos);
    CHECK(problems[0].find("{file: PATH}") != std::string::npos);
  }
  CHECK(job_problems("command: x\nsecrets: {TOKEN: hunter2}")[0].starts_with(
      "2:18 secrets.TOKEN: a secret's value does not belong into the file"));
  CHECK(job("command: x\nsecrets: {A: , B: {file: k}}").secrets ==
        std::vector<SecretSpec>{{"A", std::nullopt}, {"B", "/work/k"}});
}

TEST_CASE("variables are replaced in workdir, storage_path and env, and nowhere else") {
  const auto env = environment({{"V", "/v"}, {"E", ""}, {"N", "3"}});
  const JobSpec spec =
      job("command: [echo, '${V}']\nsetup: echo ${V}\nworkdir: ${V}/w\nstorage_path: ${V}\n"
          "env: {A: 'x${V}y${E}$$z$w$', B: '$${V}', C: '${N}'}\n",
          env);
  CHECK(spec.command == std::vector<std::string>{"echo", "${V}"});
  CHECK(spec.setup == "echo ${V}");
  CHECK(spec.workdir == "/v/w");
  CHECK(spec.storage_path == "/v");
  CHECK(spec.env.at("A") == "x/vy$z$w$");
  CHECK(spec.env.at("B") == "${V}");
  CHECK(spec.env.at("C") == "3");
  CHECK(contains(job_problems("command: x\nworkdir: ${V", env), "${ without its }"));
  CHECK(contains(job_problems("command: x\nworkdir: ${V:-x}", env), "${V:-x} is not ${NAME}"));
  CHECK(contains(job_problems("command: x\nworkdir: ${}", env), "is not ${NAME}"));
  CHECK(contains(job_problems("command: x\nenv: {A: ${V}}", env),
                 "put quotes around a text that contains ${…}"));
}

TEST_CASE("variables that are no text, or too much of it") {
  const auto env = environment({{"BAD", "\xff"}, {"BIG", std::string(100'000, 'a')}});
  CHECK(contains(job_problems("command: x\nworkdir: ${BAD}", env), "BAD is not UTF-8"));
  std::string text = "command: x\nenv:\n";
  for (int i = 0; i < 400; ++i) text += "  A" + std::to_string(i) + ": ${BIG}\n";
  CHECK(contains(job_problems(text, env), "longer than 16 MiB"));
}

TEST_CASE("a home that is not known") {
  const Environment nothing = [](const std::string&) { return std::nullopt; };
  CHECK(contains(job_problems("command: x\nworkdir: ~/x", nothing), "HOME is not set"));
  CHECK(job("command: x\nworkdir: ~/x").workdir == "/home/me/x");
}

TEST_CASE("keys that other tools have are explained") {
  CHECK(contains(job_problems("provider: {type: local}\ncommand: x"), "dtrain up"));
  CHECK(contains(job_problems("num_nodes: 2\ncommand: x"), "nnodes"));
  CHECK(contains(job_problems("run: x"), "what to run is command"));
}

TEST_CASE("resources of one's own, and rules for labels") {
  const auto problem = [](const std::string& text) {
    const std::vector<std::string> all = job_problems("command: x\n" + text);
    return all.size() == 1 ? all.front() : std::to_string(all.size()) + " problems";
  };
  CHECK(problem("resources: {tpu: many}") ==
        "2:18 resources.tpu: must be a number, not a text [for example: tpu: 1]");
  CHECK(problem("resources: {tpu: -1}").starts_with("2:18 resources.tpu: "));
  CHECK(problem("resources: {gpu: 1}") ==
        "2:18 resources.gpu: is no name of your own [did you mean GPU?]");
  CHECK(
      problem("label_selector: {a: in(b}").starts_with("2:21 label_selector.a: 'in(b' is no rule"));
  CHECK(problem("label_selector: {a: '!'}").starts_with("2:21 label_selector.a: '!' is no rule"));
  const std::string gold = "gold";
  const std::string tin = "tin";
  CHECK(parse_label_rule("gold").takes(&gold));
  CHECK_FALSE(parse_label_rule("gold").takes(&tin));
  CHECK_FALSE(parse_label_rule("gold").takes(nullptr));
  CHECK(parse_label_rule("!gold").takes(&tin));
  CHECK(parse_label_rule("!gold").takes(nullptr));
  CHECK(parse_label_rule("in(silver, gold)").takes(&gold));
  CHECK_FALSE(parse_label_rule("!in(silver,gold)").takes(&gold));
}
