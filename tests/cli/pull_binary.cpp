// dtrain pull: the real `dtrain` against a head that says what a test wants it to say.
#include <doctest/doctest.h>
#include <signal.h>

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

TEST_CASE("pull: interrupted downloads go on, and a path that leaves the folder is refused") {
  House house;
  std::atomic<int> downloads{0};
  std::string range;
  std::string path = "checkpoints/checkpoint_000000/x";
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.target == "/v1/jobs")
      return {200, json{{"jobs", {summary("job-aaaaaa", "succeeded")}}}.dump()};
    if (request.target == "/v1/jobs/job-aaaaaa/files") {
      return {
          200,
          json{{"files",
                {{{"path", path},
                  {"size", 10},
                  {"sha256", "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"}},
                 {{"path", "logs/0.out"}, {"size", 0}, {"sha256", nullptr}}}}}
              .dump()};
    }
    if (has(request.target, "logs/")) return {200, ""};
    if (++downloads == 1) return {200, "0123456789", 4};
    range = request.range;
    return {206, "456789"};
  });
  const Captured ran = house.run({"pull", "-o", "got"});
  CHECK(ran.exit.code == 0);
  CHECK(range == "bytes=4-");
  CHECK(read_file(house.work / "got" / path) == "0123456789");
  CHECK(fs::exists(house.work / "got/logs/0.out"));
  path = "../escaped";
  CHECK(house.run({"pull", "-o", "got"}).exit.code == 1);
  CHECK(!fs::exists(house.work / "escaped"));
}

TEST_CASE("pull: a folder's logs of another job are not taken for this one's") {
  House house;
  std::vector<std::string> asked;
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.target == "/v1/jobs") {
      return {200,
              json{{"jobs", {summary("a-aaaaaa", "succeeded"), summary("b-bbbbbb", "succeeded")}}}
                  .dump()};
    }
    if (request.target.ends_with("/files")) {
      const json row = {{"path", "logs/0.out"}, {"size", 4}, {"sha256", nullptr}};
      return {200, json{{"files", json::array({row})}}.dump()};
    }
    asked.push_back(request.target + " " + request.range);
    return {200, has(request.target, "a-aaaaaa") ? "aaaa" : "bbbb"};
  });
  const fs::path log = house.work / "got/logs/0.out";
  for (const std::string job : {"a-aaaaaa", "b-bbbbbb", "b-bbbbbb"}) {
    CHECK(house.run({"pull", job, "-o", "got"}).exit.code == 0);
    CHECK(read_file(log) == std::string(4, job.front()));
  }
  CHECK(json(asked) == json({"/v1/jobs/a-aaaaaa/files/logs/0.out bytes=0-",
                             "/v1/jobs/b-bbbbbb/files/logs/0.out bytes=0-"}));
}

TEST_CASE("pull: logs that were here when it was killed are not fetched again") {
  constexpr std::size_t kMuch = std::size_t{64} << 20;  // named at once
  std::promise<void> one_is_here;
  std::promise<void> gone;
  std::vector<std::string> asked;
  House house;  // it ends first: its head may still be asked
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.target == "/v1/jobs") {
      return {200, json{{"jobs", {summary("job-aaaaaa", "succeeded")}}}.dump()};
    }
    if (request.target.ends_with("/files")) {
      return {200, json{{"files",
                         {{{"path", "logs/0.out"}, {"size", kMuch}, {"sha256", nullptr}},
                          {{"path", "logs/1.out"}, {"size", 4}, {"sha256", nullptr}}}}}
                       .dump()};
    }
    asked.push_back(request.target.substr(request.target.rfind('/') + 1));
    if (asked.back() == "0.out") return {200, std::string(kMuch, 'x')};
    // This head closes the connection after each file, so that the next is asked for only then.
    if (asked.size() == 2) {
      one_is_here.set_value();
      gone.get_future().wait();
    }
    return {200, "rest"};
  });
  CHECK(house.leave({"pull", "-o", "got"}, one_is_here, SIGKILL).exit.signal == SIGKILL);
  gone.set_value();
  CHECK(house.run({"pull", "-o", "got"}).exit.code == 0);
  CHECK(json(asked) == json({"0.out", "1.out", "1.out"}));
  CHECK(fs::file_size(house.work / "got/logs/0.out") == kMuch);
  CHECK(read_file(house.work / "got/logs/1.out") == "rest");
}

TEST_CASE("pull: a log that did not get its name is not taken for one that is here") {
  House house;
  constexpr std::size_t kMuch = std::size_t{64} << 20;  // named at once, with those before it
  house.serve([&](const FakeHead::Request& request) -> FakeHead::Response {
    if (request.target == "/v1/jobs") {
      return {200, json{{"jobs", {summary("job-aaaaaa", "succeeded")}}}.dump()};
    }
    if (request.target.ends_with("/files")) {
      return {200, json{{"files",
                         {{{"path", "logs/0.out"}, {"size", 4}, {"sha256", nullptr}},
                          {{"path", "logs/1.out"}, {"size", 4}, {"sha256", nullptr}},
                          {{"path", "logs/2.out"}, {"size", kMuch}, {"sha256", nullptr}}}}}
                       .dump()};
    }
    return {200, request.target.ends_with("2.out") ? std::string(kMuch, 'x') : "ours"};
  });
  const fs::path logs = house.work / "got/logs";
  fs::create_directories(logs / "0.out");  // in the way
  write_file_atomic(logs / "1.out", "else");
  CHECK(house.run({"pull", "-o", "got"}).exit.code == 1);
  CHECK(read_file(logs / "1.out") == "else");
  fs::remove(logs / "0.out");
  CHECK(house.run({"pull", "-o", "got"}).exit.code == 0);
  CHECK(read_file(logs / "0.out") == "ours");
  CHECK(read_file(logs / "1.out") == "ours");
}
