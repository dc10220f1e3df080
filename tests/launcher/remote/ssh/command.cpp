#include "launcher/remote/ssh/command.hpp"

#include <doctest/doctest.h>

#include <random>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"

using namespace dtrain;

namespace {

std::string run_by(const std::string& shell, const std::string& line) {
  SpawnOptions options;
  options.argv = {shell, "-c", line};
  const Captured ran = capture(options, {}, std::chrono::seconds(20));
  CHECK(ran.exit.str() == "exit code 0");
  CHECK(ran.err == "");
  return ran.out;
}

}  // namespace

TEST_CASE("shell_command: plain words stay readable") {
  const std::vector<std::string> argv = {"ls", "-l", "/tmp"};
  CHECK(ssh::shell_command(argv) == "exec /bin/sh -c 'exec ls -l /tmp'");
  CHECK_THROWS_AS(ssh::shell_command(std::string_view("a\0b", 3)), Error);
}

TEST_CASE("shell_command: every shell that is here gives each word unchanged") {
  std::vector<std::string> argv = {"printf", "%s\\0"};
  std::string all;
  for (int c = 1; c < 256; ++c) {
    all += static_cast<char>(c);
    argv.push_back(std::string(1, static_cast<char>(c)));
    argv.push_back("a" + std::string(2, static_cast<char>(c)) + "b");
  }
  argv.insert(argv.end(),
              {all,    "",    "''", "!!", "\\\\", "\\'", "$HOME", "${x}", "`id`", "$(id)",
               "%d%%", "a\n", "\n", "~",  "=ls",  "*",   "{a,b}", "#",    "-n",   "\\0041"});
  std::minstd_rand random(7);
  for (int i = 0; i < 300; ++i) {
    std::string word(random() % 12, '\0');
    for (char& c : word) c = static_cast<char>(1 + random() % 255);
    argv.push_back(word);
  }
  std::string expected;
  for (std::size_t i = 2; i < argv.size(); ++i) expected += argv[i] + std::string(1, '\0');
  const std::string line = ssh::shell_command(argv);
  int shells = 0;
  for (const char* shell : {"/bin/sh", "/bin/bash", "/bin/dash", "/usr/bin/zsh", "/usr/bin/fish",
                            "/bin/csh", "/bin/tcsh", "/bin/ksh", "/bin/mksh"}) {
    if (!fs::exists(shell)) continue;
    ++shells;
    CAPTURE(shell);
    CHECK(run_by(shell, line) == expected);
  }
  CHECK(shells >= 1);
}

TEST_CASE("marker: what comes before it is noise, byte by byte or at once") {
  const std::string marker = ssh::make_marker();
  CHECK(marker != ssh::make_marker());
  const std::string out = run_by(
      "/bin/sh", "echo chatter; " +
                     ssh::shell_command(ssh::marked_script(marker, "exec echo \"it's\" mine")) +
                     " 2>/dev/null");
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, out.size()}) {
    ssh::MarkerFilter filter(marker);
    std::string kept;
    for (std::size_t at = 0; at < out.size(); at += step) {
      const std::string_view piece = std::string_view(out).substr(at, step);
      kept += piece.substr(filter.feed(piece));
    }
    CHECK(filter.found());
    CHECK(kept == "it's mine\n");
    CHECK(filter.noise() == "chatter\n");
  }
}

TEST_CASE("marker: noise without end is bounded") {
  ssh::MarkerFilter filter("marker");
  const std::string noise(100000, 'x');
  for (int i = 0; i < 20; ++i) CHECK(filter.feed(noise) == noise.size());
  CHECK_FALSE(filter.found());
  CHECK(filter.noise().size() < 40000);
  CHECK(filter.feed("marker\nrest") == 7);
}
