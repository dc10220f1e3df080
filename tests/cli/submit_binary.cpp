// dtrain submit and logs: the real `dtrain` against a head that says what a test wants it to say.
#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <mutex>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/text.hpp"
#include "tests/cli/house.hpp"

using namespace dtrain;
using namespace dtrain::cli::test;
using dtrain::testing::FakeHead;
using nlohmann::json;

namespace {

void log(FakeHead::Connection& connection, int rank, std::size_t offset, const std::string& bytes,
         const std::string& stream = "out", int attempt = 1) {
  connection.text(json{
      {"type", "log"},
      {"attempt", attempt},
      {"rank", rank},
      {"node", "node-0"},
      {"stream", stream},
      {"offset", offset},
      {"bytes",
       bytes.size()}}.dump());
  connection.binary(bytes);
}

}  // namespace

TEST_CASE("submit: follows, and its exit code is the job's") {
  for (const auto& expected :
       {std::pair{"succeeded", 0}, std::pair{"failed", 1}, std::pair{"stopped", 3}}) {
    const char* state = expected.first;
    const int code = expected.second;
    CAPTURE(state);
    House house;
    house.serve_job([state = std::string(state)](FakeHead::Connection& connection) {
      connection.text(state_frame("queued"));
      connection.text(state_frame("running"));
      log(connection, 0, 0, "hello\n");
      log(connection, 1, 0, "oops\n", "err");
      connection.text(state_frame(state));
      connection.text(end_frame(state, 3));
      connection.close();
    });
    const Captured ran = house.run(
        {"submit", "--nproc-per-node", "2", "--env", "A=b", "--", "./train", "--x", "-d"});
    CHECK(ran.exit.code == code);
    CHECK(ran.out == "[0] hello\n");
    CHECK(has(ran.err, "[1] oops\n"));
    CHECK(has(ran.err, "job-aaaaaa queued\n"));
    CHECK(has(ran.err, std::string("job-aaaaaa ") + state));
    CHECK(has(ran.err, "root cause: rank 1 on node-0: exit code 3: boom") == (code == 1));
    CHECK(!has(ran.err, "\x1b"));
    CHECK(house.submitted["spec"]["command"] == json({"./train", "--x", "-d"}));
    CHECK(house.submitted["spec"]["nproc_per_node"] == 2);
    CHECK(house.submitted["spec"]["env"]["A"] == "b");
    CHECK(house.submitted["spec"]["workdir"] == house.work.string());
    CHECK(house.submitted["submission_id"].get<std::string>().size() >= 16);
  }
}

TEST_CASE("submit: a head that comes back is told where to go on, and sends nothing twice") {
  House house;
  std::atomic<int> follows{0};
  std::string target;
  json start;
  house.serve_job([&](FakeHead::Connection& connection) {
    if (++follows == 1) {
      connection.text(state_frame("running", 1));
      connection.text(R"({"type":"event","event":7,"level":"warning","message":"take care"})");
      log(connection, 0, 0, "one\n");
      log(connection, 1, 0, "half a");
      log(connection, 1, 0, "oh\n", "err");
      return;  // a broken connection
    }
    target = connection.target();
    start = json::parse(connection.read().value_or("null"));
    connection.text(state_frame("running", 2));
    log(connection, 1, 6, " line\n");  // into a pipe bytes go through as they come
    log(connection, 0, 4, "two\n");
    log(connection, 0, 0, "three\n", "out", 2);
    connection.text(state_frame("succeeded", 2));
    connection.text(end_frame("succeeded", 0));
    connection.close();
  });
  const Captured ran = house.run({"submit", "--no-prefix", "--", "./train"});
  CHECK(ran.exit.code == 0);
  CHECK(follows == 2);
  CHECK(has(target, "from=1"));
  CHECK(start == json::parse(R"({"type": "from", "attempt": 1, "event": 7,
                                 "logs": [[1, 0, 4, 0], [1, 1, 6, 3]]})"));
  for (const char* line : {"one\n", "two\n", "half a line\n", "three\n"}) CHECK(has(ran.out, line));
  CHECK(has(ran.err, "oh\n"));
}

TEST_CASE("submit, tune: who breaks the connection before the answer is asked again") {
  std::mutex mutex;
  std::vector<json> asked;
  bool refuses = false;
  House house;  // it ends first
  house.note_host();
  fs::create_directories(house.work / "w");
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    const std::lock_guard lock(mutex);
    if (request.method != "POST") return {200, "{}"};
    asked.push_back(json::parse(request.body));
    FakeHead::Response answer{200, R"({"job":"job-aaaaaa","search":"job-bbbbbb","name":"job"})"};
    if (asked.size() == 1) answer.cut = 3;
    if (refuses && asked.size() > 1) {
      return {409, R"({"error":{"code":"conflict","message":"going down"}})"};
    }
    return answer;
  });
  const auto run = [&](std::vector<std::string> words) {
    for (const char* word : {"-d", "--workdir", "w"}) words.emplace_back(word);
    words.emplace_back("echo {lr} >x");
    const Captured ran = house.run(words);
    const std::lock_guard lock(mutex);
    REQUIRE(asked.size() == 2);
    CHECK(asked[0] == asked[1]);
    CHECK(asked[0]["submission_id"].get<std::string>().size() == 32);
    asked.clear();
    return ran;
  };
  const Captured submitted = run({"submit"});
  CHECK(submitted.exit.code == 0);
  CHECK(submitted.out == "job-aaaaaa\n");
  CHECK(has(submitted.err, "the head does not answer, it is asked again"));
  const Captured search =
      run({"tune", "--param", "lr=uniform:0:1", "--metric", "loss", "--mode", "min"});
  CHECK(search.exit.code == 0);
  CHECK(search.out == "job-bbbbbb\n");
  refuses = true;
  const Captured refused = run({"submit"});
  CHECK(refused.exit.code == 1);
  CHECK(has(refused.err, "going down"));
  CHECK(!has(refused.err, "queued all the same"));
}

TEST_CASE("logs: an older head is followed without what setup prints") {
  House house;
  std::vector<std::string> targets;
  house.serve_job([&](FakeHead::Connection& connection) {
    targets.push_back(connection.target());
    connection.text(state_frame("running"));
    log(connection, 0, 0, targets.size() == 1 ? "one\n" : "one\ntwo\n");
    if (targets.size() == 1) return;  // a broken connection
    connection.text(end_frame("succeeded", 0));
    connection.close();
  });
  house.head->refuse_at(
      [](const std::string& target) { return has(target, "setup=") || has(target, "from="); });
  const Captured ran = house.run({"logs", "-f", "--no-prefix", "job"});
  CHECK(ran.exit.code == 0);
  CHECK(ran.out == "one\ntwo\n");
  CHECK(targets.size() == 2);
}

TEST_CASE("logs: what ends the following with an error is an error") {
  House house;
  house.serve_job([&](FakeHead::Connection& connection) {
    connection.text(state_frame("running"));
    log(connection, 0, 0, "a line\n");
    connection.text(
        R"({"error":{"code":"io","message":"cannot open 0.err: Too many open files"}})");
    connection.close();
  });
  const Captured ran = house.run({"logs", "-f", "job"});
  CHECK(ran.exit.code == 1);
  CHECK(has(ran.out, "a line\n"));
  CHECK(has(ran.err, "Too many open files"));
}

TEST_CASE("submit: an older head that goes away is waited for; no byte is missing or comes twice") {
  House house;
  std::string content[2];
  for (int i = 0; i < 20000; ++i) {
    content[0] += "first " + std::to_string(i) + "\n";
    content[1] += "second attempt " + std::to_string(i) + "\n";
  }
  std::atomic<int> follows{0};
  std::vector<std::string> targets;
  house.serve_job([&](FakeHead::Connection& connection) {
    const int time = ++follows;
    const auto send = [&](int attempt, std::size_t from, std::size_t to) {
      const std::string& text = content[attempt - 1];
      for (std::size_t at = from; at < to; at += 7777) {
        log(connection, 0, at, text.substr(at, std::min<std::size_t>(7777, to - at)), "out",
            attempt);
      }
    };
    if (time == 1) {
      connection.text(state_frame("running", 1));
      send(1, 0, 100000);
      // Gone between a header and its bytes.
      connection.text(json{
          {"type", "log"},
          {"attempt", 1},
          {"rank", 0},
          {"node", "node-0"},
          {"stream", "out"},
          {"offset", 100000},
          {"bytes", 5}}.dump());
    } else if (time == 2) {
      // Meanwhile the first attempt has ended and the second runs.
      connection.text(state_frame("running", 2));
      send(2, 0, 50000);
    } else if (has(connection.target(), "attempt=1")) {
      targets.push_back(connection.target());
      connection.text(state_frame("running", 2));
      send(1, 0, content[0].size());
      connection.text(end_frame("running", 0));
      connection.close();
    } else {
      connection.text(state_frame("running", 2));
      send(2, 0, content[1].size());
      connection.text(state_frame("succeeded", 2));
      connection.text(end_frame("succeeded", 0));
      connection.close();
    }
  });
  // A head that dies in the middle of a handshake: at the second connection, and while the CLI
  // catches up.
  std::atomic<int> asked{0};
  std::atomic<bool> caught{false};
  house.head->hang_up_at([&](const std::string& target) {
    if (!has(target, "/follow")) return false;
    if (has(target, "attempt=1")) return !caught.exchange(true);
    return ++asked == 2;
  });
  house.head->refuse_at([](const std::string& target) { return has(target, "from="); });
  const Captured ran = house.run({"submit", "--", "./train"});
  CHECK(ran.exit.code == 0);
  CHECK(caught);
  CHECK(asked >= 3);
  REQUIRE(targets.size() == 1);
  CHECK(has(targets[0], "follow=0"));
  CHECK(ran.out.size() == content[0].size() + content[1].size());
  std::string first;
  std::string second;
  for (const std::string& line : split(ran.out, '\n')) {
    if (line.starts_with("first")) first += line + "\n";
    if (line.starts_with("second")) second += line + "\n";
  }
  CHECK(first == content[0]);
  CHECK(second == content[1]);
  CHECK(has(ran.err, "(attempt 2)"));
}

TEST_CASE("submit: Ctrl-C detaches, says how to come back, and the job is not stopped") {
  House house;
  std::promise<void> following;
  std::atomic<bool> stopped{false};
  house.serve_job([&](FakeHead::Connection& connection) {
    connection.text(state_frame("running"));
    log(connection, 0, 0, "a line\n");
    following.set_value();
    while (connection.read()) stopped = true;
  });
  const Captured left = house.leave({"submit", "--", "./train"}, following);
  CHECK(left.exit.code == 130);
  CHECK(has(left.err, "dtrain logs -f -c c job-aaaaaa"));
  CHECK(has(left.err, "dtrain stop -c c job-aaaaaa"));
  house.head.reset();
  CHECK(!stopped);
}

TEST_CASE("submit --stop: who leaves before the head has the job is told that the cluster stays") {
  std::promise<void> asked;
  std::promise<void> gone;
  House house;  // it ends first: its head may still be asked
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.method == "POST") {
      asked.set_value();
      gone.get_future().wait();
    }
    return {200, R"({"job":"job-aaaaaa","name":"job","state":"queued"})"};
  });
  const Captured left = house.leave({"submit", "--stop", "--", "./train"}, asked);
  CHECK(left.exit.code == 130);
  gone.set_value();
  CHECK(has(left.err, "stopped before the head said that it has the job"));
  CHECK(has(left.err, "cluster c is not given back: dtrain down -c c\n"));
}

TEST_CASE("submit --stop: who leaves while the cause is asked for is told that the cluster stays") {
  std::promise<void> asked;
  std::promise<void> gone;
  House house;  // it ends first: its head may still be asked
  house.serve(
      [&](const FakeHead::Request& request) -> FakeHead::Response {
        if (request.target == "/v1/jobs/job-aaaaaa") {
          asked.set_value();
          gone.get_future().wait();
        }
        if (request.target == "/v1/jobs" && request.method == "GET") {
          return {200, json{{"jobs", {summary("job-aaaaaa", "failed")}}}.dump()};
        }
        if (request.target.ends_with("/files")) return {200, R"({"files":[]})"};
        return {200, R"({"job":"job-aaaaaa","name":"job","state":"queued"})"};
      },
      [](FakeHead::Connection& connection) {
        connection.text(state_frame("failed"));
        connection.text(end_frame("failed", 3));
        connection.close();
      });
  const Captured left = house.leave({"submit", "--stop", "--", "./train"}, asked);
  CHECK(left.exit.code == 1);  // the job's
  gone.set_value();
  CHECK(has(left.err, "cluster c stays up until dtrain down -c c\n"));
}

TEST_CASE("submit --json: one JSON object a line") {
  House house;
  house.serve_job([](FakeHead::Connection& connection) {
    connection.text(state_frame("running"));
    connection.text(R"({"type":"progress","rank":0,"step":3,"total":10})");
    log(connection, 1, 0, "x\ny\n");
    connection.text(state_frame("succeeded"));
    connection.text(end_frame("succeeded", 0));
    connection.close();
  });
  const Captured ran = house.run({"--json", "submit", "--nproc-per-node", "2", "--", "./train"});
  CHECK(ran.exit.code == 0);
  CHECK(ran.err == "");
  std::vector<std::string> types;
  for (const std::string& line : split(ran.out, '\n')) {
    if (!line.empty()) types.push_back(json::parse(line)["type"]);
  }
  CHECK(types ==
        std::vector<std::string>{"submitted", "state", "progress", "log", "log", "state", "end"});
}

TEST_CASE("submit -d prints the id alone; --dry-run says whether it fits") {
  House house;
  house.serve_job([](FakeHead::Connection&) {});
  CHECK(house.run({"submit", "-d", "-q", "--", "./train"}).out == "job-aaaaaa\n");
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.method == "GET") return {200, R"({"cluster":{"provider":"local"}})"};
    house.submitted = json::parse(request.body);
    return {
        200,
        R"({"fits":false,"now":false,"reason":"asks for 9 CPUs, a node has 2","placement":[]})"};
  });
  const Captured ran = house.run({"submit", "--dry-run", "--", "./train"});
  CHECK(ran.exit.code == 1);
  CHECK(ran.out == "train: does not fit this cluster: asks for 9 CPUs, a node has 2\n");
  CHECK(house.submitted["dry_run"] == true);
}

TEST_CASE("secrets travel in the request and are printed nowhere") {
  House house;
  house.serve_job([](FakeHead::Connection& connection) {
    connection.text(end_frame("succeeded", 0));
    connection.close();
  });
  const Captured ran = house.run({"submit", "-v", "--secret", "TOKEN", "--", "./train"});
  CHECK(ran.exit.code == 0);
  CHECK(house.submitted["secrets"] == json{{"TOKEN", "very-secret"}});
  CHECK(!has(house.submitted["spec"].dump(), "very-secret"));
  CHECK(!has(ran.out + ran.err, "very-secret"));
  const Captured missing = house.run({"submit", "--secret", "NOT_SET", "--", "./train"});
  CHECK(missing.exit.code == 2);
  CHECK(has(missing.err, "secret NOT_SET is not in the environment"));
}

TEST_CASE("logs: queries, the prefix, and the exit code only with -f") {
  House house;
  std::vector<std::string> targets;
  house.serve_job([&](FakeHead::Connection& connection) {
    targets.push_back(connection.target());
    connection.text(state_frame("failed"));
    log(connection, 1, 100, "x\n", "err");
    connection.text(end_frame("failed", 3));
    connection.close();
  });
  const Captured plain = house.run({"logs"});
  CHECK(plain.exit.code == 0);
  CHECK(plain.err == "[1] x\n");
  CHECK(house.run({"logs", "-f", "job"}).exit.code == 1);
  const Captured one =
      house.run({"logs", "--rank", "1", "--stderr", "--tail", "5", "--attempt", "2"});
  CHECK(one.err == "x\n");
  REQUIRE(targets.size() == 3);
  CHECK(has(targets[0], "follow=0"));
  CHECK(has(targets[1], "follow=1"));
  for (const char* part : {"rank=1", "stream=err", "tail=5", "attempt=2"}) {
    CAPTURE(part);
    CHECK(has(targets[2], part));
  }
  CHECK(house.run({"logs", "nothing"}).exit.code == 2);
}
