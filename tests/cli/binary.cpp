// The real `dtrain` against a head that says what a test wants it to say.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
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

TEST_CASE("errors: exit codes, three lines, and JSON on stdout") {
  House house;
  CHECK(house.run({"status"}).exit.code == 4);
  CHECK(house.run({"submitt"}).exit.code == 2);
  CHECK(house.run({"exec", "--", "true"}).exit.code == 255);
  CHECK(house.run({"submit", "no-such-file.yaml"}).exit.code == 2);
  const Captured option = house.run({"submit", "--nproc-per-nod", "2", "--", "x"});
  CHECK(option.exit.code == 2);
  CHECK(has(option.err, "try: --nproc-per-node"));
  CHECK(has(house.run({"submit", "--secrets", "A", "--", "x"}).err, "try: --secret, or "));
  for (const char* verb : {"submit", "tune"}) {
    const Captured key = house.run({verb, "--restart", "3", "--", "x"});
    CHECK(key.exit.code == 2);
    CHECK(has(key.err, "try: restart: in a job YAML, no flag has this name"));
  }
  write_file_atomic(house.work / "bad.yaml", "command: [x]\nnnodes: many\nnproc_per_nod: 2\n");
  const Captured yaml = house.run({"submit", "bad.yaml"});
  CHECK(yaml.exit.code == 2);
  CHECK(has(yaml.err, "bad.yaml:2:"));
  CHECK(has(yaml.err, "bad.yaml:3:"));

  house.serve([](const FakeHead::Request&) -> FakeHead::Response {
    return {
        409,
        R"({"error":{"code":"conflict","message":"not now","context":["asking"],"hint":"later"}})"};
  });
  const Captured refused = house.run({"status"});
  CHECK(refused.exit.code == 1);
  CHECK(refused.err == "dtrain: not now\n  while asking\n  try: later\n");
  const Captured as_json = house.run({"status", "--json"});
  CHECK(as_json.exit.code == 1);
  CHECK(json::parse(as_json.out)["error"]["code"] == "conflict");
}

TEST_CASE("global options stand before or after the verb") {
  House house;
  house.serve([](const FakeHead::Request&) -> FakeHead::Response {
    return {200, R"({"cluster":{"name":"c"},"nodes":[],"jobs":[]})"};
  });
  CHECK(house.run({"--json", "status"}).out == house.run({"status", "--json"}).out);
  CHECK(json::parse(house.run({"-c", "c", "status", "--json"}).out)["cluster"]["name"] == "c");
}

TEST_CASE("--json is refused, and not offered, where there is nothing for programs to read") {
  const House house;
  for (const auto& expected :
       {std::pair{"forward", 2}, std::pair{"attach", 255}, std::pair{"completion", 2}}) {
    const std::string verb = expected.first;
    CAPTURE(verb);
    CHECK(!has(house.run({verb, "--help"}).out, "--json"));
    for (const bool before : {true, false}) {
      std::vector<std::string> words = {verb};
      words.insert(before ? words.begin() : words.end(), "--json");
      if (verb == "completion") words.emplace_back("bash");
      const Captured refused = house.run(words);
      CHECK(refused.exit.code == expected.second);
      CHECK(json::parse(refused.out)["error"]["message"] == verb + " knows no --json");
    }
  }
  CHECK(has(house.run({"status", "--help"}).out, "--json"));
}

TEST_CASE("-n names no cluster: elsewhere it is a dry run") {
  const House house;
  const fs::path head_root = house.work / "state/dtrain/clusters/n1/head";
  fs::create_directories(head_root);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"down", "-y", "-n", "n1"},
                                                {"down", "-y", "-nn1"},
                                                {"status", "-n", "n1"},
                                                {"tune", "list", "-n", "n1"}}) {
    const Captured done = house.run(words);
    CHECK(done.exit.code == 2);
    CHECK(has(done.err, "unknown option -n"));
    CHECK(has(done.err, "try: -c NAME for the cluster"));
  }
  CHECK(fs::exists(head_root));
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

TEST_CASE("result: Ray's Result as one object, and a table for people") {
  House house;
  house.serve([](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.target == "/v1/jobs")
      return {200, json{{"jobs", {summary("job-aaaaaa", "failed")}}}.dump()};
    json all = summary("job-aaaaaa", "failed");
    all["exit_code"] = 3;
    all["attempts"] = json::array();
    all["metrics"] = {{"loss", 0.25}};
    all["checkpoints"] = {{{"number", 0},
                           {"path", "/s/checkpoint_000000"},
                           {"step", 5},
                           {"size", 2048},
                           {"metrics", json::object()}}};
    all["best_checkpoint"] = all["checkpoints"][0];
    all["error"] = {{"message", "rank 1 on node-0: exit code 3"}, {"last_lines", {"Traceback"}}};
    return {200, all.dump()};
  });
  const json result = json::parse(house.run({"result", "--json"}).out);
  for (const char* key : {"job", "name", "state", "exit_code", "attempts", "metrics",
                          "best_checkpoint", "checkpoints", "error"}) {
    CAPTURE(key);
    CHECK(result.contains(key));
  }
  CHECK(result["best_checkpoint"]["path"] == "/s/checkpoint_000000");
  const std::string text = house.run({"result"}).out;
  for (const char* part : {"failed, exit code 3", "loss 0.25", "step 5  /s/checkpoint_000000",
                           "2.0 KiB", "rank 1 on node-0: exit code 3", "| Traceback"}) {
    CAPTURE(part);
    CHECK(has(text, part));
  }
}

TEST_CASE("stop needs a job unless one runs; rm refuses what runs") {
  House house;
  json jobs = {summary("a-aaaaaa", "running"), summary("b-bbbbbb", "running")};
  std::vector<std::string> asked;
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.method != "GET") asked.push_back(request.method + " " + request.target);
    if (request.target == "/v1/jobs") return {200, json{{"jobs", jobs}}.dump()};
    return {200, summary("b-bbbbbb", "stopped").dump()};
  });
  const Captured which = house.run({"stop"});
  CHECK(which.exit.code == 2);
  CHECK(has(which.err, "a-aaaaaa, b-bbbbbb"));
  CHECK(house.run({"stop", "b"}).exit.code == 0);
  CHECK(house.run({"rm", "b"}).exit.code == 1);
  CHECK(asked == std::vector<std::string>{"POST /v1/jobs/b-bbbbbb/stop"});
  jobs = json::array({summary("b-bbbbbb", "stopped")});
  CHECK(house.run({"rm", "b"}).exit.code == 0);
  CHECK(asked.back() == "DELETE /v1/jobs/b-bbbbbb");
}

TEST_CASE("stop, rm: the head is asked for a job where all are too many for one answer") {
  House house;
  house.serve([](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.method != "GET") return {200, summary("job-aaaaaa", "stopped").dump()};
    if (request.target == "/v1/jobs") return {200, std::string((64 << 20) + 1, ' ')};
    if (request.target == "/v1/jobs?ref=job-aa") {
      return {200, json{{"jobs", {summary("job-aaaaaa", "running")}}}.dump()};
    }
    if (request.target == "/v1/jobs?ref=old") {
      return {200, json{{"jobs", {summary("old-aaaaaa", "failed")}}}.dump()};
    }
    return {200, R"({"jobs":[]})"};
  });
  CHECK(house.run({"stop", "job-aa"}).out == "job-aaaaaa stopped\n");
  const Captured removed = house.run({"rm", "-y", "old", "job-aa"});
  CHECK(removed.exit.code == 1);
  CHECK(has(removed.err, "job-aaaaaa is running"));
  CHECK(house.run({"rm", "-y", "old"}).out == "removed old-aaaaaa\n");
  CHECK(house.run({"stop", "none"}).exit.code == 2);
}

TEST_CASE("sync: by default down from the head's node, up to all that have not gone") {
  House house;
  fs::create_directories(house.work / "code");
  json nodes = {{{"node", "10.0.0.1"}, {"state", "ready"}},
                {{"node", "10.0.0.2"}, {"state", "drained"}},
                {{"node", "10.0.0.3"}, {"state", "gone"}},
                {{"node", "10.0.0.9"}, {"state", "ready"}}};
  SUBCASE("as the head says it") {
    for (json& node : nodes) node["head"] = node["node"] == "10.0.0.9";
  }
  SUBCASE("as it is remembered here, where the head does not say") {
    house.note_host();
  }
  std::mutex mutex;
  std::set<std::string> asked;
  house.serve(
      [&](const FakeHead::Request&) -> FakeHead::Response {
        return {200, json{{"cluster", {{"provider", "ssh"}}}, {"nodes", nodes}}.dump()};
      },
      [&](FakeHead::Connection& connection) {
        const json opening = json::parse(connection.read().value_or("{}"));
        {
          const std::lock_guard lock(mutex);
          for (const json& node : opening.at("nodes")) asked.insert(node.get<std::string>());
        }
        connection.text(R"({"error":{"code":"failed","message":"not today"}})");
        connection.close();
      });
  CHECK(house.run({"sync", "down", "~/results", "results"}).exit.code == 1);
  CHECK(asked == std::set<std::string>{"10.0.0.9"});
  asked.clear();
  CHECK(house.run({"sync", "up", "code", "~/code"}).exit.code == 1);
  CHECK(asked == std::set<std::string>{"10.0.0.1", "10.0.0.2", "10.0.0.9"});
}

TEST_CASE("without a cluster: down is done, others say how to begin") {
  House house;
  SpawnOptions options = house.options({"down"});
  options.env = {"PATH=/usr/bin:/bin", "XDG_STATE_HOME=" + house.work.string()};
  CHECK(capture(options, {}, kLimit).exit.code == 0);
  options.argv = {DTRAIN_BIN, "logs"};
  const Captured logs = capture(options, {}, kLimit);
  CHECK(logs.exit.code == 4);
  // What works in any folder.
  CHECK(has(logs.err, "try: dtrain up, or for one job: dtrain submit --local …\n"));
  options.argv = {DTRAIN_BIN, "up", DTRAIN_SOURCE_ROOT "/configs/gcp.yaml"};
  const Captured gcp = capture(options, {}, kLimit);
  CHECK(gcp.exit.code == 2);
  CHECK(has(gcp.err, "provider gcp is not built yet"));
  CHECK(has(gcp.err, "the file has no errors"));
}

TEST_CASE("down asks first when jobs run, also those of trials and of an older head") {
  House house;
  const fs::path head_root = house.work / "state/dtrain/clusters/c/head";
  fs::create_directories(head_root);
  const FakeHead head(
      paths::head_socket(head_root),
      [](const FakeHead::Request& request) -> FakeHead::Response {
        // Of a head without searches a status takes nothing but jobs.
        if (request.target.find("trials") != std::string::npos) {
          return {400, R"({"error":{"code":"invalid","message":"a status takes jobs=N"}})"};
        }
        if (request.target != "/v1/jobs") return {200, R"({"jobs":[]})"};
        return {200,
                json{{"jobs", {summary("job-aaaaaa", "running"), summary("job-bbbbbb", "stopped")}}}
                    .dump()};
      },
      [](FakeHead::Connection&) {});
  const Captured asked = house.run({"down"});
  CHECK(asked.exit.code == 1);
  CHECK(has(asked.err, "1 job runs on c: job-aaaaaa"));
  CHECK(has(asked.err, "dtrain down -y"));
  CHECK(fs::exists(head_root));
}

TEST_CASE("down asks where checkpoints cannot be counted") {
  House house;
  const fs::path head_root = house.work / "state/dtrain/clusters/c/head";
  const fs::path folder = head_root / "storage/a-aaaaaa/checkpoints";
  fs::create_directories(folder.parent_path());
  fs::create_symlink("checkpoints", folder);
  const Captured asked = house.run({"down"});
  CHECK(asked.exit.code == 1);
  CHECK(has(asked.err, "which checkpoints nobody has pulled is not known: cannot list "));
  CHECK(has(asked.err, "dtrain down -y"));
  CHECK(fs::exists(head_root));
  CHECK(house.run({"down", "-y"}).exit.code == 0);
  CHECK_FALSE(fs::exists(head_root));
}

TEST_CASE("up finds what is missing here before it reaches for a host") {
  House house;
  const std::string file = (house.work / "c.yaml").string();
  write_file_atomic(file,
                    "provider: {type: ssh, hosts: [127.0.0.1]}\nauth: {ssh_private_key: nokey}\n"
                    "file_mounts: {~/a: ./none, ~/b: .}\n");
  for (const char* flag : {"--dry-run", "--yes"}) {
    const Captured done = capture(house.options({"up", flag, file}), {}, kLimit);
    CHECK(done.exit.code == 2);
    CHECK(has(done.err, file + ":2:25: auth.ssh_private_key: there is no "));
    CHECK(has(done.err, file + ":3:20: file_mounts.~/a: there is no "));
    CHECK_FALSE(has(done.err, "connect"));
  }
}
