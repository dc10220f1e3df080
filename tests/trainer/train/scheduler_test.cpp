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

TEST_CASE("with another number of ranks a schedule goes on at the same share of its length") {
  const auto state_at = [](const SchedulePtr& schedule, int done) {
    const auto optimizer = sgd();
    Scheduler scheduler(*optimizer, schedule);
    for (int i = 0; i < done; ++i) scheduler.after_step();
    return nlohmann::json::parse(scheduler.state().dump());
  };
  std::string warned;
  const Warn warn = [&](const std::string& text) { warned += text; };
  const auto cycle = [](std::int64_t total, double max_lr = 1) {
    return one_cycle_schedule({.max_lr = max_lr, .total_steps = total});
  };
  const auto optimizer = sgd();
  Scheduler longer(*optimizer, cycle(20));
  longer.load_state_of_other_ranks(state_at(cycle(10), 4), warn);
  CHECK(longer.done() == 8);
  CHECK(optimizer->lr() == cycle(20)->at(0.5, 8).lr);
  CHECK(contains(warned, "\"total_steps\":10"));
  CHECK(contains(warned, "at step 8 in place of 4"));
  Scheduler shorter(*optimizer, cycle(5));
  shorter.load_state_of_other_ranks(longer.state(), warn);
  CHECK(shorter.done() == 2);

  // A warm-up of as many steps as ever, in a sequence that is twice as long.
  const auto sequence = [](std::int64_t total) {
    return sequential_schedule({linear_schedule(0.1, 1, 5), cosine_schedule(total - 5)}, {5});
  };
  Scheduler in_sequence(*optimizer, sequence(40));
  in_sequence.load_state_of_other_ranks(state_at(sequence(20), 10), warn);
  CHECK(in_sequence.done() == 20);
  Scheduler stairs(*optimizer, multi_step_schedule({20, 60}));
  stairs.load_state_of_other_ranks(state_at(multi_step_schedule({10, 30}), 15), warn);
  CHECK(stairs.done() == 30);

  warned.clear();
  Scheduler same(*optimizer, cycle(10));
  same.load_state_of_other_ranks(state_at(cycle(10), 4), warn);
  CHECK(same.done() == 4);
  CHECK(warned.empty());

  // What is no length, and what counts epochs, must still be the same.
  const auto refusal = [&](Scheduler& scheduler, const nlohmann::json& state) {
    return message_of<Error>([&] { scheduler.load_state_of_other_ranks(state, warn); });
  };
  CHECK(contains(refusal(longer, state_at(cycle(10, 2), 4)), "\"max_lr\":2"));
  CHECK(contains(refusal(longer, state_at(cosine_schedule(10), 4)), "cosine"));
  CHECK(contains(refusal(stairs, state_at(multi_step_schedule({10}), 4)), "[10]"));
  CHECK(contains(refusal(longer, {{"done", 1}}), "not its state"));
  CHECK(contains(refusal(longer, {{"done", 1}, {"per", "step"}, {"schedule", 3}}), "not its"));
  Scheduler epochs(*optimizer, cosine_schedule(10), Scheduler::Per::epoch);
  nlohmann::json other = epochs.state();
  other["schedule"]["steps"] = 11;
  CHECK(contains(refusal(epochs, other), "\"steps\":11"));
  CHECK(warned.empty());
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
