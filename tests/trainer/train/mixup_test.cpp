// Against torchvision: tests/golden/resnet/make.py.
#include "trainer/train/mixup.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/made_tensors.hpp"
#include "trainer/api/data_loader.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::made_tensor;
using test::message_of;

TEST_CASE("mixup and CutMix are torchvision's") {
  const TensorMap golden = test::torchvision_golden();
  const at::Tensor images = made_tensor(3, {4, 3, 10, 14}, 0, 1);
  const at::Tensor labels = at::tensor({2, 0, 1, 2}, at::kLong);
  const Mixed both = mixup(images, labels, 3, 0.3);
  CHECK(both.images.allclose(golden.at("mixup.images"), 1e-6, 1e-6));
  CHECK(both.labels.allclose(golden.at("mixup.labels"), 1e-6, 1e-6));
  const Mixed cut = cutmix(images, labels, 3, 0.6, 2, 11);
  CHECK(cut.images.equal(golden.at("cutmix.images")));
  CHECK(cut.labels.allclose(golden.at("cutmix.labels"), 1e-6, 1e-6));
  CHECK(cutmix(images.mul(255).to(at::kByte), labels, 3, 0.6, 2, 11).images.dtype() == at::kByte);
  CHECK(contains(message_of<Error>([&] { mixup(images.to(at::kByte), labels, 3, 0.5); }),
                 "images of bytes"));
  CHECK(contains(message_of<Error>([&] { mixup(images, labels, 2, 0.5); }), "from 0 to 1"));
}

TEST_CASE("weights of mixed samples follow Beta(alpha, alpha)") {
  for (const double alpha : {0.01, 0.2, 1.0, 4.0}) {
    CAPTURE(alpha);
    SampleRandom random(5, 0, 0);
    double sum = 0;
    double squares = 0;
    constexpr int kCount = 20000;
    for (int i = 0; i < kCount; ++i) {
      const double value = beta_number(alpha, random);
      REQUIRE(value >= 0);
      REQUIRE(value <= 1);
      sum += value;
      squares += value * value;
    }
    const double mean = sum / kCount;
    CHECK(mean == doctest::Approx(0.5).epsilon(0.03));
    CHECK(squares / kCount - mean * mean ==
          doctest::Approx(1 / (4 * (2 * alpha + 1))).epsilon(0.03));
  }
}

TEST_CASE("a loader's mixed batches are a function of seed, epoch and samples") {
  const DataLoader plain = DataLoader::of_tensors(
      {made_tensor(1, {12, 1, 6, 6}, 0, 1), at::arange(12) % 3}, {.batch_size = 4, .workers = 2});
  const DataLoader loader =
      plain.mixed({.num_classes = 3, .mixup_alpha = 0.8, .cutmix_alpha = 1, .seed = 4});
  auto pass = loader.pass(0);
  pass.next();
  const auto second = pass.next();
  CHECK((*second)[1].sizes() == at::IntArrayRef({4, 3}));
  CHECK((*second)[1].sum(1).allclose(at::ones({4})));
  CHECK_FALSE((*second)[0].equal((*plain.pass(0, 4).next())[0]));
  const auto resumed = loader.pass(0, 4).next();
  CHECK((*resumed)[0].equal((*second)[0]));
  CHECK((*resumed)[1].equal((*second)[1]));
  CHECK_FALSE((*loader.pass(1, 4).next())[1].equal((*second)[1]));
  CHECK(std::isfinite(at::cross_entropy_loss(at::randn({4, 3}), (*second)[1]).item<double>()));
  CHECK(contains(message_of<Error>([&] { plain.mixed({.num_classes = 3}).pass(0).next(); }),
                 "must be above 0"));
}
