#include "cli/job_flags.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include <CLI/CLI.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/spec/table.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;

namespace {

const Lookup kEnvironment = [](const std::string& name) -> std::optional<std::string> {
  if (name == "HERE") return "value";
  return std::nullopt;
};

JobSpec applied(JobSpec spec, const JobFlags& flags,
                const std::optional<CommandWords>& command = std::nullopt) {
  apply_job_flags(spec, flags, command, "/work dir", kEnvironment);
  return spec;
}

std::string message_of(const JobFlags& flags) {
  try {
    applied({}, flags);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.message();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("without flags a job from a YAML stays as it is") {
  JobSpec spec;
  spec.name = "job";
  spec.command = {"./train"};
  spec.workdir = "/yaml";
  spec.env["A"] = "1";
  CHECK(applied(spec, {}) == spec);
}

TEST_CASE("flags win over the YAML, key by key") {
  JobSpec spec;
  spec.name = "job";
  spec.command = {"old"};
  spec.shell = true;
  spec.workdir = "/yaml";
  spec.env = {{"A", "1"}, {"B", "2"}};
  spec.secrets = {{"TOKEN", std::nullopt}};
  spec.resources.gpu = 1;
  JobFlags flags;
  flags.nnodes = "2:4";
  flags.nproc_per_node = "gpu";
  flags.workdir = "sub/../other";
  flags.env = {"B=x=y", "HERE"};
  flags.secrets = {"TOKEN=token.txt"};
  flags.cpus = 2.5;
  flags.memory = "1KiB";
  flags.resources = {"tpu=1.5"};
  flags.labels = {"tier=!tin"};
  flags.storage_path = "store";
  flags.max_restarts = 3;
  flags.stop_grace_s = 5;
  flags.timeout_s = 60;
  flags.queue_timeout_s = 7;
  flags.log_limit = "32MiB";
  flags.cpu_bind = "cores";
  flags.priority = -1;
  flags.num_to_keep = 2;
  flags.score_attribute = "loss";
  flags.score_order = "min";
  const JobSpec merged = applied(spec, flags, CommandWords{{"./new", "--x"}, false});
  CHECK(merged.name == "job");
  CHECK(merged.command == std::vector<std::string>{"./new", "--x"});
  CHECK(!merged.shell);
  CHECK(merged.nnodes == NodeCount{2, 4});
  CHECK(merged.nproc_per_node.kind == ProcsKind::gpu);
  CHECK(merged.workdir == "/work dir/other");
  CHECK(merged.env ==
        std::map<std::string, std::string>{{"A", "1"}, {"B", "x=y"}, {"HERE", "value"}});
  REQUIRE(merged.secrets.size() == 1);
  CHECK(merged.secrets[0].file == "/work dir/token.txt");
  CHECK(merged.resources.cpu == 2.5);
  CHECK(merged.resources.gpu == 1);
  CHECK(merged.resources.memory == 1024U);
  CHECK(merged.custom_resources == std::map<std::string, double>{{"tpu", 1.5}});
  CHECK(merged.label_selector == std::map<std::string, std::string>{{"tier", "!tin"}});
  CHECK(merged.resources_given);
  CHECK(merged.storage_path == "/work dir/store");
  CHECK(merged.max_restarts == 3);
  CHECK(merged.stop_grace == std::chrono::seconds(5));
  CHECK(merged.timeout == std::chrono::seconds(60));
  CHECK(merged.queue_timeout == std::chrono::seconds(7));
  CHECK(merged.log_limit == std::uint64_t{32} << 20);
  CHECK(merged.cpu_bind == CpuBind::cores);
  CHECK(merged.priority == -1);
  CHECK(merged.checkpoint.num_to_keep == 2);
  CHECK(merged.checkpoint.score_attribute == "loss");
  CHECK(merged.checkpoint.score_order == ScoreOrder::min);
}

TEST_CASE("each key of a job YAML is a flag but two, and each flag is of a key") {
  JobFlags flags;
  CLI::App app;
  add_job_flags(app, flags);
  // Flags that are named otherwise than their keys, and those of keys within a key.
  const std::map<std::string, std::string> keys = {
      {"secret", "secrets"},         {"cpus", "resources"},
      {"gpus", "resources"},         {"memory", "resources"},
      {"resource", "resources"},     {"num_to_keep", "checkpoint"},
      {"score_order", "checkpoint"}, {"score_attribute", "checkpoint"}};
  std::set<std::string> without;
  for (const spec::Key& key : spec::job_table().keys) without.insert(key.name);
  without.erase("command");  // it stands behind --
  for (const CLI::Option* option : app.get_options()) {
    for (std::string name : option->get_lnames()) {
      if (name == "help") continue;
      std::replace(name.begin(), name.end(), '-', '_');
      const std::string key = keys.contains(name) ? keys.at(name) : name;
      CAPTURE(name);
      CHECK(spec::job_table().find(key) != nullptr);
      without.erase(key);
    }
  }
  CHECK(without == std::set<std::string>{"bundle", "restart"});  // as docs/cli.md says
}

TEST_CASE("a program alone gets a name and this folder") {
  const JobSpec spec = applied({}, {}, CommandWords{{"./bin/train", "--epochs", "3"}, false});
  CHECK(spec.name == "train");
  CHECK(spec.workdir == "/work dir");
}

TEST_CASE("a wrong value names its flag") {
  JobFlags flags;
  flags.nnodes = "four";
  CHECK(message_of(flags).find("--nnodes: ") == 0);
  flags = {};
  flags.nproc_per_node = "tpu";
  CHECK(message_of(flags).find("--nproc-per-node: ") == 0);
  flags = {};
  flags.env = {"NOT_THERE"};
  CHECK(message_of(flags).find("--env NOT_THERE") == 0);
  flags = {};
  flags.timeout_s = -1;
  CHECK(message_of(flags).find("--timeout-s") == 0);
}

TEST_CASE("secrets: from the environment or a file; a missing one is named, never a value") {
  const testing::TemporaryFolder folder;
  write_file_atomic(folder / "token", "from file\n");
  JobSpec spec;
  spec.secrets = {{"HERE", std::nullopt}, {"TOKEN", (folder / "token").string()}};
  CHECK(read_secrets(spec, kEnvironment) ==
        std::map<std::string, std::string>{{"HERE", "value"}, {"TOKEN", "from file"}});
  write_file_atomic(folder / "bytes", "\xe9 very-secret");
  spec.secrets = {{"KEY", (folder / "bytes").string()}};
  try {
    read_secrets(spec, kEnvironment);
    FAIL("a value that would come there as another");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    CHECK(error.message() == "the value of secret KEY is not UTF-8");
    CHECK(error.hint().find("base64") != std::string::npos);
  }
  spec.secrets = {{"MISSING", std::nullopt}};
  CHECK_THROWS_AS(read_secrets(spec, kEnvironment), Error);
  spec.secrets = {{"TOKEN", (folder / "nothing").string()}};
  CHECK_THROWS_AS(read_secrets(spec, kEnvironment), Error);
}

TEST_CASE("a part of a GPU by a flag") {
  JobFlags flags;
  flags.gpus = "0.25";
  CHECK(applied({}, flags, CommandWords{{"x"}, false}).resources.gpu->parts == 2500);
  flags.gpus = "1.5";
  CHECK_THROWS_WITH_AS(applied({}, flags, CommandWords{{"x"}, false}),
                       "--gpus: must be a whole number of 0 to 1024, or below 1 a part of a GPU in "
                       "ten-thousandths, not 1.5",
                       Error);
}
