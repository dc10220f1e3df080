#include <doctest/doctest.h>

#include <CLI/CLI.hpp>

#include "cli/completion_script.hpp"
#include "cli/context.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;

TEST_CASE("every verb and option is in every shell's script, and has a description") {
  const CommandLine line;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    CAPTURE(shell);
    const std::string script = completion_script(*line.app, shell);
    std::vector<std::pair<std::string, const CLI::App*>> verbs;  // also those behind others
    for (const CLI::App* verb : line.app->get_subcommands({})) {
      verbs.emplace_back(verb->get_name(), verb);
      for (const CLI::App* sub : verb->get_subcommands({})) {
        verbs.emplace_back(verb->get_name() + " " + sub->get_name(), sub);
      }
    }
    for (const auto& each : verbs) {
      const CLI::App* verb = each.second;
      if (verb->get_group().empty()) continue;  // not for show
      CAPTURE(each.first);
      CHECK(script.find(verb->get_name()) != std::string::npos);
      CHECK(!verb->get_description().empty());
      CHECK(verb->get_footer().find("dtrain " + each.first) != std::string::npos);
      for (const CLI::Option* option : verb->get_options()) {
        if (option->get_group().empty()) continue;  // another's spelling, not for show
        CHECK(!option->get_description().empty());
        for (const std::string& name : option->get_lnames()) {
          CAPTURE(name);
          const std::string wanted = std::string(shell) == "fish" ? "-l " + name : "--" + name;
          CHECK(script.find(wanted) != std::string::npos);
        }
      }
    }
  }
  CHECK_THROWS_AS(completion_script(*line.app, "tcsh"), Error);
}

TEST_CASE("bash completes verbs, options, values and files") {
  const CommandLine line;
  const std::string script = completion_script(*line.app, "bash");
  const auto complete = [&](const std::string& words) {
    SpawnOptions options;
    options.argv = {"/bin/bash", "--norc", "-c",
                    script + "COMP_WORDS=(" + words +
                        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _dtrain; "
                        "echo \"${COMPREPLY[*]}\""};
    options.env = {"PATH=/usr/bin:/bin"};
    const Captured captured = capture(options, {}, std::chrono::seconds(20));
    CHECK(captured.err == "");
    return captured.out;
  };
  CHECK(complete("dtrain sub") == "submit\n");
  CHECK(complete("dtrain st") == "status stop stack\n");
  CHECK(complete("dtrain submit --nproc") == "--nproc-per-node\n");
  CHECK(complete("dtrain submit --nproc-per-node ''") == "gpu cpu\n");
  CHECK(complete("dtrain -c x submit --score-order m") == "max min\n");
  CHECK(complete("dtrain completion z") == "zsh\n");
  CHECK(complete("dtrain tune st") == "status stop\n");
  CHECK(complete("dtrain tune --scheduler m") == "median_stopping\n");
  CHECK(complete("dtrain tune result --c") == "--csv --cluster --cluster-name\n");
  CHECK(complete("dtrain -c x tune plot --kind p") == "params\n");
}

TEST_CASE("zsh's script is sourced, or found in fpath under its function's name") {
  const CommandLine line;
  const dtrain::testing::TemporaryFolder folder;
  write_file_atomic(folder / "_dtrain", completion_script(*line.app, "zsh"));
  SpawnOptions options;
  options.argv = {"zsh", "-fc",
                  "compdef() { echo compdef $*; }; _arguments() { echo arguments; }\n"
                  "(source $0/_dtrain)\nfpath=($0); autoload -Uz _dtrain; _dtrain",
                  folder.path().string()};
  options.env = {"PATH=/usr/bin:/bin"};
  const Captured captured = capture(options, {}, std::chrono::seconds(20));
  CHECK(captured.err == "");
  CHECK(captured.out == "compdef _dtrain dtrain\narguments\n");
}
