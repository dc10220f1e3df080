// `dtrain tune` against a head that says what a test wants it to say.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <future>
#include <mutex>

#include "launcher/core/pipe.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "tests/cli/house.hpp"

using namespace dtrain;
using namespace dtrain::cli::test;

namespace {

// A search of three trials that goes a step further each time it is looked at.
struct FakeSearch {
  std::atomic<int> looks{0};
  int last = 4;  // the look at which it has ended; -1: it does not
  std::string end = "succeeded";
  std::string reason;
  bool removed = false;  // the best trial's job
  json submitted;
  json spec = json::object();
  std::vector<std::string> asked;   // other than to look
  std::vector<std::string> looked;  // what about the search was asked for
  json posted;

  json trial(int number, int at) const {
    // Each begins at its number's look, and ends two later.
    const bool ended = at >= number + 2;
    json row = {{"trial", number},
                {"state", ended ? (number == 1 ? "stopped" : "complete") : "running"},
                {"reason", ended && number == 1 ? "asha: below" : ""},
                {"params", {{"lr", 0.1 * (number + 1)}}},
                {"iteration", ended ? 3 : 1},
                {"step", 3},
                {"time", 3},
                {"value", ended ? json(0.2 + 0.1 * number) : json(nullptr)},
                {"best", ended ? json(0.4) : json(nullptr)},
                {"best_iteration", 2},
                {"metrics", json::object()},
                {"job", "s-" + std::to_string(number)},
                {"legs", json::array({"s-" + std::to_string(number)})},
                {"checkpoint", nullptr}};
    if (number == 2) row["checkpoint"] = {{"job", "s-2"}, {"number", 1}, {"step", 3}};
    return row;
  }
  int begun(int at) const { return std::min(3, at + 1); }
  json search(int at) const {
    const bool ended = last >= 0 && at >= last;
    json all = {{"search", "s-abc234"}, {"name", "s"},      {"state", ended ? end : "running"},
                {"reason", reason},     {"metric", "acc"},  {"mode", "max"},
                {"scheduler", "asha"},  {"total", 3},       {"begun", begun(at)},
                {"created", ""},        {"ended", nullptr}, {"best", nullptr},
                {"spec", spec}};
    std::map<std::string, int> counts;
    for (int i = 0; i < begun(at); ++i) ++counts[trial(i, at)["state"].get<std::string>()];
    all["counts"] = counts;
    for (int i = 0; i < begun(at); ++i) {
      const json row = trial(i, at);
      if (row["value"].is_null()) continue;
      all["best"] = {{"trial", i},
                     {"value", row["value"]},
                     {"iteration", 3},
                     {"params", row["params"]},
                     {"job", row["job"]}};
    }
    return all;
  }
  static json trials(const FakeSearch& of, int at, int from) {
    json list = json::array();
    for (int i = from; i < of.begun(at); ++i) list.push_back(of.trial(i, at));
    return list;
  }

  FakeHead::Response answer(const FakeHead::Request& request) {
    const std::string& target = request.target;
    if (request.method == "POST" && target == "/v1/searches") {
      submitted = json::parse(request.body);
      if (submitted["dry_run"] == true) {
        return {200, R"({"fits":true,"now":true,"reason":"","placement":[],"total":3,
                         "params":{"lr":0.1}})"};
      }
      return {200, R"({"search":"s-abc234","name":"s","state":"running"})"};
    }
    if (request.method != "GET") {
      asked.push_back(request.method + " " + target);
      posted = request.body.empty() ? json() : json::parse(request.body);
      return {200, search(looks).dump()};
    }
    if (target == "/v1/jobs/s-2" && removed) {
      return {404, R"({"error":{"code":"not_found","message":"there is no job s-2"}})"};
    }
    if (target == "/v1/jobs/s-2") {
      return {200, R"({"best_checkpoint":{"number":0,"step":2,"path":"/ckpt/0"}})"};
    }
    if (has(target, "/metrics?")) {
      return {200, R"({"metrics":[{"rank":0,"step":1,"metrics":{"acc":0.5}}]})"};
    }
    if (target == "/v1/searches")
      return {200, json{{"searches", json::array({search(looks)})}}.dump()};
    if (has(target, "/trials?")) {
      const std::size_t from = target.find("from=") + 5;
      return {200, json{{"trials", trials(*this, looks - 1, std::stoi(target.substr(from)))},
                        {"count", 3}}
                       .dump()};
    }
    if (target.starts_with("/v1/searches/")) looked.push_back(target);
    const int at = looks++;
    json all = search(at);
    if (has(target, "?trials=")) all["trials"] = trials(*this, at, 0);
    return {200, all.dump()};
  }
};

struct SearchHouse : House {
  SearchHouse() {
    serve([this](const FakeHead::Request& request) {
      const std::lock_guard lock(mutex);
      return search.answer(request);
    });
  }
  ~SearchHouse() { head.reset(); }

  std::mutex mutex;
  FakeSearch search;
};

const std::vector<std::string> kTune = {"tune",   "--param", "lr=uniform:0:1", "--metric", "acc",
                                        "--mode", "max",     "--num-samples",  "3"};

std::vector<std::string> tune_words(std::vector<std::string> more = {}) {
  std::vector<std::string> words = kTune;
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {"--", "./train", "--lr", "{lr}"});
  return words;
}

}  // namespace

TEST_CASE("tune: a line for each trial's begin and end and each best, and the search's exit code") {
  for (const auto& expected :
       {std::pair{"succeeded", 0}, std::pair{"failed", 1}, std::pair{"stopped", 3}}) {
    CAPTURE(expected.first);
    SearchHouse house;
    house.search.end = expected.first;
    const Captured ran = house.run(tune_words({"--env", "A=b"}));
    CHECK(ran.exit.code == expected.second);
    CHECK(ran.out == std::string("s-abc234 running\n"
                                 "trial 0 running: lr 0.1  (s-0)\n"
                                 "trial 1 running: lr 0.2  (s-1)\n"
                                 "trial 0 complete after 3 iterations, acc 0.2\n"
                                 "trial 2 running: lr 0.3  (s-2)\n"
                                 "best so far: trial 0, acc 0.2: lr 0.1\n"
                                 "trial 1 stopped after 3 iterations, acc 0.3: asha: below\n"
                                 "best so far: trial 1, acc 0.3: lr 0.2\n"
                                 "trial 2 complete after 3 iterations, acc 0.4\n"
                                 "best so far: trial 2, acc 0.4: lr 0.3\n"
                                 "s-abc234 ") +
                         expected.first +
                         ", 3 trials: 2 complete, 1 stopped\n"
                         "best: trial 2, acc 0.4: lr 0.3\n");
    CHECK(has(ran.err, "dtrain tune best -c c s-abc234"));
    const json& spec = house.search.submitted["spec"];
    CHECK(spec["job"]["command"] == json({"./train", "--lr", "{lr}"}));
    CHECK(spec["job"]["env"]["A"] == "b");
    CHECK(spec["job"]["workdir"] == house.work.string());
    CHECK(spec["space"] == json::parse(R"({"lr": {"uniform": [0, 1]}})"));
    CHECK(spec["name"] == "train");
    CHECK(spec["num_samples"] == 3);
    CHECK(house.search.submitted["submission_id"].get<std::string>().size() >= 16);
  }
}

TEST_CASE("tune: by YAML, with flags over it, and a job's YAML with parameters") {
  SearchHouse house;
  write_file_atomic(house.work / "search.yaml",
                    "command: [./train, --lr, '{lr}']\nspace: {lr: {uniform: [0, 1]}}\n"
                    "metric: acc\nmode: min\nnum_samples: 7\nsecrets: [TOKEN]\n");
  CHECK(house.run({"tune", "search.yaml", "--mode", "max", "-d"}).out == "s-abc234\n");
  CHECK(house.search.submitted["spec"]["mode"] == "max");
  CHECK(house.search.submitted["spec"]["num_samples"] == 7);
  CHECK(house.search.submitted["secrets"]["TOKEN"] == "very-secret");
  write_file_atomic(house.work / "job.yaml", "command: ./train {lr}\nmax_restarts: 3\n");
  CHECK(house
            .run({"tune", "job.yaml", "--param", "lr=uniform:0:1", "--metric", "loss", "--mode",
                  "min", "-d"})
            .exit.code == 0);
  CHECK(house.search.submitted["spec"]["job"]["max_restarts"] == 3);
  const Captured without = house.run({"tune", "job.yaml"});
  CHECK(without.exit.code == 2);
  CHECK(has(without.err, "--param: is missing"));
  write_file_atomic(house.work / "wrong.yaml",
                    "command: ./train\nspace: {lr: {uniform: [1, 0]}}\nmetric: acc\nmode: max\n");
  const Captured wrong = house.run({"tune", "wrong.yaml"});
  CHECK(wrong.exit.code == 2);
  CHECK(has(wrong.err, "wrong.yaml:2:"));
  CHECK(has(house.run({"tune", "statsu"}).err, "dtrain tune status"));
  // What cannot be looked at may be there.
  fs::create_symlink("loop.yaml", house.work / "loop.yaml");
  for (const char* verb : {"tune", "submit"}) {
    const Captured loop = house.run({verb, "loop.yaml"});
    CHECK(loop.exit.code == 1);
    CHECK(has(loop.err, "Too many levels of symbolic links"));
  }
  const Captured dry = house.run(tune_words({"--dry-run"}));
  CHECK(dry.exit.code == 0);
  CHECK(has(dry.out, "would start at once"));
  CHECK(has(dry.out, "3 trials, the first with lr 0.1\n"));
}

TEST_CASE("tune --json: an event a line") {
  SearchHouse house;
  const Captured ran = house.run(tune_words({"--json"}));
  CHECK(ran.exit.code == 0);
  std::map<std::string, int> types;
  std::string last;
  for (const std::string& line : split(ran.out, '\n')) {
    if (line.empty()) continue;
    const json event = json::parse(line);
    last = event["type"];
    ++types[last];
  }
  CHECK(types == std::map<std::string, int>{
                     {"submitted", 1}, {"state", 1}, {"trial", 6}, {"best", 3}, {"end", 1}});
  CHECK(last == "end");
}

TEST_CASE("tune -q says nothing but why it failed, and asks for no more than it needs") {
  SearchHouse house;
  house.search.end = "failed";
  house.search.reason = "3 trials failed";
  const Captured ran = house.run(tune_words({"-q"}));
  CHECK(ran.exit.code == 1);
  CHECK(ran.out == "");
  CHECK(ran.err == "dtrain: s-abc234 failed: 3 trials failed\n");
  CHECK(house.search.looked.size() >= 4);
  for (const std::string& target : house.search.looked) {
    CHECK(target == "/v1/searches/s-abc234?trials=1");
  }
}

TEST_CASE("tune: a reader that has stopped keeps nobody from leaving") {
  SearchHouse house;
  house.search.last = -1;
  house.search.reason = std::string(std::size_t{1} << 20, 'x');  // more than a pipe holds
  SpawnOptions options = house.options(tune_words());
  auto [reader, writer] = make_pipe();
  const UniqueFd err = open_file(house.work / "err", O_RDWR | O_CREAT);
  options.stdout_fd = writer.get();
  options.stderr_fd = err.get();
  const pid_t pid = spawn(options);
  writer.reset();
  // It writes, and soon nobody takes it.
  pollfd polled{reader.get(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kLimit).count())) == 1);
  ::kill(pid, SIGTERM);
  const auto left = wait_until(pid, std::chrono::steady_clock::now() + kLimit);
  if (!left) {
    ::kill(pid, SIGKILL);
    wait(pid);
  }
  REQUIRE(left);
  CHECK(left->code == 128 + SIGTERM);
  CHECK(has(read_file(house.work / "err"), "detached; s-abc234 goes on"));
}

TEST_CASE("tune: a head that knows nothing of searches is an older one") {
  House house;
  house.serve([](const FakeHead::Request& request) -> FakeHead::Response {
    json answer = json::object();
    answer["error"] = {{"code", "not_found"}, {"message", "no such route: " + request.target}};
    return {404, answer.dump()};
  });
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"tune", "list"}, std::vector<std::string>{"tune", "best"}}) {
    CHECK(has(house.run(words).err, "the head is of an older dtrain, without searches"));
  }
}

TEST_CASE("tune: a head that is started again is waited for") {
  SearchHouse house;
  std::promise<void> looked;
  std::atomic<bool> told{false};
  house.head.reset();
  house.search.last = -1;
  house.serve([&](const FakeHead::Request& request) {
    const std::lock_guard lock(house.mutex);
    if (house.search.looks > 0 && !told.exchange(true)) looked.set_value();
    return house.search.answer(request);
  });
  SpawnOptions options = house.options({"tune", "status", "-f"});
  const UniqueFd err = open_file(house.work / "err", O_RDWR | O_CREAT);
  const UniqueFd out = open_file(house.work / "out", O_RDWR | O_CREAT);
  options.stderr_fd = err.get();
  options.stdout_fd = out.get();
  const pid_t pid = spawn(options);
  REQUIRE(looked.get_future().wait_for(kLimit) == std::future_status::ready);
  house.head.reset();
  house.search.last = house.search.looks + 2;
  house.serve([&](const FakeHead::Request& request) {
    const std::lock_guard lock(house.mutex);
    return house.search.answer(request);
  });
  CHECK(wait(pid).code == 0);
  CHECK(has(read_file(house.work / "out"), "s-abc234 succeeded, 3 trials"));
}

TEST_CASE("tune: Ctrl-C detaches, says how to come back, and the search is not stopped") {
  std::promise<void> following;
  bool told = false;
  SearchHouse house;  // it ends first: its head may still be asked
  house.search.last = -1;
  house.head.reset();
  house.serve([&](const FakeHead::Request& request) {
    const std::lock_guard lock(house.mutex);
    if (house.search.looks >= 2 && !std::exchange(told, true)) following.set_value();
    return house.search.answer(request);
  });
  const Captured left = house.leave(tune_words(), following);
  CHECK(left.exit.code == 130);
  CHECK(has(left.err, "dtrain tune status -f -c c s-abc234"));
  CHECK(has(left.err, "dtrain tune stop -c c s-abc234"));
  CHECK(house.search.asked.empty());
}

TEST_CASE("tune stop waits for the end, resume goes on with its secrets, rm wants it ended") {
  SearchHouse house;
  house.search.end = "stopped";
  house.search.spec = json::parse(
      R"({"job": {"name": "s", "command": ["./train"], "shell": false, "secrets": ["TOKEN"]}})");
  const Captured running = house.run({"tune", "rm", "s-abc234"});
  CHECK(running.exit.code == 1);
  CHECK(has(running.err, "dtrain tune stop -c c s-abc234"));
  // What is for a new search is not passed over before a verb.
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"tune", "--dry-run", "stop"},
                                             {"tune", "search.yaml", "stop"},
                                             {"tune", "--num-samples", "4", "stop"}}) {
    const Captured ran = house.run(words);
    CHECK(ran.exit.code == 2);
    CHECK(has(ran.err, "belongs to dtrain tune, not to dtrain tune stop"));
  }
  // Nor behind --: the one search that there is would be meant, whatever its name.
  for (const char* verb : {"rm", "stop", "resume"}) {
    const Captured ran = house.run({"tune", verb, "--", "other"});
    CHECK(ran.exit.code == 2);
    CHECK(has(ran.err, "takes nothing after --"));
    CHECK(has(ran.err, std::string("dtrain tune ") + verb + " other"));
  }
  CHECK(house.search.asked.empty());
  CHECK(house.run({"tune", "--json", "status"}).exit.code == 0);
  house.search.looked.clear();
  const Captured stopped = house.run({"tune", "stop", "--grace-s", "1"});
  CHECK(stopped.exit.code == 0);
  CHECK(house.search.looked.back() == "/v1/searches/s-abc234?trials=1");
  CHECK(stopped.out == "s-abc234 stopped\n");
  CHECK(has(stopped.err, "dtrain tune resume -c c s-abc234"));
  CHECK(house.search.asked == std::vector<std::string>{"POST /v1/searches/s-abc234/stop"});
  CHECK(house.search.posted == json{{"grace_s", 1}});
  house.search.looks = 0;
  const json summary = json::parse(house.run({"tune", "stop", "--json"}).out);
  CHECK(summary["state"] == "stopped");
  CHECK(!summary.contains("trials"));
  CHECK(!summary.contains("spec"));
  CHECK(house.run({"tune", "resume", "s", "-d"}).exit.code == 0);
  CHECK(house.search.asked.back() == "POST /v1/searches/s-abc234/resume");
  CHECK(house.search.posted["secrets"]["TOKEN"] == "very-secret");
  CHECK(house.run({"tune", "rm", "s-abc"}).out == "removed s-abc234\n");
  CHECK(house.search.asked.back() == "DELETE /v1/searches/s-abc234");
}

TEST_CASE("tune best, result, list and status of one that has ended") {
  SearchHouse house;
  house.search.looks = 10;
  house.search.spec = json::parse(R"({"space": {"lr": {"uniform": [0, 1]}},
      "job": {"name": "train", "command": ["./train", "--lr", "{lr}"], "shell": false}})");
  house.search.spec["job"]["workdir"] = house.work.string();
  const Captured best = house.run({"tune", "best"});
  CHECK(best.exit.code == 0);
  for (const char* part :
       {"trial              2\n", "acc                0.4, iteration 3\n", "lr 0.3", "/ckpt/0",
        "dtrain pull -c c s-2 --best", "dtrain submit -c c -- ./train --lr 0.3"}) {
    CAPTURE(best.out);
    CHECK(has(best.out, part));
  }
  const json as_json = json::parse(house.run({"tune", "best", "--json"}).out);
  CHECK(as_json["checkpoint"]["path"] == "/ckpt/0");
  CHECK(as_json["command"] ==
        json({"dtrain", "submit", "-c", "c", "--", "./train", "--lr", "0.30000000000000004"}));
  CHECK(json::parse(house.run({"tune", "best", "--scope", "all", "--json"}).out)["trial"] == 0);
  CHECK(house.run({"tune", "best", "--scope", "some"}).exit.code == 2);
  CHECK(house.run({"tune", "best", "-q"}).out == "s-2\n");
  CHECK(as_json["checkpoint"].contains("metrics"));
  house.search.removed = true;
  const Captured gone = house.run({"tune", "best"});
  CHECK(has(gone.out, "step 3  it is not there any more"));
  CHECK(!has(gone.out, "dtrain pull"));
  CHECK(json::parse(house.run({"tune", "best", "--json"}).out)["checkpoint"] ==
        json::parse(R"({"job": "s-2", "number": 1, "step": 3, "path": null, "metrics": null})"));
  house.search.removed = false;
  const std::string csv = house.run({"tune", "result", "--csv"}).out;
  CHECK(split(csv, '\n').size() == 5);
  CHECK(has(csv, "config/lr"));
  CHECK(has(house.run({"tune", "result"}).out, "JOB"));
  CHECK(json::parse(house.run({"tune", "result", "--json"}).out)["trials"].size() == 3);
  CHECK(has(house.run({"tune", "list"}).out, "s-abc234"));
  CHECK(has(house.run({"tune", "status", "s"}).out, "best: trial 2"));
  CHECK(has(house.run({"tune", "plot", "--kind", "family"}).err, "only trials of scheduler pbt"));
  CHECK(has(house.run({"tune", "plot", "--kind", "importance"}).err, "importance wants 8 trials"));
  CHECK(has(house.run({"tune", "status", "no"}).err, "there is no search \"no\""));
  const json params = json::parse(house.run({"tune", "plot", "--kind", "params", "--json"}).out);
  CHECK(params["parameters"][0]["points"].size() == 3);
  const json curves = json::parse(house.run({"tune", "plot", "--json"}).out)["curves"];
  CHECK(curves[2] == json::parse(R"({"trial": 2, "points": [[1.0, 0.5]]})"));
  CHECK(house.run({"tune", "plot", "--trials", "1001"}).exit.code == 2);
}

TEST_CASE("tune plot: what it draws is written whole, or it is an error") {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    MESSAGE("gnuplot is not installed");
    return;
  }
  SearchHouse house;
  house.search.looks = 10;
  CHECK(house.run({"tune", "plot", "-o", "a.svg"}).out == "wrote a.svg\n");
  CHECK(has(read_file(house.work / "a.svg"), "</svg>"));
  // Both: the file, and what is in it.
  CHECK(json::parse(house.run({"tune", "plot", "-o", "b.svg", "--json"}).out)["kind"] == "curves");
  CHECK(has(read_file(house.work / "b.svg"), "</svg>"));
  const Captured nowhere = house.run({"tune", "plot", "-o", "no/c.svg"});
  CHECK(nowhere.exit.code == 2);
  CHECK(nowhere.out == "");
  SpawnOptions options = house.options({"tune", "plot"});
  const UniqueFd full = open_file("/dev/full", O_WRONLY);
  const UniqueFd err = open_file(house.work / "err", O_RDWR | O_CREAT);
  options.stdout_fd = full.get();
  options.stderr_fd = err.get();
  CHECK(wait(spawn(options)).code == 1);
  CHECK(has(read_file(house.work / "err"), "No space left"));
}
