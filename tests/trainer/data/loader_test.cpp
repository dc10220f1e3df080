#include "trainer/data/loader.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <numeric>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using Batch = std::vector<std::int64_t>;

namespace {

Batch copy(std::span<const std::int64_t> indices) {
  return {indices.begin(), indices.end()};
}

DistributedSampler in_order(std::int64_t size) {
  return {size, 0, 1, {.shuffle = false}};
}

}  // namespace

TEST_CASE("batches come in order, whatever the workers") {
  for (const int workers : {0, 1, 4}) {
    Loader<Batch> loader(in_order(103), {.batch_size = 10, .workers = workers, .prefetch = 3},
                         copy);
    CHECK(loader.batches() == 11);
    Batch all;
    while (auto batch = loader.next()) all.insert(all.end(), batch->begin(), batch->end());
    Batch expected(103);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(all == expected);
    CHECK_FALSE(loader.next().has_value());
  }
}

TEST_CASE("the last batch is short, or left out") {
  Loader<Batch> dropping(in_order(25), {.batch_size = 10, .drop_last = true}, copy);
  int batches = 0;
  while (auto batch = dropping.next()) {
    ++batches;
    CHECK(batch->size() == 10);
  }
  CHECK(batches == 2);
}

TEST_CASE("an order that comes out wrong is put right: the first batch is made last") {
  // Batch 0 is finished only when batch 1 is.
  std::latch second_done(1);
  Loader<Batch> loader(in_order(2), {.batch_size = 1, .workers = 2, .prefetch = 1},
                       [&](std::span<const std::int64_t> indices) {
                         if (indices.front() == 0) second_done.wait();
                         if (indices.front() == 1) second_done.count_down();
                         return copy(indices);
                       });
  CHECK(loader.next()->front() == 0);
  CHECK(loader.next()->front() == 1);
}

TEST_CASE("prefetching is bounded") {
  constexpr int kWindow = 6;
  std::atomic<int> made = 0;
  Loader<Batch> loader(in_order(1000), {.batch_size = 1, .workers = 2, .prefetch = 3},
                       [&](std::span<const std::int64_t> indices) {
                         made.fetch_add(1);
                         return copy(indices);
                       });
  for (int given = 1; given <= 500; ++given) {
    loader.next();
    CHECK(made.load() <= given + kWindow);
  }
}

TEST_CASE("what a worker throws arrives at its batch's turn, and ends the pass") {
  for (const int workers : {0, 3}) {
    Loader<Batch> loader(in_order(50), {.batch_size = 10, .workers = workers},
                         [](std::span<const std::int64_t> indices) {
                           if (indices.front() == 20) throw SampleError("cats", 23, "no tail");
                           return copy(indices);
                         });
    CHECK(loader.next()->front() == 0);
    CHECK(loader.next()->front() == 10);
    CHECK(test::message_of<SampleError>([&] { loader.next(); }) ==
          "data set cats, sample 23: no tail");
    CHECK_FALSE(loader.next().has_value());
  }
}

TEST_CASE("a loader may be left in the middle") {
  Loader<Batch> loader(in_order(1000), {.batch_size = 1, .workers = 2}, copy);
  CHECK(loader.next().has_value());
}

TEST_CASE("impossible options are refused") {
  CHECK_THROWS_AS(Loader<Batch>(in_order(1), {.batch_size = 0}, copy), Error);
  CHECK_THROWS_AS(Loader<Batch>(in_order(1), {.prefetch = 0}, copy), Error);
}

TEST_CASE("a loader knows where its time went") {
  for (const int workers : {0, 1}) {
    Loader<Batch> loader(in_order(20), {.batch_size = 10, .workers = workers}, copy);
    while (loader.next()) {
    }
    CHECK(loader.stats().batches == 2);
    CHECK(loader.stats().made.count() > 0);
    CHECK(loader.stats().waited.count() > 0);
  }
}
