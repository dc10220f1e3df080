#include <doctest/doctest.h>
#include <sys/wait.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <fstream>

#include "agent/node/preparing.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

struct Machine {
  TemporaryFolder folder;
  boost::asio::io_context context{1};
  std::vector<wire::Preparing> said;
  node::Relay relay{paths::NodeRoot{folder / "root"}, ClusterId("lab-abcdef")};
  std::unique_ptr<node::Preparing> preparing;

  // Stands for the agent's own program.
  explicit Machine(const std::string& script) {
    const fs::path program = folder / "program";
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program, fs::perms(0755));
    preparing =
        std::make_unique<node::Preparing>(context.get_executor(), paths::NodeRoot{folder / "root"},
                                          program, relay, [this](const wire::NodeMessage& message) {
                                            said.push_back(std::get<wire::Preparing>(message));
                                          });
    fs::create_directories(folder / "root");
  }
  ~Machine() {
    preparing.reset();
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }

  void until_done(const std::string& key) {
    const auto limit = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (std::none_of(said.begin(), said.end(),
                        [&](const auto& each) { return each.done && each.key == key; })) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      context.restart();
      context.run_one_for(1s);
    }
  }
  // The processes that have begun, a line each.
  void until_began(const std::string& lines) {
    const auto limit = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (read_file_if_there(folder / "root/began").value_or("") != lines) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      context.restart();
      context.run_one_for(5ms);
    }
  }
};

wire::PrepareNode wanted(const std::string& key) {
  wire::PrepareNode message;
  message.key = key;
  message.preparation.lists = {{"worker_setup", {"true"}}};
  return message;
}

std::string line(const std::string& key, const std::string& more) {
  return R"(echo '{"type": "preparing", "key": ")" + key + R"(", )" + more + "}'";
}

}  // namespace

TEST_CASE("what the process says is passed on, its last word when it has ended") {
  Machine machine(line("k1", R"("step": "setup", "text": "first")") + "\n" +
                  line("k1", R"("step": "ready", "text": "", "done": true)"));
  machine.preparing->begin(wanted("k1"));
  machine.until_done("k1");
  REQUIRE(machine.said.size() == 3);
  CHECK(machine.said[0].step == "start");
  CHECK(machine.said[1].text == "first");
  CHECK_FALSE(machine.said[2].error);
  CHECK(machine.preparing->trees().empty());
  // What it is to do lies in a file.
  CHECK(read_file(machine.folder / "root/preparation.json").find("worker_setup") !=
        std::string::npos);
}

TEST_CASE("that others wait for its files is between the node's own processes") {
  Machine machine(line("k1", R"("step": "files", "text": "", "wanted": true)") + "\n" +
                  line("k1", R"("step": "ready", "text": "", "done": true)"));
  machine.preparing->begin(wanted("k1"));
  machine.until_done("k1");
  REQUIRE(machine.said.size() == 2);
  CHECK(machine.said[0].step == "start");
  CHECK_FALSE(machine.said[1].error);
}

TEST_CASE("a process that ends without a word, or cannot be started, is an error") {
  Machine machine(line("k1", R"("step": "setup", "text": "first")") + "\nkill -9 $$");
  machine.preparing->begin(wanted("k1"));
  machine.until_done("k1");
  REQUIRE(machine.said.back().error);
  CHECK(machine.said.back().error->message().find("without a word") != std::string::npos);
  fs::remove(machine.folder / "program");
  machine.said.clear();
  machine.preparing->begin(wanted("k1"));
  machine.until_done("k1");
  CHECK(machine.said.back().error);
}

TEST_CASE("where nothing is to be done no process is started") {
  Machine machine("exit 1");
  wire::PrepareNode nothing;
  nothing.key = "k1";
  machine.preparing->begin(nothing);
  machine.until_done("k1");
  CHECK_FALSE(machine.said.back().error);
  CHECK(machine.preparing->prepared() == "k1");
}

TEST_CASE("a repeat hears how far it is, and another takes its place") {
  Machine machine(
      "read key <" + std::string("/dev/null") +
      "\nkey=$(sed 's/.*\"key\":\"\\(k[0-9]\\)\".*/\\1/' " +
      "\"$3/preparation.json\")\necho \"$key\" >>\"$3/began\"\n" +
      "while [ ! -e \"$3/go\" ]; do sleep 0.02; done\n" +
      R"(echo "{\"type\": \"preparing\", \"key\": \"$key\", \"step\": \"\", \"text\": \"\", \"done\": true}")");
  machine.preparing->begin(wanted("k1"));
  machine.until_began("k1\n");
  machine.preparing->begin(wanted("k2"));
  machine.preparing->begin(wanted("k3"));
  CHECK(machine.said.back().step == "wait");
  machine.preparing->begin(wanted("k3"));
  std::ofstream(machine.folder / "root/go") << "";
  machine.until_done("k3");
  machine.until_began("k1\nk3\n");
  // And the one that is at work, asked for anew, is the last.
  fs::remove(machine.folder / "root/go");
  machine.said.clear();
  machine.preparing->begin(wanted("k4"));
  machine.until_began("k1\nk3\nk4\n");
  machine.preparing->begin(wanted("k5"));
  machine.preparing->begin(wanted("k4"));
  std::ofstream(machine.folder / "root/go") << "";
  machine.until_done("k4");
  machine.until_began("k1\nk3\nk4\nk4\n");
  CHECK_FALSE(machine.said.back().error);
  CHECK(machine.preparing->trees().empty());
}
