#include "trainer/train/scheduler.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

std::unique_ptr<Sgd> sgd(double momentum = 0.9) {
  return std::make_unique<Sgd>(named_parameters(*test::make_small_model(1)),
                               SgdOptions{.lr = 0.5, .momentum = momentum});
}

}  // namespace

TEST_CASE("the optimizer's rate follows the schedule, per step or per epoch") {
  const auto optimizer = sgd();
  Scheduler steps(*optimizer, exponential_schedule(0.5));
  CHECK(optimizer->lr() == 0.5);
  steps.after_epoch();
  CHECK(optimizer->lr() == 0.5);
  steps.after_step();
  steps.after_step();
  CHECK(optimizer->lr() == 0.125);

  const auto other = sgd();
  Scheduler epochs(*other, multi_step_schedule({1}, 0.5), Scheduler::Per::epoch);
  epochs.after_step();
  CHECK(other->lr() == 0.5);
  epochs.after_epoch();
  CHECK(other->lr() == 0.25);
}

TEST_CASE("one cycle moves the momentum, where there is one") {
  const auto optimizer = sgd();
  Scheduler scheduler(*optimizer, one_cycle_schedule({.max_lr = 1, .total_steps = 10}));
  CHECK(optimizer->lr() == doctest::Approx(1.0 / 25));
  CHECK(optimizer->momentum() == doctest::Approx(0.95));
  const auto plain = sgd(0);
  CHECK(contains(message_of<Error>([&] {
                   Scheduler(*plain, one_cycle_schedule({.max_lr = 1, .total_steps = 10}));
                 }),
                 "without momentum"));
}

TEST_CASE("a schedule goes on from its state, and refuses another's") {
  const auto make = [] { return cosine_schedule(100); };
  const auto optimizer = sgd();
  Scheduler scheduler(*optimizer, make());
  for (int i = 0; i < 37; ++i) scheduler.after_step();
  const nlohmann::json state = nlohmann::json::parse(scheduler.state().dump());

  const auto other = sgd();
  other->set_lr(3);  // a checkpoint's rate, set before
  Scheduler resumed(*other, make());
  resumed.load_state(state);
  CHECK(other->lr() == optimizer->lr());
  resumed.after_step();
  scheduler.after_step();
  CHECK(other->lr() == optimizer->lr());

  const auto third = sgd();
  Scheduler fresh(*third, make());
  third->set_lr(3);  // of a checkpoint that has no schedule
  fresh.begin_anew();
  CHECK(third->lr() == 0.5);

  Scheduler stranger(*other, cosine_schedule(101));
  CHECK(contains(message_of<Error>([&] { stranger.load_state(state); }), "\"steps\":100"));
  CHECK(contains(message_of<Error>([&] { resumed.load_state({{"done", 1}}); }), "not its state"));
}

TEST_CASE("a momentum that an earlier part of a sequence has moved is there after a resume") {
  const auto make = [] {
    return sequential_schedule({one_cycle_schedule({.max_lr = 1, .total_steps = 10}),
                                exponential_schedule(0.9), exponential_schedule(0.5)},
                               {7, 20});
  };
  const auto optimizer = sgd();
  Scheduler scheduler(*optimizer, make());
  for (int i = 0; i < 6; ++i) scheduler.after_step();
  const double left_at = optimizer->momentum();
  CHECK(left_at != 0.9);
  for (const int steps : {5, 10}) {  // in the second part, in the third
    for (int i = 0; i < steps; ++i) scheduler.after_step();
    CHECK(optimizer->momentum() == left_at);
    const auto other = sgd();
    Scheduler resumed(*other, make());
    resumed.load_state(nlohmann::json::parse(scheduler.state().dump()));
    CHECK(other->momentum() == left_at);
    CHECK(other->lr() == optimizer->lr());
  }

  // Where no part moves it, it stays what the optimizer was made with, or was set to since.
  Scheduler plain(*optimizer,
                  sequential_schedule({cosine_schedule(5), exponential_schedule(0.5)}, {5}));
  optimizer->set_momentum(0.7);
  for (int i = 0; i < 8; ++i) plain.after_step();
  CHECK(optimizer->momentum() == 0.7);
}

TEST_CASE("groups: norms and biases do not decay, and a group scales its rate") {
  auto model = test::make_small_model(1, {.batch_norm = true});
  auto groups = decay_groups(*model);
  REQUIRE(groups.size() == 2);
  std::vector<std::string> decaying;
  for (const auto& p : groups[0].parameters) decaying.push_back(p.name);
  CHECK(decaying == std::vector<std::string>{"first.weight", "last.weight"});
  CHECK(groups[1].parameters.size() == 4);
  CHECK(groups[1].weight_decay == 0);

  // Gradients of zero: only the decay moves anything, and the rate is part of it.
  for (const auto& p : named_parameters(*model)) p.tensor.mutable_grad() = at::zeros_like(p.tensor);
  const at::Tensor weight = model->named_parameters()["first.weight"].detach().clone();
  const at::Tensor bias = model->named_parameters()["first.bias"].detach().clone();
  groups[0].lr_scale = 0.5;
  AdamW adamw(groups, {.lr = 0.1, .weight_decay = 0.2});
  adamw.step();
  CHECK(model->named_parameters()["first.weight"].allclose(weight * (1 - 0.1 * 0.5 * 0.2)));
  CHECK(model->named_parameters()["first.bias"].equal(bias));

  const at::Tensor before = model->named_parameters()["first.weight"].detach().clone();
  for (const double momentum : {0.0, 0.9}) {
    CAPTURE(momentum);
    at::NoGradGuard no_grad;
    model->named_parameters()["first.weight"].copy_(before);
    Sgd sgd(groups, {.lr = 0.1, .momentum = momentum, .weight_decay = 0.2});
    sgd.step();
    CHECK(model->named_parameters()["first.weight"].allclose(before * (1 - 0.1 * 0.5 * 0.2)));
    CHECK(model->named_parameters()["first.bias"].equal(bias));
  }

  groups.push_back(groups[0]);
  CHECK(contains(message_of<Error>([&] { AdamW(groups, {}); }), "'first.weight' is given twice"));
}
