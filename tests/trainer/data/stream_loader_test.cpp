#include "trainer/data/stream_loader.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <set>

#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;
using test::message_of;

namespace {

using Ints = std::vector<int>;
using IntLoader = StreamLoader<int, Ints>;

// The numbers below `size` that fall to a part; throws at `bad`.
class Numbers : public SampleStream<int> {
 public:
  Numbers(StreamShare share, int size, int bad = -1)
      : at_(share.part), step_(share.parts), size_(size), bad_(bad) {}
  std::optional<int> next() override {
    if (at_ >= size_) return std::nullopt;
    if (at_ == bad_) throw Error("unlucky");
    return std::exchange(at_, at_ + step_);
  }

 private:
  int at_;
  int step_;
  int size_;
  int bad_;
};

IntLoader::Open numbers(int size, int bad = -1) {
  return [size, bad](StreamShare share) { return std::make_unique<Numbers>(share, size, bad); };
}

Ints same(Ints samples) {
  return samples;
}

std::vector<Ints> all_of(IntLoader& loader) {
  std::vector<Ints> batches;
  while (auto batch = loader.next()) batches.push_back(*batch);
  return batches;
}

}  // namespace

TEST_CASE("each sample of a stream comes once, over ranks and workers") {
  std::multiset<int> seen;
  for (int rank = 0; rank < 3; ++rank) {
    IntLoader loader("numbers", {.batch_size = 4, .rank = rank, .ranks = 3, .workers = 2},
                     numbers(100), same);
    for (const Ints& batch : all_of(loader)) seen.insert(batch.begin(), batch.end());
  }
  CHECK(seen.size() == 100);
  CHECK(std::set(seen.begin(), seen.end()).size() == 100);
}

TEST_CASE("the order is the workers' in turn, however fast they are") {
  const std::vector<Ints> expected{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8}, {9}};
  for (int round = 0; round < 20; ++round) {
    IntLoader loader("numbers", {.batch_size = 2, .workers = 2, .prefetch = 1}, numbers(10), same);
    CHECK(all_of(loader) == expected);
  }
  IntLoader dropping("numbers", {.batch_size = 2, .workers = 2, .drop_last = true}, numbers(10),
                     same);
  CHECK(all_of(dropping).size() == 4);
  IntLoader resumed("numbers", {.batch_size = 2, .workers = 2, .skip = 3}, numbers(10), same);
  CHECK(all_of(resumed) == std::vector<Ints>(expected.begin() + 3, expected.end()));
  IntLoader beyond("numbers", {.batch_size = 2, .skip = 30}, numbers(10), same);
  CHECK(all_of(beyond).empty());
}

TEST_CASE("an error comes at its turn, with data set and number, and ends the pass") {
  IntLoader loader("numbers", {.batch_size = 2, .workers = 2}, numbers(100, 6), same);
  CHECK(loader.next() == Ints{0, 2});
  CHECK(loader.next() == Ints{1, 3});
  CHECK(message_of<SampleError>([&] { loader.next(); }) == "data set numbers, sample 3: unlucky");
  CHECK_FALSE(loader.next().has_value());
}

TEST_CASE("a loader that nobody reads to its end ends, and takes only so many ahead") {
  std::atomic<int> made = 0;
  {
    IntLoader loader("numbers", {.batch_size = 1, .workers = 2, .prefetch = 3}, numbers(1 << 30),
                     [&](Ints samples) {
                       ++made;
                       return samples;
                     });
    loader.next();
  }
  CHECK(made <= 1 + 2 * (3 + 1));
  CHECK_THROWS_AS(IntLoader("x", {.batch_size = 0}, numbers(1), same), Error);
}
