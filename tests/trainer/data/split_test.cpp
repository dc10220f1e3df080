#include "trainer/data/split.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using Lengths = std::vector<std::int64_t>;

namespace {

// Ten images of one pixel, whose value and label are their index.
Images ten() {
  MemoryImages::Content content;
  content.name = "ten";
  content.rows = content.columns = 1;
  content.class_count = 10;
  for (std::uint8_t i = 0; i < 10; ++i) {
    content.pixels.push_back(i);
    content.labels.push_back(i);
  }
  return std::make_shared<MemoryImages>(std::move(content));
}

}  // namespace

TEST_CASE("lengths of parts are those that Python's random_split gives") {
  // [len(part) for part in torch.utils.data.random_split(range(samples), lengths)]
  CHECK(split_lengths(10, {0.8, 0.2}) == Lengths{8, 2});
  CHECK(split_lengths(11, {0.5, 0.5}) == Lengths{6, 5});
  CHECK(split_lengths(10, {0.33, 0.33, 0.34}) == Lengths{4, 3, 3});
  CHECK(split_lengths(20, {0.29, 0.29, 0.29, 0.13}) == Lengths{6, 6, 6, 2});
  CHECK(split_lengths(60000, {0.9, 0.1}) == Lengths{54000, 6000});
  CHECK(split_lengths(100, {0.7, 0.2, 0.1}) == Lengths{70, 20, 10});
  CHECK(split_lengths(7, std::vector<SplitLength>(10, 0.1)) ==
        Lengths{1, 1, 1, 1, 1, 1, 1, 0, 0, 0});
  CHECK(split_lengths(5, {1}) == Lengths{5});
  CHECK(split_lengths(10, {7, 3}) == Lengths{7, 3});
  CHECK(split_lengths(10, {10, 0}) == Lengths{10, 0});
}

TEST_CASE("lengths that do not fit are refused") {
  const auto refusal = [](std::vector<SplitLength> lengths) {
    return message_of<Error>([&] { split_lengths(10, lengths); });
  };
  CHECK(contains(refusal({7, 4}), "neither those of 10 samples nor parts"));
  CHECK(contains(refusal({0.5, 0.4}), "sum to 0.9"));
  CHECK(contains(refusal({9.5, 0.5}), "neither"));
  CHECK(contains(refusal({1.5, -0.5}), "a length of -0.5"));
  CHECK(contains(refusal({}), "neither"));
}

TEST_CASE("random parts have each sample once, by the seed alone") {
  const auto parts = random_split(1000, {0.7, 0.2, 0.1}, 5);
  CHECK(parts == random_split(1000, {700, 200, 100}, 5));
  CHECK(parts != random_split(1000, {700, 200, 100}, 6));
  Lengths all;
  for (const Lengths& part : parts) all.insert(all.end(), part.begin(), part.end());
  CHECK(!std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  Lengths expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
}

TEST_CASE("a split stays as it was: a resume with other parts would train on what it validates") {
  CHECK(random_split(10, {6, 4}, 1) == std::vector<Lengths>{{4, 0, 3, 8, 7, 6}, {5, 2, 9, 1}});
}

TEST_CASE("a subset of images is a source of its own") {
  const Images some = subset(ten(), {7, 0, 7});
  CHECK(some->size() == 3);
  CHECK(some->class_count() == 10);
  std::vector<std::uint8_t> scratch;
  CHECK(some->image(0, scratch).pixels[0] == 7);
  CHECK(some->label(1) == 0);
  CHECK(some->label(2) == 7);
  CHECK(contains(message_of<Error>([] { subset(ten(), {10}); }),
                 "data set ten: a subset wants sample 10, there are 10"));
  const auto parts = random_split(ten(), {0.8, 0.2}, 3);
  CHECK(parts[0]->size() == 8);
  std::vector<std::int64_t> labels;
  for (const Images& part : parts) {
    for (std::int64_t i = 0; i < part->size(); ++i) labels.push_back(part->label(i));
  }
  std::sort(labels.begin(), labels.end());
  CHECK(labels == Lengths{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}
