#include "trainer/data/sampler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trainer/core/error.hpp"

using namespace dtrain::train;

namespace {

std::vector<std::int64_t> rest_of(const DistributedSampler& sampler) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < sampler.remaining(); ++i) samples.push_back(sampler.at(i));
  return samples;
}

std::vector<std::int64_t> epoch_of(std::int64_t size, int rank, int ranks,
                                   DistributedSampler::Options options, std::int64_t epoch = 0,
                                   std::int64_t position = 0) {
  DistributedSampler sampler(size, rank, ranks, options);
  sampler.set_epoch(epoch, position);
  return rest_of(sampler);
}

}  // namespace

TEST_CASE("an order holds every sample once, for any size") {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    const Permutation order(size, 42, 3);
    std::vector<std::int64_t> seen;
    for (std::int64_t i = 0; i < size; ++i) seen.push_back(order[i]);
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    CHECK(seen == all);
  }
}

TEST_CASE("an order is shuffled: neighbours do not stay, and each place is hit alike") {
  constexpr std::int64_t kSize = 1000;
  const Permutation order(kSize, 1, 0);
  int neighbours = 0;
  for (std::int64_t i = 1; i < kSize; ++i) neighbours += order[i] == order[i - 1] + 1 ? 1 : 0;
  CHECK(neighbours < 10);  // one is expected
  // Where sample order[0] comes from over many seeds: tenths of the range, each near 200 of 2000.
  std::map<std::int64_t, int> tenths;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    ++tenths[Permutation(kSize, seed, 0)[0] / 100];
  }
  CHECK(tenths.size() == 10);
  for (const auto& [tenth, count] : tenths) {
    CHECK(count > 130);
    CHECK(count < 270);
  }
}

TEST_CASE("the order depends on seed and epoch, and on nothing else") {
  const DistributedSampler::Options seven{.seed = 7};
  const auto first = epoch_of(100, 0, 1, seven, 0);
  CHECK(first == epoch_of(100, 0, 1, seven, 0));
  CHECK(first != epoch_of(100, 0, 1, seven, 1));
  CHECK(first != epoch_of(100, 0, 1, {.seed = 8}, 0));
  DistributedSampler used(100, 0, 1, seven);
  used.set_epoch(5);
  used.set_epoch(0);
  CHECK(rest_of(used) == first);
}

TEST_CASE("ranks share an epoch") {
  const auto join = [](Tail tail) {
    std::vector<std::vector<std::int64_t>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(epoch_of(10, rank, 3, {.tail = tail, .seed = 1}));
    }
    return ranks;
  };
  const auto flatten = [](const auto& ranks) {
    std::multiset<std::int64_t> all;
    for (const auto& rank : ranks) all.insert(rank.begin(), rank.end());
    return all;
  };
  SUBCASE("pad: all equally many, the first of the order twice") {
    const auto ranks = join(Tail::pad);
    for (const auto& rank : ranks) CHECK(rank.size() == 4);
    const auto all = flatten(ranks);
    CHECK(std::set(all.begin(), all.end()).size() == 10);
    const auto order = epoch_of(10, 0, 1, {.seed = 1});
    CHECK(all.count(order[0]) == 2);
    CHECK(all.count(order[1]) == 2);
    CHECK(all.count(order[2]) == 1);
  }
  SUBCASE("drop: all equally many, one sample left out") {
    const auto ranks = join(Tail::drop);
    for (const auto& rank : ranks) CHECK(rank.size() == 3);
    const auto all = flatten(ranks);
    CHECK(std::set(all.begin(), all.end()).size() == 9);
  }
  SUBCASE("keep: each sample exactly once") {
    const auto ranks = join(Tail::keep);
    CHECK(ranks[0].size() == 4);
    CHECK(ranks[2].size() == 3);
    const auto all = flatten(ranks);
    CHECK(all.size() == 10);
    CHECK(std::set(all.begin(), all.end()).size() == 10);
  }
}

TEST_CASE("a place in the epoch is taken up again, by any number of ranks") {
  DistributedSampler sampler(100, 1, 2, {.seed = 3});
  sampler.set_epoch(4);
  const auto whole = rest_of(sampler);
  const std::int64_t position = sampler.position_after(20);
  CHECK(position == 40);
  CHECK(epoch_of(100, 1, 2, {.seed = 3}, 4, position) ==
        std::vector(whole.begin() + 20, whole.end()));
  // What four ranks do from there is what two would have done.
  std::multiset<std::int64_t> by_two;
  std::multiset<std::int64_t> by_four;
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto i : epoch_of(100, rank, 2, {.seed = 3}, 4, position)) by_two.insert(i);
  }
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto i : epoch_of(100, rank, 4, {.seed = 3}, 4, position)) by_four.insert(i);
  }
  CHECK(by_two == by_four);
  CHECK(sampler.position_after(sampler.remaining()) == 100);
  sampler.set_epoch(4, 100);
  CHECK(sampler.remaining() == 0);
}

TEST_CASE("a place that another number of ranks counted need not divide by these") {
  // Two ranks took 2 each, then three go on: 6 of 10 are left, and each comes once.
  for (const Tail tail : {Tail::pad, Tail::drop, Tail::keep}) {
    std::multiset<std::int64_t> seen;
    const auto order = epoch_of(10, 0, 1, {.seed = 3});
    for (int rank = 0; rank < 3; ++rank) {
      for (const auto i : epoch_of(10, rank, 3, {.tail = tail, .seed = 3}, 0, 4)) seen.insert(i);
    }
    CHECK(seen == std::multiset<std::int64_t>(order.begin() + 4, order.end()));
  }
  // Five are left for three ranks: padded to six from the order's beginning, or cut to three.
  std::vector<std::size_t> padded;
  std::size_t dropped = 0;
  for (int rank = 0; rank < 3; ++rank) {
    padded.push_back(epoch_of(10, rank, 3, {.seed = 3}, 0, 5).size());
    dropped += epoch_of(10, rank, 3, {.tail = Tail::drop, .seed = 3}, 0, 5).size();
  }
  CHECK(padded == std::vector<std::size_t>{2, 2, 2});
  CHECK(dropped == 3);
  DistributedSampler sampler(10, 1, 3, {.seed = 3});
  sampler.set_epoch(0, 5);
  CHECK(sampler.position_after(2) == 11);
  sampler.set_epoch(0, 11);
  CHECK(sampler.remaining() == 0);
}

TEST_CASE("impossible samplers are refused") {
  CHECK_THROWS_AS(DistributedSampler(-1, 0, 1, {}), Error);
  CHECK_THROWS_AS(DistributedSampler(10, 2, 2, {}), Error);
  DistributedSampler sampler(10, 0, 2, {});
  CHECK_THROWS_AS(sampler.set_epoch(0, -1), Error);
  CHECK_THROWS_AS(sampler.at(5), Error);
  CHECK(DistributedSampler(0, 0, 2, {}).remaining() == 0);
}
