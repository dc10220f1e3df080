#include "trainer/core/stacks.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;
using test::contains;
using test::read_file;
using test::TemporaryFolder;

TEST_CASE("the stacks of all threads, asked for twice") {
  std::atomic<bool> ends{false};
  std::atomic<int> there{0};
  const auto wait = [&] {
    ++there;
    while (!ends) ::usleep(1000);
  };
  std::thread one(wait);
  std::thread two(wait);
  while (there < 2) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) {
    const std::string stacks = native_stacks();
    CAPTURE(stacks);
    std::size_t threads = 0;
    for (auto at = stacks.find("thread "); at != std::string::npos;
         at = stacks.find("thread ", at + 1)) {
      ++threads;
    }
    CHECK(threads == 3);
    CHECK(contains(stacks, "nanosleep"));
    CHECK(!contains(stacks, "does not answer"));
  }
  ends = true;
  one.join();
  two.join();
}

TEST_CASE("a fatal signal leaves message, step and stack, and ends the process as ever") {
  const TemporaryFolder folder;
  const std::string path = (folder / "error \"1\".json").string();
  for (const int signal : {SIGSEGV, SIGABRT}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(9);
      ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
      for (const int fatal : {SIGSEGV, SIGABRT}) ::signal(fatal, SIG_DFL);  // doctest's
      install_crash_reports();
      set_crash_step(7);
      ::raise(signal);
      ::_exit(9);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    const nlohmann::json error = nlohmann::json::parse(read_file(path));
    const auto message = error.at("message").at("message").get<std::string>();
    CHECK(contains(message, signal == SIGSEGV ? "SIGSEGV" : "SIGABRT"));
    CHECK(contains(message, "after step 7"));
    CHECK(contains(error.at("message").at("extraInfo").at("native_stack").get<std::string>(),
                   "trainer_core_test"));
  }
}
