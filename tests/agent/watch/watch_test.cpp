#include "agent/watch/watch.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"
#include "tests/agent/watch/eventually.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;

namespace {

// Runs watch_main in a child process on `folder`.
pid_t start_watch(const fs::path& folder) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 1;
    try {
      code = watch::watch_main({folder});
    } catch (const Error&) {
      code = 3;
    }
    ::_exit(code);
  }
  return pid;
}

std::size_t lines_of(const fs::path& file) {
  const auto text = read_file_if_there(file);
  return text ? static_cast<std::size_t>(std::count(text->begin(), text->end(), '\n')) : 0;
}

}  // namespace

TEST_CASE("a child that lived long is started at once, one that dies at once ever later") {
  watch::Backoff backoff;
  CHECK(backoff.next(0ms) == 0ms);
  CHECK(backoff.next(5ms) == 100ms);
  CHECK(backoff.next(5ms) == 200ms);
  for (int i = 0; i < 10; ++i) backoff.next(5ms);
  CHECK(backoff.next(5ms) == 10s);
  CHECK(backoff.next(11s) == 0ms);
}

TEST_CASE("watch.json is read strictly") {
  const testing::TemporaryFolder folder;
  write_file_atomic(folder / "watch.json", R"({"children":[{"name":"a","argv":["/bin/true"]}]})");
  CHECK(watch::read_children({folder.path()}) ==
        std::vector<watch::ChildSpec>{{"a", {"/bin/true"}}});
  for (const char* wrong : {"", "[]", R"({"children":{}})", R"({"children":[{"name":"a"}]})",
                            R"({"children":[{"name":"a","argv":[]}]})"}) {
    write_file_atomic(folder / "watch.json", wrong);
    CHECK_THROWS_AS(watch::read_children({folder.path()}), Error);
  }
}

TEST_CASE("a killed child is back at once, and outlives the watch") {
  const testing::TemporaryFolder folder;
  const fs::path pids = folder / "pids";
  const nlohmann::json config = {
      {"children",
       {{{"name", "child"},
         {"argv", {"/bin/sh", "-c", "echo $$ >>" + pids.string() + "; exec sleep 1000"}}}}}};
  write_file_atomic(folder / "watch.json", config.dump());
  const pid_t watcher = start_watch(folder.path());
  REQUIRE(eventually([&] { return lines_of(pids) == 1; }));
  const auto pid_at = [&](std::size_t line) {
    std::size_t at = 0;
    const std::string text = read_file(pids);
    for (std::size_t i = 0; i < line; ++i) at = text.find('\n', at) + 1;
    return static_cast<pid_t>(std::stoi(text.substr(at)));
  };
  ::kill(pid_at(0), SIGKILL);
  REQUIRE(eventually([&] { return lines_of(pids) == 2; }));

  SUBCASE("a second watch on the same root is refused") {
    const pid_t second = start_watch(folder.path());
    CHECK(wait(second).code == 3);
  }
  SUBCASE("watch.pid names it") {
    const auto json = nlohmann::json::parse(read_file(folder / "watch.pid"));
    CHECK(json["pid"] == watcher);
    CHECK(json["start_time"] == start_time(watcher).value());
  }
  ::kill(watcher, SIGTERM);
  CHECK(wait(watcher).ok());
  CHECK_FALSE(fs::exists(folder / "watch.pid"));
  const pid_t child = pid_at(1);
  CHECK(start_time(child).has_value());
  ::kill(child, SIGKILL);
}
