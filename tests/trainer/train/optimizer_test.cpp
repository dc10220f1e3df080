#include "trainer/train/optimizer.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

void backward(test::SmallModel& model, int number) {
  for (const at::Tensor& p : model.parameters()) p.mutable_grad().reset();
  const test::Examples examples = test::make_examples(number);
  at::cross_entropy_loss(model.forward(examples.inputs), examples.labels).backward();
}

// The largest difference of any weight after five steps of ours and of LibTorch's own.
double difference(
    const std::function<std::unique_ptr<Optimizer>(std::vector<NamedParameter>)>& make,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>&
        make_theirs) {
  auto mine = test::make_small_model(1);
  auto theirs = test::make_small_model(1);
  const auto optimizer = make(named_parameters(*mine));
  const auto their_optimizer = make_theirs(theirs->parameters());
  const at::Tensor before = mine->parameters()[0].detach().clone();
  for (int step = 0; step < 5; ++step) {
    backward(*mine, step);
    optimizer->step();
    optimizer->zero_grad();
    backward(*theirs, step);
    their_optimizer->step();
  }
  CHECK((mine->parameters()[0] - before).abs().max().item<double>() > 1e-3);  // it moved
  double most = 0;
  for (std::size_t i = 0; i < mine->parameters().size(); ++i) {
    most = std::max(most,
                    (mine->parameters()[i] - theirs->parameters()[i]).abs().max().item<double>());
  }
  return most;
}

}  // namespace

TEST_CASE("the fused optimizers do what LibTorch's do") {
  const auto adam = [](const AdamOptions& o) {
    return [o](std::vector<NamedParameter> p) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Adam>(std::move(p), o);
    };
  };
  CHECK(difference(adam({.lr = 1e-2, .weight_decay = 0.1}), [](std::vector<at::Tensor> p) {
          return std::make_unique<torch::optim::Adam>(
              std::move(p), torch::optim::AdamOptions(1e-2).weight_decay(0.1));
        }) < 1e-5);
  CHECK(difference(adam({.lr = 1e-2, .amsgrad = true}), [](std::vector<at::Tensor> p) {
          return std::make_unique<torch::optim::Adam>(
              std::move(p), torch::optim::AdamOptions(1e-2).amsgrad(true));
        }) < 1e-5);
  CHECK(difference(
            [](std::vector<NamedParameter> p) -> std::unique_ptr<Optimizer> {
              return std::make_unique<AdamW>(std::move(p),
                                             AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
            },
            [](std::vector<at::Tensor> p) {
              return std::make_unique<torch::optim::AdamW>(
                  std::move(p), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
            }) < 1e-5);
  for (const bool nesterov : {true, false}) {
    for (const double momentum : {0.9, 0.0}) {
      if (nesterov && momentum == 0) continue;
      const double dampening = nesterov || momentum == 0 ? 0 : 0.5;
      CHECK(difference(
                [=](std::vector<NamedParameter> p) -> std::unique_ptr<Optimizer> {
                  return std::make_unique<Sgd>(std::move(p), SgdOptions{.lr = 0.1,
                                                                        .momentum = momentum,
                                                                        .dampening = dampening,
                                                                        .weight_decay = 0.01,
                                                                        .nesterov = nesterov});
                },
                [=](std::vector<at::Tensor> p) {
                  return std::make_unique<torch::optim::SGD>(std::move(p),
                                                             torch::optim::SGDOptions(0.1)
                                                                 .momentum(momentum)
                                                                 .dampening(dampening)
                                                                 .weight_decay(0.01)
                                                                 .nesterov(nesterov));
                }) < 1e-5);
    }
  }
}

TEST_CASE("the state has Python's keys, and moves to another optimizer") {
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {.lr = 1e-2});
  const auto fresh = optimizer.state();
  CHECK(fresh.size() == 12);
  for (const char* key : {"first.weight/step", "first.weight/exp_avg", "last.bias/exp_avg_sq"}) {
    CHECK(fresh.contains(key));
  }
  backward(*model, 0);
  optimizer.step();
  CHECK(optimizer.state().at("last.bias/step").item<float>() == 1);

  auto other_model = test::make_small_model(2);
  Adam other(named_parameters(*other_model), {.lr = 1e-2});
  other.load_state(optimizer.state());
  for (const auto& [key, tensor] : optimizer.state()) CHECK(other.state().at(key).equal(tensor));
  CHECK_FALSE(other.state()
                  .at("first.weight/exp_avg")
                  .is_same(optimizer.state().at("first.weight/exp_avg")));
}

TEST_CASE("a state that does not fit changes nothing") {
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  auto state = optimizer.state();
  for (auto& [key, tensor] : state) tensor = tensor + 1;
  const auto refusal = [&] { return message_of<Error>([&] { optimizer.load_state(state); }); };
  SUBCASE("missing") {
    state.erase("last.bias/step");
    CHECK(contains(refusal(), "'last.bias/step' is missing"));
  }
  SUBCASE("unknown") {
    state["last.bias/other"] = at::zeros({1});
    CHECK(contains(refusal(), "'last.bias/other' is not known"));
  }
  SUBCASE("shape") {
    state["last.bias/exp_avg"] = at::zeros({4});
    CHECK(contains(refusal(), "'last.bias/exp_avg' has another shape"));
  }
  CHECK(optimizer.state().at("first.weight/exp_avg").eq(0).all().item<bool>());
}

TEST_CASE("parameters without a gradient are left alone, and do not count steps") {
  auto model = test::make_small_model(1, {.extra_layer = true});
  Adam adam(named_parameters(*model), {});
  Sgd sgd(named_parameters(*model), {.momentum = 0.9});
  adam.step();  // no gradients at all
  sgd.step();
  const at::Tensor before = model->named_parameters()["extra.weight"].detach().clone();
  backward(*model, 0);
  adam.step();
  sgd.step();
  CHECK(model->named_parameters()["extra.weight"].equal(before));
  CHECK(adam.state().at("extra.weight/step").item<float>() == 0);
  CHECK(adam.state().at("first.weight/step").item<float>() == 1);
}

TEST_CASE("impossible optimizers are refused") {
  auto model = test::make_small_model(1);
  CHECK_THROWS_AS(Adam(std::vector<NamedParameter>{}, {}), Error);
  CHECK_THROWS_AS(Sgd(named_parameters(*model), {.nesterov = true}), Error);
}

TEST_CASE("parameters of two parts need names of their own: the state is kept by them") {
  auto encoder = test::make_small_model(1);
  auto decoder = test::make_small_model(2);
  const auto groups = [&](const std::string& a, const std::string& b) {
    std::vector<ParameterGroup> both(2);
    both[0].parameters = named_parameters(*encoder, a);
    both[1].parameters = named_parameters(*decoder, b);
    both[1].lr_scale = 0.5;
    return both;
  };
  CHECK(contains(message_of<Error>([&] { Adam(groups("", ""), {}); }),
                 "two parameters are called 'first.weight'"));
  Adam adam(groups("encoder", "decoder"), {});
  CHECK(adam.state().size() == 24);
  CHECK(adam.state().contains("decoder.first.weight/exp_avg"));
  CHECK(adam.parameters()[0].name == "encoder.first.weight");
  CHECK(decay_groups(*encoder, "encoder")[0].parameters[0].name == "encoder.first.weight");
  backward(*encoder, 0);
  backward(*decoder, 0);
  adam.step();
  Adam other(groups("encoder", "decoder"), {});
  other.load_state(adam.state());
  for (const auto& [key, tensor] : adam.state()) CHECK(other.state().at(key).equal(tensor));
}

TEST_CASE("AdamW decays when nothing is said about it, as PyTorch's") {
  CHECK(difference(
            [](std::vector<NamedParameter> p) -> std::unique_ptr<Optimizer> {
              return std::make_unique<AdamW>(std::move(p), AdamWOptions{.lr = 1e-2});
            },
            [](std::vector<at::Tensor> p) {
              return std::make_unique<torch::optim::AdamW>(std::move(p),
                                                           torch::optim::AdamWOptions(1e-2));
            }) < 1e-6);
  auto model = test::make_small_model(1);
  CHECK(AdamW(named_parameters(*model), {}).numbers().at("weight_decay") == 0.01);
  CHECK(Adam(named_parameters(*model), {}).numbers().at("weight_decay") == 0);
}
