// Reports of ranks, through a real supervisor; the test speaks on the ranks' sockets.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <vector>

#include "agent/supervise/outbox.hpp"
#include "tests/agent/supervise/driver.hpp"

using namespace dtrain;
using dtrain::testing::Driver;
using dtrain::testing::LineReader;
using nlohmann::json;

namespace {

// A rank that lives until `release` is called.
struct Held : Driver {
  explicit Held(int nproc = 1) { shell("mkfifo f$RANK; echo up >up$RANK; read x <f$RANK", nproc); }

  void begin() {
    start_and_connect();
    until<wire::RanksStarted>();
    for (int rank = 0; rank < spec.nproc; ++rank) wait_for_line("work/up" + std::to_string(rank));
  }
  void release() {
    for (int rank = 0; rank < spec.nproc; ++rank) {
      write_all(open_file(spec.workdir + "/f" + std::to_string(rank), O_RDWR).get(), "\n");
    }
  }
  wire::RankReport report() { return until<wire::RankReport>(); }
};

std::string metrics(int step, bool ack = false) {
  json body = {{"type", "metrics"}, {"step", step}, {"metrics", {{"loss", 0.5}}}};
  if (ack) body["ack"] = true;
  return body.dump() + "\n";
}

}  // namespace

TEST_CASE("metrics and checkpoints arrive whole and in order") {
  Held driver(2);
  driver.begin();
  const UniqueFd rank1 = driver.report_connection(1);
  write_all(rank1.get(), metrics(1) + metrics(2));
  // Cut anywhere, a line is a line.
  write_all(rank1.get(), "{\"type\":\"checkpoint\",\"st");
  write_all(rank1.get(), "ep\":3,\"path\":\"out/c\",\"keep\":true}\n");
  CHECK(driver.report().body["step"] == 1);
  CHECK(driver.report().body["step"] == 2);
  const auto checkpoint = driver.report();
  CHECK(checkpoint.rank == 1);
  CHECK(checkpoint.body["keep"] == true);
  CHECK(checkpoint.body["path"] == driver.spec.workdir + "/out/c");
  driver.release();
  driver.finish();
}

TEST_CASE("what a rank reported just before its end comes before its end") {
  Held driver;
  driver.begin();
  UniqueFd rank0 = driver.report_connection(0);
  std::string many;
  for (int step = 0; step < 500; ++step) many += metrics(step);
  write_all(rank0.get(), many);
  driver.release();
  rank0.reset();
  driver.finish();
  std::vector<int> steps;
  for (const auto& event : driver.seen) {
    if (const auto* report = std::get_if<wire::RankReport>(&event.body)) {
      steps.push_back(report->body["step"].get<int>());
    }
  }
  CHECK(steps.size() == 500);
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  CHECK(std::holds_alternative<wire::RankExited>(driver.seen[driver.seen.size() - 2].body));
}

TEST_CASE("heartbeats of a node's ranks come as one event, if the head knows it") {
  Held driver(2);
  driver.spec.beats = true;
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  const UniqueFd rank1 = driver.report_connection(1);
  write_all(rank0.get(), "{\"type\":\"heartbeat\",\"step\":1,\"phase\":\"data\"}\n");
  const auto first = driver.until<wire::RankBeats>();
  REQUIRE(first.beats.size() == 1);
  CHECK(first.beats[0] == wire::RankBeat{0, 1, "data", std::nullopt});
  write_all(rank0.get(), "{\"type\":\"heartbeat\",\"step\":2,\"ack\":true}\n");
  write_all(rank1.get(), "{\"type\":\"heartbeat\",\"collective\":5,\"ack\":true}\n");
  CHECK(LineReader(rank0.get()).next() == R"({"ok":true})");
  CHECK(LineReader(rank1.get()).next() == R"({"ok":true})");
  driver.ack(driver.seen.back().seq);
  const auto second = driver.until<wire::RankBeats>();
  REQUIRE(second.beats.size() == 2);
  CHECK(second.beats[0].step == 2);
  CHECK(second.beats[1].rank == 1);
  CHECK(second.beats[1].collective->sequence == 5);
  driver.release();
  driver.finish();
}

TEST_CASE("answers come to those who asked, in the order of their requests") {
  Held driver;
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  LineReader answers(rank0.get());
  write_all(rank0.get(), "{\"type\":\"checkpoint\",\"step\":1,\"path\":\"/c\",\"ack\":true}\n" +
                             metrics(2, true) + metrics(3) +
                             "{\"type\":\"heartbeat\",\"ack\":true}\n");
  driver.report();
  const std::uint64_t checkpoint = driver.seen.back().seq;
  driver.report();
  driver.report();
  const std::uint64_t last = driver.seen.back().seq;
  // All is durable: metrics are answered by that, but the checkpoint before them is not committed.
  driver.ack(last);
  driver.ack(checkpoint, json{{"ok", true}, {"path", "/final"}});
  CHECK(*answers.next() == R"({"ok":true,"path":"/final"})");
  CHECK(*answers.next() == R"({"ok":true})");
  CHECK(*answers.next() == R"({"ok":true})");
  SUBCASE("nobody is left waiting at the end") {
    write_all(rank0.get(), "{\"type\":\"checkpoint\",\"step\":2,\"path\":\"/c\",\"ack\":true}\n");
    driver.report();
    driver.release();
    driver.until<wire::NodeFinished>();
    CHECK(json::parse(*answers.next()).contains("error"));
    driver.ack(driver.seen.back().seq);
    CHECK(driver.wait_exit() == 0);
    return;
  }
  SUBCASE("a rank that has said all may still hear") {
    write_all(rank0.get(), metrics(9, true));
    ::shutdown(rank0.get(), SHUT_WR);
    driver.report();
    driver.ack(driver.seen.back().seq);
    CHECK(*answers.next() == R"({"ok":true})");
    CHECK_FALSE(answers.next().has_value());
  }
  driver.release();
  driver.finish();
}

TEST_CASE("who holds back a checkpoint is read, however much was reported since it began") {
  Held driver(2);
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  const UniqueFd rank1 = driver.report_connection(1);
  LineReader answers(rank1.get());
  const auto shard = [](int number) {
    return json{{"type", "checkpoint"}, {"step", 1},   {"path", "/c"},
                {"shard", number},      {"shards", 2}, {"ack", true}}
               .dump() +
           "\n";
  };
  write_all(rank0.get(), shard(0));
  driver.report();
  const std::uint64_t first = driver.seen.back().seq;
  for (std::size_t i = 0; i <= supervise::Outbox::kEventsMax; ++i) {
    write_all(rank0.get(), metrics(2));
    driver.report();
    driver.send(wire::EventHeard{driver.seen.back().seq, std::nullopt});
  }
  // One that waits for the answer about something else before it goes on.
  write_all(rank1.get(), metrics(2, true));
  driver.report();
  driver.send(wire::EventHeard{driver.seen.back().seq, json{{"ok", true}}});
  CHECK(answers.next() == R"({"ok":true})");
  write_all(rank1.get(), metrics(3, true));
  driver.report();
  driver.send(wire::EventHeard{driver.seen.back().seq, std::nullopt});
  CHECK(answers.next() == R"({"ok":true})");
  write_all(rank1.get(), shard(1));
  CHECK(driver.report().body["shard"] == 1);
  driver.send(wire::EventHeard{driver.seen.back().seq, json{{"ok", true}, {"path", "/final"}}});
  CHECK(answers.next() == R"({"ok":true,"path":"/final"})");
  // What is not durable is sent again to who comes next, and nothing else.
  driver.connect();
  CHECK(driver.report().body["shard"] == 0);
  CHECK(driver.seen.back().seq == first);
  driver.ack(first);
  driver.release();
  CHECK(driver.finish().outcome == wire::NodeFinished::Outcome::succeeded);
}

TEST_CASE("who asks for an answer has one in its turn when its report is dropped too") {
  Held driver;
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  LineReader answers(rank0.get());
  const auto error = [&] { return json::parse(*answers.next()).value("error", ""); };
  std::string bad;
  std::string why;
  SUBCASE("no JSON") {
    bad = R"({"type": "metrics", "step": 2, "metrics": {"loss": NaN}, "ack": true})";
    why = R"(write "nan", "inf" and "-inf" as JSON strings)";
  }
  SUBCASE("no such report") {
    bad = R"({"ack":true,"type":"checkpoint","step":2,"path":"/c","shard":1,"shards":1})";
    why = "shard";
  }
  SUBCASE("too long") {
    bad = json{{"type", "progress"}, {"step", 2}, {"message", std::string(200'000, 'x')}}.dump();
    bad.back() = ',';
    bad += "\"ack\" : true}";
    why = "longer than 65536 bytes";
  }
  SUBCASE("too long, with ack at its beginning") {
    bad = R"({"ack":true,"type":"progress","message":")" + std::string(200'000, 'x') + "\"}";
    why = "longer than 65536 bytes";
  }
  write_all(rank0.get(), metrics(1, true) + bad + "\n" + metrics(3, true));
  CHECK(driver.report().body["step"] == 1);
  CHECK(driver.report().body["step"] == 3);
  driver.ack(driver.seen.back().seq);
  CHECK(*answers.next() == R"({"ok":true})");
  CHECK(error().find(why) != std::string::npos);
  CHECK(*answers.next() == R"({"ok":true})");
  // Who does not ask hears nothing of it.
  write_all(rank0.get(), "{\"type\":\"metrics\",\"ack\":false}\n" + metrics(4, true));
  CHECK(driver.report().body["step"] == 4);
  driver.ack(driver.seen.back().seq);
  CHECK(*answers.next() == R"({"ok":true})");
  // A line that is not ended is one all the same once nothing more comes.
  write_all(rank0.get(), bad);
  ::shutdown(rank0.get(), SHUT_WR);
  CHECK(error().find(why) != std::string::npos);
  CHECK_FALSE(answers.next().has_value());
  driver.release();
  driver.finish();
}

TEST_CASE("hostile lines are dropped with few warnings and hurt nothing") {
  Held driver;
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  write_all(rank0.get(), std::string(5'000'000, 'x') + "\n");
  std::string bad;
  for (int i = 0; i < 1000; ++i) bad += "{\"type\":\"metrics\"}\n";
  write_all(rank0.get(), bad + std::string(60000, '[') + "\n" + metrics(7));
  CHECK(driver.report().body["step"] == 7);
  std::vector<std::string> warnings;
  for (const auto& event : driver.seen) {
    if (const auto* warning = std::get_if<wire::AttemptWarning>(&event.body)) {
      CHECK(warning->rank == 0);
      warnings.push_back(warning->message);
    }
  }
  REQUIRE_FALSE(warnings.empty());
  CHECK(warnings.front().find("longer than 65536 bytes") != std::string::npos);
  CHECK(warnings.size() < 20);
  // Half a line at the end of a connection is dropped as well; the next connection is as good.
  {
    const UniqueFd other = driver.report_connection(0);
    write_all(other.get(), "{\"type\":");
  }
  const UniqueFd third = driver.report_connection(0);
  write_all(third.get(), metrics(8));
  CHECK(driver.report().body["step"] == 8);
  driver.release();
  CHECK(driver.finish().outcome == wire::NodeFinished::Outcome::succeeded);
  // How many there were is said at the end.
  std::size_t counted = 0;
  for (const auto& event : driver.seen) {
    const auto* warning = std::get_if<wire::AttemptWarning>(&event.body);
    if (warning != nullptr && warning->message.find("more") != std::string::npos) ++counted;
  }
  CHECK(counted >= 1);
}

TEST_CASE("of progress only the newest waits for a slow head") {
  Held driver;
  driver.begin();
  const UniqueFd rank0 = driver.report_connection(0);
  std::string many;
  for (int step = 0; step <= 10000; ++step) {
    many += json{{"type", "progress"}, {"step", step}}.dump() + "\n";
  }
  write_all(rank0.get(), many + metrics(1));
  int progress = 0;
  while (driver.report().body["type"] == "progress") ++progress;
  CHECK(progress == 1);
  driver.release();
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.exit.ok());
  // Before the end comes the newest.
  const auto& before = std::get<wire::RankReport>(driver.seen[driver.seen.size() - 2].body);
  CHECK(before.body["step"] == 10000);
  driver.finish();
  // And none of it is kept on disk.
  const auto record = supervise::read_exit(driver.root);
  REQUIRE(record.has_value());
  for (const auto& event : record->events) {
    if (const auto* report = std::get_if<wire::RankReport>(&event.body)) {
      CHECK(report->body["type"] == "metrics");
    }
  }
}

TEST_CASE("a head that is away holds up those who report, and loses nothing") {
  Held driver;
  driver.begin();
  driver.disconnect();
  const UniqueFd rank0 = driver.report_connection(0);
  ::fcntl(rank0.get(), F_SETFL, O_NONBLOCK);
  constexpr int kReports = 20000;
  int sent = 0;
  std::string rest;
  const auto send_more = [&] {  // false when the socket is full
    while (sent < kReports || !rest.empty()) {
      if (rest.empty()) rest = metrics(sent++);
      const ssize_t wrote = ::send(rank0.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (wrote < 0) return false;
      rest.erase(0, static_cast<std::size_t>(wrote));
    }
    return true;
  };
  // As many as the outbox holds, and then full for a while that is long against the time that
  // reading takes.
  auto full_since = std::chrono::steady_clock::now();
  testing::wait_until("the rank is held up", [&] {
    const int before = sent;
    send_more();
    if (sent != before) full_since = std::chrono::steady_clock::now();
    return sent > static_cast<int>(supervise::Outbox::kEventsMax) &&
           std::chrono::steady_clock::now() - full_since > std::chrono::milliseconds(300);
  });
  CHECK(sent < kReports);
  driver.connect();
  for (int expected = 0; expected < kReports; ++expected) {
    send_more();
    const auto report = driver.report();
    REQUIRE(report.body["step"] == expected);
    driver.ack(driver.seen.back().seq);
  }
  driver.release();
  CHECK(driver.finish().outcome == wire::NodeFinished::Outcome::succeeded);
}

TEST_CASE("a head that is away holds up those too who connect for each report") {
  Held driver;
  driver.begin();
  driver.disconnect();
  int steps = 0;
  const auto lines = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += metrics(steps++);
    return text;
  };
  const UniqueFd rank0 = driver.report_connection(0);
  const auto write_read = [&](const std::string& text) {
    write_all(rank0.get(), text);
    testing::wait_until("all is read", [&] {
      int unread = 0;
      return ::ioctl(rank0.get(), SIOCOUTQ, &unread) == 0 && unread == 0;
    });
  };
  // The outbox, in which some other events are, is full only with the last lines, which are so few
  // that they are read in one go.
  constexpr int kLast = 100;
  write_read(lines(static_cast<int>(supervise::Outbox::kEventsMax) - kLast));
  write_read(lines(2 * kLast));
  // More than are read at a time.
  for (int i = 0; i < 300; ++i) {
    const UniqueFd once = driver.report_connection(0);
    write_all(once.get(), metrics(steps++));
  }
  SUBCASE("the rank lives on") {}
  SUBCASE("the rank ends meanwhile") {
    driver.release();
    testing::wait_until("the rank's end", [&] {
      for (const auto& event : driver.seen) {
        const auto* started = std::get_if<wire::RanksStarted>(&event.body);
        if (started != nullptr) return testing::gone(started->ranks[0].pid);
      }
      return false;
    });
  }
  driver.connect();
  std::vector<int> arrived;
  while (static_cast<int>(arrived.size()) < steps) {
    arrived.push_back(driver.report().body["step"].get<int>());
    driver.ack(driver.seen.back().seq);
  }
  // Of connections side by side nobody knows which is read first.
  std::sort(arrived.begin(), arrived.end());
  for (int step = 0; step < steps; ++step) REQUIRE(arrived[static_cast<std::size_t>(step)] == step);
  driver.release();  // which a rank that has ended does not hear
  CHECK(driver.finish().outcome == wire::NodeFinished::Outcome::succeeded);
  CHECK(std::holds_alternative<wire::RankExited>(driver.seen[driver.seen.size() - 2].body));
}

TEST_CASE("connections for reports leave descriptors for the node agent's") {
  Held driver;
  driver.begin();
  constexpr rlim_t kFiles = 128;
  const rlimit few{kFiles, kFiles};
  REQUIRE(::prlimit(driver.supervisor(), RLIMIT_NOFILE, &few, nullptr) == 0);
  std::vector<UniqueFd> connections;
  for (int step = 0; step < static_cast<int>(kFiles); ++step) {
    connections.push_back(driver.report_connection(0));
    write_all(connections.back().get(), metrics(step));
  }
  // More than half of all descriptors are not for reports.
  const auto warning = driver.until<wire::AttemptWarning>();
  CHECK(warning.message.find("there are 64 connections for reports") == 0);
  driver.disconnect();
  driver.connect();
  connections.clear();
  driver.release();
  CHECK(driver.finish().outcome == wire::NodeFinished::Outcome::succeeded);
  std::set<int> steps;
  for (const auto& event : driver.seen) {
    const auto* report = std::get_if<wire::RankReport>(&event.body);
    if (report != nullptr) steps.insert(report->body["step"].get<int>());
  }
  CHECK(steps.size() == kFiles);
}
