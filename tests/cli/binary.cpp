// The real `dtrain` against a head that says what a test wants it to say.
#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "tests/cli/house.hpp"

using namespace dtrain;
using namespace dtrain::cli::test;
using dtrain::testing::FakeHead;
using nlohmann::json;

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
