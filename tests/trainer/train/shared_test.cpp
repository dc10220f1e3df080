// What ranks share: statistics (batch_norm.hpp), a loss scale (precision.hpp), JSON (objects.hpp).
// And, of one rank: clipping and the other optimizers.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include <limits>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/precision.hpp"

using namespace dtrain::train;
using test::contains;
using test::holds;
using test::launch;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;

TEST_CASE("synchronized batch norm is that of the joined batch, uneven shares too") {
  holds("sync_norm", 3, {"shared_memory", "gloo"});
}

TEST_CASE("synchronized batch norm loses nothing to a large mean") {
  const std::string golden =
      (std::filesystem::path(std::getenv("DTRAIN_GOLDEN")) / "python_ddp/batch_norm.json").string();
  const TemporaryFolder folder;
  const auto exits =
      launch("sync_norm_stable", 3, folder.path(), {{"TEST_BATCH_NORM_GOLDEN", golden}});
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CHECK_MESSAGE(exits[rank].code == 0,
                  read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
  }
}

TEST_CASE("torch's own batch norm cannot be synchronized, and is named") {
  class Theirs : public torch::nn::Module {
   public:
    Theirs() { register_module("bn", torch::nn::BatchNorm2d(3)); }
  };
  Theirs model;
  Context context = Context::join(Environment{}, {});
  CHECK(contains(message_of<Error>([&] { sync_batch_norm(model, context); }), "'bn'"));
}

TEST_CASE("one rank's infinite gradient is a step that no rank takes") {
  holds("scaler", 2, {"shared_memory"});
}

TEST_CASE("objects of different sizes") {
  holds("objects", 3, {"shared_memory", "gloo"});
}

TEST_CASE("a resume over Gloo begins with the layout that was kept") {
  holds("kept_layout", 3, {"gloo"});
}

TEST_CASE("clipping is Python's") {
  auto model = test::make_small_model(1);
  auto theirs = test::make_small_model(1);
  for (auto* each : {model.get(), theirs.get()}) {
    const test::Examples examples = test::make_examples(0);
    at::cross_entropy_loss(each->forward(examples.inputs), examples.labels).backward();
  }
  const auto parameters = named_parameters(*model);
  for (const double limit : {0.1, 1e3}) {
    const double norm = gradient_norm(parameters);
    const double expected = torch::nn::utils::clip_grad_norm_(theirs->parameters(), limit);
    CHECK(clip_gradient_norm(parameters, limit) == doctest::Approx(norm));
    CHECK(norm == doctest::Approx(expected));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CHECK(parameters[i].tensor.grad().allclose(theirs->parameters()[i].grad()));
    }
  }
  CHECK(gradient_norm(parameters) == doctest::Approx(0.1));
  clip_gradient_values(parameters, 0.001);
  for (const NamedParameter& p : parameters) {
    CHECK(p.tensor.grad().abs().max().item<double>() <= 0.001001);
  }
  parameters[0].tensor.grad().view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(clip_gradient_norm(parameters, 1)));
  CHECK(parameters[1].tensor.grad().isnan().all().item<bool>());  // nothing is hidden
}

TEST_CASE("RMSprop and Adagrad do what LibTorch's do") {
  const auto check = [](auto make, auto make_theirs) {
    auto mine = test::make_small_model(1);
    auto theirs = test::make_small_model(1);
    auto optimizer = make(named_parameters(*mine));
    auto their_optimizer = make_theirs(theirs->parameters());
    for (int step = 0; step < 5; ++step) {
      const test::Examples examples = test::make_examples(step);
      at::cross_entropy_loss(mine->forward(examples.inputs), examples.labels).backward();
      at::cross_entropy_loss(theirs->forward(examples.inputs), examples.labels).backward();
      optimizer.step();
      optimizer.zero_grad();
      their_optimizer.step();
      their_optimizer.zero_grad();
    }
    for (std::size_t i = 0; i < mine->parameters().size(); ++i) {
      CHECK(mine->parameters()[i].allclose(theirs->parameters()[i], 1e-4, 1e-5));
    }
    CHECK(!mine->parameters()[0].equal(test::make_small_model(1)->parameters()[0]));
  };
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.9}) {
      check(
          [=](std::vector<NamedParameter> p) {
            return RmsProp(std::move(p), {.lr = 1e-2,
                                          .alpha = 0.9,
                                          .weight_decay = 0.1,
                                          .momentum = momentum,
                                          .centered = centered});
          },
          [=](std::vector<at::Tensor> p) {
            return torch::optim::RMSprop(std::move(p), torch::optim::RMSpropOptions(1e-2)
                                                           .alpha(0.9)
                                                           .weight_decay(0.1)
                                                           .momentum(momentum)
                                                           .centered(centered));
          });
    }
  }
  check(
      [](std::vector<NamedParameter> p) {
        return Adagrad(
            std::move(p),
            {.lr = 1e-2, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5});
      },
      [](std::vector<at::Tensor> p) {
        return torch::optim::Adagrad(std::move(p), torch::optim::AdagradOptions(1e-2)
                                                       .lr_decay(0.1)
                                                       .weight_decay(0.1)
                                                       .initial_accumulator_value(0.5));
      });
}

TEST_CASE("autocast computes in 16 bits, and leaves nothing behind") {
  auto model = test::make_small_model(1);
  const test::Examples examples = test::make_examples(0);
  const at::Tensor full = model->forward(examples.inputs);
  {
    const Autocast autocast(c10::Device(c10::kCPU), Precision::bf16);
    const at::Tensor half = model->forward(examples.inputs);
    CHECK((half.scalar_type() == at::kBFloat16));
    CHECK(half.to(at::kFloat).allclose(full, 0.05, 0.05));
    half.to(at::kFloat).sum().backward();
  }
  CHECK(model->forward(examples.inputs).equal(full));
  CHECK((model->parameters()[0].grad().scalar_type() == at::kFloat));
  const Autocast none(c10::Device(c10::kCPU), Precision::fp32);
  CHECK((model->forward(examples.inputs).scalar_type() == at::kFloat));
  CHECK((precision_of("bf16-mixed") == Precision::bf16));
  CHECK(contains(message_of<Error>([] { precision_of("8"); }), "'8'"));
}
