#include <doctest/doctest.h>
#include <sys/wait.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "agent/node/stacks.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

const JobId kHangs("train-abcdef");

wire::TakeStacks look_of(int attempt = 1) {
  return {kHangs, attempt, from_millis(1767323045500), "hang: no progress for 5 m 00 s",
          {0, 1}, ""};
}

// A node whose dtrain-profiler is a script.
struct Profiled {
  TemporaryFolder folder;
  boost::asio::io_context context{1};
  std::vector<wire::StacksTaken> said;
  std::unique_ptr<node::Stacks> stacks;

  explicit Profiled(const std::string& script) {
    const fs::path program = folder / "profiler";
    write_file_atomic(program, "#!/bin/sh\n" + script + "\n", 0755);
    ::setenv("DTRAIN_PROFILER", program.c_str(), 1);
    stacks =
        std::make_unique<node::Stacks>(context.get_executor(), paths::NodeRoot{folder / "root"},
                                       [this](const wire::NodeMessage& message) {
                                         said.push_back(std::get<wire::StacksTaken>(message));
                                       });
    fs::create_directories(file().parent_path());
  }
  ~Profiled() {
    stacks.reset();
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::unsetenv("DTRAIN_PROFILER");
  }
  fs::path file() const {
    return paths::attempt(paths::NodeRoot{folder / "root"}, kHangs, 1).stacks();
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> lines;
    for (const std::string& line : split(read_file(file()), '\n')) {
      if (!line.empty()) lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  wire::StacksTaken until_taken() {
    const auto limit = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (said.empty()) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      context.restart();
      context.run_one_for(1s);
    }
    const wire::StacksTaken taken = said.back();
    said.clear();
    return taken;
  }
};

}  // namespace

TEST_CASE("each look at an attempt's ranks is a line of its file") {
  Profiled machine(
      "echo 'profiler: no version information available' >&2\n"
      "echo '{\"rank\": 0, \"words\": \"'\"$*\"'\"}'; echo '{\"rank\": 1}'");
  machine.stacks->take(look_of());
  // Of those that come while it is at that the newest takes its place.
  wire::TakeStacks later = look_of();
  for (const int second : {1, 2}) {
    later.at = look_of().at + std::chrono::seconds(second);
    machine.stacks->take(later);
  }
  wire::StacksTaken taken = machine.until_taken();
  CHECK(taken.job == kHangs);
  CHECK(taken.attempt == 1);
  CHECK(taken.at == look_of().at);
  REQUIRE(taken.error);
  CHECK(taken.error->code() == ErrorCode::conflict);
  taken = machine.until_taken();
  CHECK(taken.at == later.at);
  CHECK(taken.kept);
  CHECK_FALSE(taken.error);
  const auto lines = machine.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("at") == "2026-01-02T03:04:05.500Z");
  CHECK(lines[1].at("at") == "2026-01-02T03:04:07.500Z");
  CHECK(lines[0].at("reason") == "hang: no progress for 5 m 00 s");
  CHECK(lines[0].at("error").at("code") == "conflict");
  REQUIRE(lines[1].at("processes").size() == 2);
  CHECK(lines[1].at("processes")[0].at("words") ==
        "stacks --job train-abcdef --attempt 1 --ranks 0,1");
  CHECK(lines[1].at("processes")[1].at("rank") == 1);
  CHECK(lines[1].at("ranks") == std::vector<int>{0, 1});
  CHECK_FALSE(lines[1].contains("error"));
}

TEST_CASE("a profiler that fails, or is not there, is a line and an answer too") {
  Profiled machine("echo 'dtrain-profiler: no such thing' >&2; exit 1");
  machine.stacks->take(look_of());
  wire::StacksTaken taken = machine.until_taken();
  REQUIRE(taken.error);
  CHECK(taken.error->message() == "dtrain-profiler: no such thing");
  CHECK(machine.lines()[0].at("error").at("message") == "dtrain-profiler: no such thing");
  fs::remove(machine.folder / "profiler");
  machine.stacks->take(look_of());
  taken = machine.until_taken();
  REQUIRE(taken.error);
  CHECK(taken.error->message().find("no program that can be started") != std::string::npos);
  CHECK(machine.lines().size() == 2);
  // Of a job whose files went the answer comes all the same.
  machine.stacks->take(look_of(2));
  CHECK(machine.until_taken().error->code() == ErrorCode::not_found);
}

TEST_CASE("a rank that is missing in a look is told, with what was said, and the others are kept") {
  const auto error_of = [](const std::string& said) {
    const node::LookLine its = node::look_line(look_of(), said, std::nullopt);
    const nlohmann::json look = nlohmann::json::parse(its.line);
    CHECK(look.contains("error") == its.error.has_value());
    return its.error ? its.error->message() : "";
  };
  const std::string both = "{\"rank\": 0}\n{\"rank\": 1}\n";
  CHECK(error_of(both).empty());
  CHECK(error_of("a loader's note\n" + both).empty());
  CHECK(error_of("{\"rank\": 0}\n") == "a rank has no process");
  CHECK(error_of("{\"rank\": 0}\n{\"rank\": 1, \"a part of") == "{\"rank\": 1, \"a part of");
  CHECK(error_of("") == "dtrain-profiler has found nothing");
  const std::string denied = "{\"rank\": 0, \"error\": {\"message\": \"not permitted\"}}\n";
  CHECK(error_of(denied + "{\"rank\": 1}\n") == "not permitted");
  CHECK_FALSE(node::look_line(look_of(), denied, std::nullopt).some);
  CHECK(node::look_line(look_of(), both, std::nullopt).some);
  CHECK(error_of(std::string(1 << 20, 'x')).size() == 500);
  const node::LookLine part = node::look_line(look_of(), "{\"rank\": 1}\n", std::nullopt);
  CHECK(nlohmann::json::parse(part.line).at("processes").size() == 1);
}

TEST_CASE("what ends meanwhile takes its profiler with it") {
  Profiled machine("exec sleep 1000");
  machine.stacks->take(look_of());
  machine.stacks.reset();
  int status = 0;
  CHECK(::waitpid(-1, &status, 0) > 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("a file of stacks has an end, which is said, and no line is joined to a part of one") {
  const TemporaryFolder folder;
  const fs::path file = folder / "stacks.jsonl";
  std::ofstream(file) << "{\"at\": \"a part of";
  node::keep_look(file, "{}\n");
  node::keep_look(file, "{}\n");
  CHECK(read_file(file) == "{\"at\": \"a part of\n{}\n{}\n");
  fs::resize_file(file, node::kStacksLimit - 2);
  CHECK_THROWS_WITH_AS(node::keep_look(file, "{}\n"),
                       doctest::Contains("no more than 64.0 MiB are kept of an attempt on a node"),
                       Error);
  CHECK(fs::file_size(file) == node::kStacksLimit - 2);
}
