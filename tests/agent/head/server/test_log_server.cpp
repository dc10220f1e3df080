#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <map>
#include <memory>

#include "agent/head/server/file_server.hpp"
#include "agent/head/server/log_copies.hpp"
#include "agent/head/server/log_files.hpp"
#include "agent/head/server/log_server.hpp"
#include "agent/head/server/news_queue.hpp"
#include "agent/head/setup.hpp"
#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/wire/identity.hpp"
#include "tests/agent/head/engine/world.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

TEST_CASE("a follower's query is read strictly") {
  const head::FollowQuery all = head::parse_follow_query("");
  CHECK(all.logs);
  CHECK(all.events);
  CHECK(all.follow);
  CHECK_FALSE(all.rank);
  const head::FollowQuery some = head::parse_follow_query(
      "from=1&logs=1&events=0&follow=0&rank=3&attempt=2&stream=err&tail=10");
  CHECK_FALSE(some.events);
  CHECK_FALSE(some.follow);
  CHECK(some.from);
  CHECK_FALSE(all.from);
  CHECK(some.rank == 3);
  CHECK(some.attempt == 2);
  CHECK(some.stream == "err");
  CHECK(some.tail == 10);
  for (const char* wrong : {"rank=", "rank=-1", "rank=1x", "rank=99999999999", "follow=yes",
                            "stream=both", "colour=1", "&", "tail"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(head::parse_follow_query(wrong), Error);
  }
}

TEST_CASE("of a job that waits nothing changes but what its followers are told") {
  for (const char* state : {"queued", "staging", "starting", "running", "restarting", "stopping",
                            "succeeded", "failed", "stopped"}) {
    CAPTURE(state);
    head::FollowSnapshot now;
    now.job = {{"state", state}};
    const bool waits = std::string(state) == "queued" || std::string(state) == "restarting";
    CHECK(head::changes_unsaid(now) == !waits);
  }
}

TEST_CASE("the last lines of a file are found from its end") {
  const dtrain::testing::TemporaryFolder folder;
  const fs::path path = folder / "log";
  const auto tail = [&](const std::string& content, int lines) {
    write_file_atomic(path, content);
    const UniqueFd fd = open_file(path, O_RDONLY);
    return content.substr(head::tail_offset(fd.get(), lines));
  };
  CHECK(tail("a\nb\nc\n", 2) == "b\nc\n");
  CHECK(tail("a\nb\nc", 2) == "b\nc");
  CHECK(tail("a\nb\nc\n", 9) == "a\nb\nc\n");
  CHECK(tail("a\nb\nc\n", 0).empty());
  CHECK(tail("", 3).empty());
  CHECK(tail("\n\n\n", 2) == "\n\n");
  write_file_atomic(path, "a\nb\nc\nd\n");
  const UniqueFd fd = open_file(path, O_RDONLY);
  CHECK(head::tail_offset(fd.get(), 2, 2) == 4);
  CHECK(head::tail_offset(fd.get(), 3, 4) == 4);  // what lies before it is not there
  // Across the blocks that are read.
  const std::string line(70000, 'x');
  CHECK(tail(line + "\n" + line + "\n" + line, 2) == line + "\n" + line);
}

TEST_CASE("logs: a file that is not there is told from one that cannot be opened") {
  const dtrain::testing::TemporaryFolder folder;
  head::LogFiles files;
  CHECK(files.open(folder / "0.out") == nullptr);
  write_file_atomic(folder / "0.out", "abc");
  const auto one = files.open(folder / "0.out");
  REQUIRE(one != nullptr);
  CHECK(files.open(folder / "0.out") == one);  // for all who read it
  fs::create_symlink("loop", folder / "loop");
  CHECK_THROWS_AS(files.open(folder / "loop"), Error);
}

namespace {

nlohmann::json metrics(int rank, int step, const char* name) {
  return {{"type", "metrics"}, {"rank", rank}, {"step", step}, {"metrics", {{name, step}}}};
}

}  // namespace

TEST_CASE("news: all of it in order for a follower that takes it") {
  head::NewsQueue queue;
  CHECK(queue.add({{"type", "event"}, {"event", 1}}));
  CHECK_FALSE(queue.add(metrics(0, 1, "loss")));  // it is awake
  CHECK(queue.take()->at("event") == 1);
  CHECK(queue.take()->at("step") == 1);
  CHECK_FALSE(queue.take());
  CHECK_FALSE(queue.take_missed_events());
  CHECK(queue.add({{"type", "state"}, {"state", "running"}}));
}

TEST_CASE("news: for a follower that stands still the newest of each kind is kept") {
  head::NewsQueue queue;
  queue.add(metrics(0, 0, "once"));
  constexpr int kMany = 100000;
  for (int step = 1; step <= kMany; ++step) {
    queue.add(metrics(step % 3, step, "loss"));
    queue.add({{"type", "progress"}, {"rank", step % 3}, {"step", step}});
    if (step % 10 == 0) queue.add({{"type", "event"}, {"event", step}});
    if (step % 100 == 0)
      queue.add({{"type", "state"}, {"state", "number " + std::to_string(step)}});
    REQUIRE(queue.size() <= head::kNewsLimit);
  }
  CHECK(queue.take_missed_events());
  CHECK_FALSE(queue.take_missed_events());
  std::string state;
  std::map<std::string, int> last;
  bool once = false;
  while (const auto frame = queue.take()) {
    const std::string type = frame->at("type");
    if (type == "state") state = frame->at("state");
    if (type == "metrics" || type == "progress") last[type] = frame->at("step");
    if (type == "metrics") once = once || frame->at("metrics").contains("once");
  }
  CHECK(state == "number " + std::to_string(kMany));
  CHECK(last["metrics"] == kMany);
  CHECK(last["progress"] == kMany);
  CHECK(once);  // the newest value of each name
}

TEST_CASE("news: very many ranks are not looked through for each frame") {
  head::NewsQueue queue;
  constexpr int kRanks = 5000;
  for (int step = 0; step < 4; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) queue.add(metrics(rank, step, "loss"));
  }
  CHECK(queue.size() <= 2 * kRanks);
}

TEST_CASE(
    "a head signs for the nodes that it lets in, and an init that is repeated changes nothing") {
  const dtrain::testing::TemporaryFolder folder;
  const paths::HeadRoot root{folder.path() / "head"};
  const head::HeadConfig config{ClusterId("lab-abcdef"), "lab", "local", 2, 0, 0};
  head::init_head(root, config);
  const std::string ca = read_file(root.ca() / "cert.pem");
  head::HeadConfig running = head::read_head_config(root);
  running.port = 46512;
  head::write_head_config(root, running);
  head::init_head(root, config);
  CHECK(read_file(root.ca() / "cert.pem") == ca);
  CHECK(head::read_head_config(root).port == 46512);

  const NodeId node("node-0");
  CHECK_FALSE(head::is_let_in(root, node));
  CHECK_FALSE(head::is_let_in(root, NodeId("../head.json")));
  const std::string request =
      node::init_node({folder.path() / "node"}, ClusterId("lab-abcdef"), node);
  CHECK_THROWS_AS(head::sign_node(root, NodeId("node-1"), request), Error);
  CHECK_FALSE(head::is_let_in(root, NodeId("node-1")));
  node::install_identity({folder.path() / "node"}, head::sign_node(root, node, request));
  CHECK(head::is_let_in(root, node));
}

TEST_CASE("logs: a copy goes on where it ended, or behind what its node has released") {
  const dtrain::testing::TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  CHECK(head::append_copy(log, 0, "abc") == 3);
  CHECK(head::append_copy(log, 1, "bcd") == 4);
  CHECK(head::append_copy(log, 9, "x") == 4);  // something is missing
  CHECK(released_of(log) == 0);
  CHECK(head::append_copy(log, 9, "xy", true) == 11);
  CHECK(released_of(log) == 9);
  const UniqueFd fd = open_file(log, O_RDONLY);
  CHECK(read_kept(fd.get(), log, 2, 100).offset == 9);  // what it held before is older still
  CHECK(read_kept(fd.get(), log, 4, 100).offset == 9);
  CHECK(read_kept(fd.get(), log, 4, 100).bytes == "xy");
  // Sent again, since the answer was lost.
  CHECK(head::append_copy(log, 9, "xyz", true) == 12);
  CHECK(released_of(log) == 9);
  // A head that was killed between mark and file.
  mark_released(log, 20);
  CHECK(head::append_copy(log, 15, "x", true) == 16);
  CHECK(released_of(log) == 20);
}

TEST_CASE("a head may end while the engine is at a follower's question") {
  head::testing::World world(1);
  const JobId job = world.submit(head::testing::World::spec());
  boost::asio::io_context context(1);
  const auto work = boost::asio::make_work_guard(context);
  auto server = std::make_unique<head::LogServer>(context, *world.engine);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd client(ends[0]);
  boost::asio::local::stream_protocol::socket socket(context, boost::asio::local::stream_protocol(),
                                                     ends[1]);
  server->follow(std::move(socket),
                 "GET / HTTP/1.1\r\nHost: head\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                 job, {});
  // The question; its answer is never taken, and goes with the engine.
  REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
  server->stop();
  server.reset();
}

TEST_CASE("files: of a log whose oldest part was released that is listed") {
  const dtrain::testing::TemporaryFolder folder;
  write_file_atomic(folder / "0.out", "0123456789");
  mark_released(folder / "0.out", 4);
  head::JobFiles files;
  files.logs = {{"logs/attempt-1/0.out", folder / "0.out"},
                {"logs/attempt-1/0.err", folder / "0.err"}};
  const nlohmann::json listed = head::list_files(files);
  REQUIRE(listed["files"].size() == 1);
  CHECK(listed["files"][0]["size"] == 10);
  CHECK(listed["files"][0]["released"] == 4);
  CHECK(listed["troubles"].empty());
}
