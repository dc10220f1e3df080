#include "agent/node/mirror.hpp"

#include <doctest/doctest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <fstream>
#include <optional>

#include "launcher/core/kept_log.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

const node::Mirror::Key kAttempt{JobId("job-1"), 1};

// A node's side, and a head that opens every log at once and takes what it is told to.
struct MirrorWorld {
  TemporaryFolder folder;
  paths::NodeRoot root{folder.path()};
  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  std::map<std::string, std::string> got;  // by file
  node::Mirror mirror{context.get_executor(), root,
                      [this](const wire::BulkMessage& message, std::string bytes) {
                        if (const auto* open = std::get_if<wire::LogOpen>(&message)) {
                          mirror.message(wire::LogFrom{open->log, 0});
                        } else if (const auto* data = std::get_if<wire::LogData>(&message)) {
                          CHECK(got[data->log.file].size() == data->offset);
                          got[data->log.file] += bytes;
                        }
                      }};

  void write(const std::string& file, std::size_t bytes) const {
    const fs::path ranks = paths::attempt(root, kAttempt.first, kAttempt.second).ranks();
    fs::create_directories(ranks);
    std::ofstream(ranks / file, std::ios::app) << std::string(bytes, 'x');
  }
  void take(const std::string& file) {
    mirror.message(wire::LogTaken{{kAttempt.first, kAttempt.second, file}, got[file].size()});
  }
  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
  }
};

std::string log_of(int rank) {
  return std::to_string(rank) + ".out";
}

}  // namespace

TEST_CASE("logs: one that never ends leaves room for the others") {
  MirrorWorld world;
  constexpr int kRanks = wire::kLogWindow / wire::kBulkFrame + 1;  // one more than fit at once
  for (int rank = 0; rank < kRanks; ++rank) world.write(log_of(rank), wire::kLogWindow);
  world.mirror.enable(true);
  world.mirror.connected(true);
  world.mirror.follow(kAttempt);
  world.run_until([&] {
    std::size_t all = 0;
    for (const auto& [file, bytes] : world.got) all += bytes.size();
    return all == wire::kLogWindow;
  });
  // The head takes of one alone, again and again: the last one has its turn all the same.
  world.run_until([&] {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (world.got[log_of(rank)].empty()) {
        world.take(log_of(0));
        return false;
      }
    }
    return true;
  });
}

TEST_CASE("logs: an attempt's end waits for what it wrote, not for others") {
  MirrorWorld world;
  world.write(log_of(0), 10);
  world.mirror.enable(true);
  world.mirror.connected(true);
  world.mirror.follow(kAttempt);
  bool over = false;
  world.mirror.drain(kAttempt, dtrain::testing::kPatience, [&](bool whole) { over = whole; });
  world.run_until([&] { return world.got[log_of(0)].size() == 10; });
  CHECK_FALSE(over);
  world.take(log_of(0));
  world.run_until([&] { return over; });
}

TEST_CASE("logs: a head that does not take them is not waited for without end, and that is said") {
  MirrorWorld world;
  world.write(log_of(0), 10);
  world.mirror.enable(true);
  world.mirror.connected(true);
  world.mirror.follow(kAttempt);
  std::optional<bool> all;
  world.mirror.drain(kAttempt, std::chrono::milliseconds(1), [&](bool whole) { all = whole; });
  world.run_until([&] { return all.has_value(); });
  CHECK_FALSE(*all);
}

TEST_CASE("logs: a head that knows nothing of an attempt has not its logs") {
  MirrorWorld world;
  world.write(log_of(0), 10);
  world.mirror.enable(true);
  world.mirror.connected(true);
  world.mirror.follow(kAttempt);
  std::optional<bool> over;
  world.mirror.drain(kAttempt, dtrain::testing::kPatience, [&](bool whole) { over = whole; });
  world.run_until([&] { return !world.got.empty(); });
  world.mirror.message(wire::LogRefused{{kAttempt.first, kAttempt.second, log_of(0)}});
  world.run_until([&] { return over.has_value(); });
  CHECK(*over);  // for nothing is waited
  CHECK(world.mirror.refused(kAttempt));
  world.mirror.connected(true);
  CHECK_FALSE(world.mirror.refused(kAttempt));
}

TEST_CASE("logs: where a head has lost what is released here, the copy begins behind it") {
  MirrorWorld world;
  const fs::path log = paths::attempt(world.root, kAttempt.first, kAttempt.second).out(0);
  constexpr std::size_t kHole = 100000;
  world.write("0.out", kHole);
  std::ofstream(log, std::ios::in) << std::string(kHole, '\0');  // as a hole is read
  world.write("0.out", 10);
  mark_released(log, kHole);
  std::vector<wire::LogData> sent;
  node::Mirror mirror(world.context.get_executor(), world.root,
                      [&](const wire::BulkMessage& message, const std::string& bytes) {
                        if (const auto* open = std::get_if<wire::LogOpen>(&message)) {
                          mirror.message(wire::LogFrom{open->log, 7});
                        } else if (const auto* data = std::get_if<wire::LogData>(&message)) {
                          sent.push_back(*data);
                          CHECK(bytes == std::string(10, 'x'));
                        }
                      });
  mirror.enable(true);
  mirror.connected(true);
  mirror.follow(kAttempt);
  std::optional<bool> whole;
  mirror.drain(kAttempt, dtrain::testing::kPatience, [&](bool all) { whole = all; });
  world.run_until([&] { return !sent.empty(); });
  CHECK(sent.front().offset == kHole);
  CHECK(sent.front().released);
  // What it has said that it has, and no more, may go.
  CHECK(mirror.taken(kAttempt).at("0.out") == kHole);
  mirror.message(wire::LogTaken{sent.front().log, kHole + 10});
  CHECK(mirror.taken(kAttempt).at("0.out") == kHole + 10);
  world.run_until([&] { return whole.has_value(); });
  CHECK(*whole);
  CHECK(sent.size() == 1);
}
