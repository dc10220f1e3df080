#include "trainer/checkpoint/background.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <vector>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/checkpoint/store.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

TEST_CASE("work is done one piece after the other, behind, at low priority") {
  std::promise<void> go;
  std::vector<int> done;
  const int before = ::getpriority(PRIO_PROCESS, 0);
  int nice = 0;
  Background background;
  background.wait();  // nothing to wait for
  background.start([&](std::stop_token) {
    go.get_future().wait();
    nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)));
    done.push_back(1);
  });
  CHECK(done.empty());
  go.set_value();
  background.start([&](std::stop_token) { done.push_back(2); });
  background.wait();
  CHECK(done == std::vector<int>{1, 2});
  CHECK(nice == std::max(before, 10));
  CHECK(::getpriority(PRIO_PROCESS, 0) == before);
}

TEST_CASE("what the work throws is told once, and the next piece is not taken") {
  Background background;
  bool ran = false;
  background.start([](std::stop_token) { throw Error("full"); });
  CHECK(message_of<Error>([&] { background.start([&](std::stop_token) { ran = true; }); }) ==
        "full");
  background.wait();
  CHECK_FALSE(ran);
  background.start([&](std::stop_token) { ran = true; });
  background.wait();
  CHECK(ran);
}

TEST_CASE("its end stops the work that asks") {
  bool stopped = false;
  {
    Background background;
    background.start([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      stopped = true;
    });
  }
  CHECK(stopped);
}

TEST_CASE("the committer waits for all shards, and hears of one that does not come") {
  const test::TemporaryFolder storage;
  const std::stop_source stop;
  using Trouble = std::optional<std::string>;
  const auto none = [] { return Trouble(); };
  ShardWriter(storage.path(), 1, 5, 0, 2).finish();
  auto waiting = std::async(std::launch::async, [&] {
    wait_for_shards(storage.path(), 1, 5, 2, stop.get_token(), none);
  });
  ShardWriter(storage.path(), 1, 5, 1, 2).finish();
  waiting.get();

  ShardWriter(storage.path(), 1, 6, 0, 2).finish();
  int asked = 0;
  const auto later = [&] { return ++asked < 3 ? Trouble() : Trouble("rank 1: no space"); };
  CHECK(message_of<Error>([&] {
          wait_for_shards(storage.path(), 1, 6, 2, stop.get_token(), later);
        }) == "rank 1: no space");
  CHECK(asked == 3);

  CHECK(contains(message_of<Error>([&] {
                   wait_for_shards(storage.path(), 1, 7, 1, stop.get_token(), none,
                                   std::chrono::milliseconds(1));
                 }),
                 "not finished in time"));
  std::stop_source stopped;
  stopped.request_stop();
  CHECK(message_of<Error>([&] {
          wait_for_shards(storage.path(), 1, 7, 1, stopped.get_token(), none);
        }) == "the checkpoint of step 7 was given up");
}
