#include "trainer/train/measures.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

at::Tensor labels_of(const std::vector<std::int64_t>& labels) {
  return at::tensor(labels, at::kLong);
}

}  // namespace

TEST_CASE("measures of one rank") {
  Context context = Context::join(Environment{}, {});
  WeightedMean mean;
  CHECK(std::isnan(mean.over(context)));
  mean.add(1, 3);
  mean.add(5, 1);
  mean.add(std::nan(""), 0);
  CHECK(mean.over(context) == 2);

  const at::Tensor scores = at::tensor({0.1F, 0.9F, 0.5F, 0.5F, 0.5F, 0.1F}).view({2, 3});
  Accuracy first;
  Accuracy second(2);
  CHECK(std::isnan(first.over(context)));
  first.add(scores, labels_of({1, 1}));
  second.add(scores, labels_of({2, 1}));
  CHECK(first.over(context) == 0.5);  // of two equal scores the lower class wins
  CHECK(second.over(context) == 1);
  Accuracy broken;
  broken.add(at::full({1, 3}, std::nan("")), labels_of({0}));
  CHECK(broken.over(context) == 0);

  ConfusionMatrix confusion(3);
  confusion.add(scores, labels_of({1, 2}));
  const at::Tensor counts = confusion.over(context);
  CHECK(counts.sum().item<std::int64_t>() == 2);
  CHECK(counts[1][1].item<std::int64_t>() == 1);
  CHECK(counts[2][0].item<std::int64_t>() == 1);
  CHECK(recall_by_class(counts)[1] == 1);
  CHECK(recall_by_class(counts)[2] == 0);
  CHECK(std::isnan(recall_by_class(counts)[0]));
  CHECK(precision_by_class(counts)[0] == 0);
  confusion.reset();
  CHECK(confusion.over(context).sum().item<std::int64_t>() == 0);
}

TEST_CASE("labels that are no class are refused") {
  Accuracy accuracy;
  CHECK(contains(message_of<Error>([&] {
                   accuracy.add(at::zeros({1, 3}), labels_of({3}));
                 }),
                 "label 3 is not one of 3 classes"));
  ConfusionMatrix confusion(3);
  CHECK(contains(message_of<Error>([&] {
                   confusion.add(at::zeros({1, 3}), labels_of({-1}));
                 }),
                 "label -1"));
  CHECK(contains(message_of<Error>([&] {
                   confusion.add(at::zeros({1, 4}), labels_of({0}));
                 }),
                 "4 classes"));
  CHECK(contains(message_of<Error>([&] {
                   accuracy.add(at::zeros({2, 3}), labels_of({0}));
                 }),
                 "[batch, classes]"));
}

TEST_CASE("measures of three ranks with uneven samples are those of all samples") {
  const test::TemporaryFolder folder;
  for (const test::Exit& exit : test::launch("measures", 3, folder.path())) {
    CAPTURE(test::read_file(folder / "rank-0.log"));
    CHECK(exit.code == 0);
  }
}
