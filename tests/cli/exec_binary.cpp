// dtrain exec, attach and monitor: the real `dtrain` against a head that says what a test wants it
// to say.
#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <future>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/cli/house.hpp"

using namespace dtrain;
using namespace dtrain::cli::test;
using dtrain::testing::FakeHead;
using nlohmann::json;

TEST_CASE("exec, attach and monitor without a cluster: 255 is dtrain's own trouble") {
  House house;
  SpawnOptions options = house.options({});
  options.env = {"PATH=/usr/bin:/bin", "XDG_STATE_HOME=" + house.work.string()};
  for (const auto& expected :
       {std::pair{"monitor", 255}, std::pair{"exec", 255}, std::pair{"status", 4}}) {
    CAPTURE(expected.first);
    options.argv = {DTRAIN_BIN, expected.first};
    if (std::string(expected.first) == "exec") options.argv.emplace_back("true");
    CHECK(capture(options, {}, kLimit).exit.code == expected.second);
  }
}

TEST_CASE("exec: stdin goes there, output comes back, the largest exit code wins") {
  House house;
  json opening;
  house.serve([](const FakeHead::Request&) -> FakeHead::Response { return {}; },
              [&](FakeHead::Connection& connection) {
                opening = json::parse(connection.read().value_or("{}"));
                if (opening["nodes"] != "all") {
                  std::string input;
                  while (auto frame = connection.read()) {
                    if (*frame == R"({"type":"eof"})") break;
                    input += *frame;
                  }
                  connection.text(R"({"type":"output","node":"node-0","stream":"out","bytes":1})");
                  connection.binary(input);
                  connection.text(R"({"type":"exit","node":"node-0","exit_code":7})");
                } else {
                  connection.text(R"({"type":"output","node":"node-1","stream":"out","bytes":3})");
                  connection.binary("hi\n");
                  connection.text(R"({"type":"exit","node":"node-0","exit_code":3})");
                  connection.text(R"({"type":"exit","node":"node-1","exit_code":9})");
                }
                connection.text(R"({"type":"end"})");
                connection.close();
              });
  std::string input;
  for (int i = 0; i < 100000; ++i) input += "line\n";
  const Captured one = house.run({"exec", "--node", "node-0", "--", "cat", "-n"}, input);
  CHECK(one.exit.code == 7);
  CHECK(one.out == input);
  CHECK(opening["command"] == json({"cat", "-n"}));
  CHECK(opening["nodes"] == json({"node-0"}));
  CHECK(opening["shell"] == false);
  const Captured all = house.run({"exec", "--all", "ls | wc -l"});
  CHECK(all.exit.code == 9);
  CHECK(all.out == "[node-1] hi\n");
  CHECK(opening["shell"] == true);
}

TEST_CASE("a word in square brackets stays as it was typed") {
  House house;
  json opening;
  house.serve_job([&](FakeHead::Connection& connection) {
    if (has(connection.target(), "/v1/exec")) {
      opening = json::parse(connection.read().value_or("{}"));
      connection.text(R"({"type":"exit","node":"node-0","exit_code":0})");
      connection.text(R"({"type":"end"})");
    } else {
      connection.text(end_frame("succeeded", 0));
    }
    connection.close();
  });
  for (const char* typed : {"[ a, b ]", "[ -f /data/x ]", "[[ -f x ]"}) {
    CAPTURE(typed);
    CHECK(house.run({"exec", typed}).exit.code == 0);
    CHECK(opening["command"] == json::array({typed}));
    CHECK(opening["shell"] == true);
    CHECK(house.run({"submit", typed}).exit.code == 0);
    CHECK(house.submitted["spec"]["command"] == typed);  // a text: a shell's
  }
  CHECK(house.run({"exec", "--workdir", "[d]", "echo", "[a,b]"}).exit.code == 0);
  CHECK(opening["command"] == json({"echo", "[a,b]"}));
  CHECK(opening["workdir"] == "[d]");
  const Captured refused = house.run({"pull", "a", "[b]"});
  CHECK(refused.exit.code == 2);
  CHECK(has(refused.err, "too many arguments: [b]\n"));
}

TEST_CASE("exec: a word that is not UTF-8 is refused before the head is asked") {
  const House house;  // without a head
  for (const auto& words : {std::vector<std::string>{"exec", "--", "ls", "\xe9"},
                            {"exec", "--workdir", "\xe9", "--", "ls"}}) {
    const Captured refused = house.run(words);
    CHECK(refused.exit.code == 255);
    CHECK(has(refused.err, "dtrain: the word \\xe9 is not UTF-8\n"));
  }
}

TEST_CASE(
    "exec --stop: who leaves before the command's end, or loses the head, takes nothing down") {
  std::promise<void> running;
  std::atomic<bool> breaks{false};
  House house;  // it ends first: its head may still be asked
  house.serve([](const FakeHead::Request&) -> FakeHead::Response { return {}; },
              [&](FakeHead::Connection& connection) {
                connection.read();
                if (breaks) return;  // a broken connection
                running.set_value();
                while (connection.read()) {
                }
              });
  const std::string said_so = "cluster c is not given back: dtrain down -c c\n";
  const Captured left = house.leave({"exec", "--stop", "--", "./train"}, running, SIGTERM);
  CHECK(left.exit.code == 128 + SIGTERM);
  CHECK(has(left.err, said_so));

  breaks = true;
  const Captured cut = house.run({"exec", "--stop", "--", "./train"});
  CHECK(cut.exit.code == 255);
  CHECK(has(cut.err, said_so));
  CHECK(has(cut.err, "the head went away before the command ended"));
}

TEST_CASE("exec --json: characters in two frames come whole, and what is not UTF-8 as base64") {
  House house;
  house.serve(
      [](const FakeHead::Request&) -> FakeHead::Response { return {}; },
      [](FakeHead::Connection& connection) {
        connection.read();
        const auto output = [&](const std::string& node, const std::string& bytes,
                                const std::string& stream = "out") {
          connection.text(
              json{{"type", "output"}, {"node", node}, {"stream", stream}, {"bytes", bytes.size()}}
                  .dump());
          connection.binary(bytes);
        };
        output("node-0", "a\xe2");
        output("node-1", "b\xc3");
        output("node-0", "\x82");
        output("node-0", "\xc3", "err");
        output("node-0", "\xac\n");
        output("node-1", "\xa4\n");
        output("node-1", "\xff\n");
        output("node-0", "\xf0\x9f");
        connection.text(R"({"type":"exit","node":"node-0","exit_code":0})");
        connection.text(R"({"type":"exit","node":"node-1","exit_code":0})");
        connection.text(R"({"type":"end"})");
        connection.close();
      });
  const Captured ran = house.run({"exec", "--json", "--all", "--", "x"});
  CHECK(ran.exit.code == 0);
  std::vector<std::string> seen;
  for (const std::string& line : split(ran.out, '\n')) {
    if (line.empty()) continue;
    const json event = json::parse(line);
    const std::string type = event["type"];
    const bool is_text = event.contains("text");
    seen.push_back(type == "exit"
                       ? "exit " + std::string(event["node"])
                       : std::string(event["node"]) + " " + std::string(event["stream"]) +
                             (is_text ? " " : " base64 ") +
                             std::string(event[is_text ? "text" : "base64"]));
  }
  CHECK(seen == std::vector<std::string>{"node-0 out a", "node-1 out b", "node-0 out €\n",
                                         "node-1 out ä\n",
                                         "node-1 out base64 /wo=", "node-0 out base64 8J8=",
                                         "node-0 err base64 ww==", "exit node-0", "exit node-1"});
}
