// Training by epochs(): the place that the library counts, leaving and going on, late reading.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "trainer/core/error.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;
using test::check_same_end;
using test::contains;
using test::expect;
using test::lines_of;
using test::make_samples;
using test::message_of;
using test::read_file;
using test::SmallNet;
using test::TemporaryFolder;
using test::Variables;

namespace {

DataLoader ten_batches() {
  const test::Samples all = make_samples(20);
  return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 2, .shuffle = true});
}

// A training of one rank in this process, from the newest checkpoint in the folder.
struct Small {
  explicit Small(const TemporaryFolder& folder)
      : Small(InitOptions{.storage = folder / "storage"}) {}
  explicit Small(InitOptions options)
      : model((init(quiet(std::move(options))), prepare_model(net()))),
        optimizer(prepare_optimizer(sgd(*model, {.lr = 0.1}))),
        loader(prepare_data_loader(ten_batches())) {}
  ~Small() {
    if (is_initialized()) shutdown();
  }
  static InitOptions quiet(InitOptions options) {
    options.session.print_metrics = false;
    return options;
  }
  static std::shared_ptr<SmallNet> net() {
    at::manual_seed(3);
    return std::make_shared<SmallNet>(4, false);
  }
  at::Tensor train(const Batch& batch) {
    const auto& [inputs, labels] = batch;
    at::Tensor loss = at::cross_entropy_loss(model(inputs), labels);
    backward(loss);
    return loss;
  }
  void step(const Batch& batch) {
    train(batch);
    optimizer_step();
  }

  PreparedModel<SmallNet> model;
  std::shared_ptr<Optimizer> optimizer;
  DataLoader loader;
};

Place newest(const TemporaryFolder& folder) {
  Small again(folder);
  return get_checkpoint().value();
}

void check_place(const TemporaryFolder& folder, const Place& expected) {
  const Place place = newest(folder);
  CHECK(place.step == expected.step);
  CHECK(place.epoch == expected.epoch);
  CHECK(place.position == expected.position);
}

std::map<std::string, std::string> seen_by(const TemporaryFolder& folder, int rank) {
  return lines_of(folder, "seen", rank);
}

}  // namespace

TEST_CASE("a batch is taken apart as what it is") {
  const at::Tensor a = at::zeros({2});
  const at::Tensor b = at::ones({2});
  Batch two{{a, b}, {}};
  auto& [inputs, labels] = two;
  CHECK(inputs.is_same(a));
  CHECK(labels.is_same(b));
  const Batch three{{a, b, a}, {}};
  const auto [x, y, z] = three.as<3>();
  CHECK((x.is_same(a) && y.is_same(b) && z.is_same(a)));
  CHECK(contains(message_of<Error>([&] { [[maybe_unused]] const auto& [p, q] = three; }),
                 "3 tensors is taken apart as 2: take them as batch.as<3>()"));
  const Batch one{{a}, {}};
  CHECK(contains(message_of<Error>([&] { [[maybe_unused]] const auto& [p, q] = one; }),
                 "of 1 tensors"));
  CHECK_THROWS_AS(two.as<3>(), Error);
}

TEST_CASE("epoch() of a loader gives what pass() gives, once") {
  const DataLoader loader = ten_batches();
  auto pass = loader.pass(3);
  std::int64_t batches = 0;
  for (const auto& [inputs, labels] : loader.epoch(3)) {
    const Batch expected = pass.next().value();
    CHECK(inputs.equal(expected[0]));
    CHECK(labels.equal(expected[1]));
    ++batches;
  }
  CHECK(batches == 10);
}

TEST_CASE("a training by epochs() goes on within an epoch, bit for bit") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TemporaryFolder whole;
    expect("counted", ranks, whole, 0);
    CHECK(seen_by(whole, 0).size() == 15 + 2 * 3 + 1);
    const TemporaryFolder killed;
    expect("counted", ranks, killed, 128 + 9, {{"TEST_DIE_AT", "7"}});
    expect("counted", ranks, killed, 0);
    CHECK(contains(read_file(killed / "rank-0.log"), "checkpoint_000003, step 6"));
    check_same_end(whole, killed, ranks, "seen");
    // Within an epoch, and, of one rank and of two, so that they leave at an epoch's last step.
    for (const char* step : {"8", "9", "10"}) {
      CAPTURE(step);
      const TemporaryFolder told;
      expect("counted", ranks, told, kExitPreempted, {{"TEST_TERM_AT", step}});
      expect("counted", ranks, told, 0);
      check_same_end(whole, told, ranks, "seen");
    }
    const TemporaryFolder told;
    expect("counted", ranks, told, kExitPreempted, {{"TEST_TERM_IN_EVALUATION", "1"}});
    CHECK_FALSE(seen_by(told, 0).contains("epoch1"));
    expect("counted", ranks, told, 0);
    CHECK(contains(read_file(told / "rank-0.log"), "told to go, after step 10"));
    check_same_end(whole, told, ranks, "seen");
    // Rank 0 of two has three batches and breaks at the third; the other has two, to the end.
    const TemporaryFolder broken;
    expect("counted", ranks, broken, kExitPreempted,
           {{"TEST_BREAK_AT", "3"}, {"TEST_TERM_IN_EVALUATION", "2"}});
    expect("counted", ranks, broken, 0, {{"TEST_BREAK_AT", "3"}});
    const TemporaryFolder unbroken;
    expect("counted", ranks, unbroken, 0, {{"TEST_BREAK_AT", "3"}});
    check_same_end(unbroken, broken, ranks, "seen");
  }
  const TemporaryFolder whole;
  const TemporaryFolder killed;
  expect("counted", 2, whole, 0, {{"TEST_ZERO", "1"}});
  expect("counted", 2, killed, 128 + 9, {{"TEST_ZERO", "1"}, {"TEST_DIE_AT", "12"}});
  expect("counted", 2, killed, 0, {{"TEST_ZERO", "1"}});
  check_same_end(whole, killed, 2, "seen");
}

TEST_CASE("streams of uneven parts are gone through by all ranks, and gone on with") {
  const TemporaryFolder whole;
  expect("counted_stream", 2, whole, 0);
  // Batches of rank 1's six samples, begun anew: 7 of rank 0's 13.
  std::vector<std::string> first;
  for (int step = 1; step <= 7; ++step) {
    first.push_back(seen_by(whole, 1).at("step" + std::to_string(step)));
  }
  CHECK(first == std::vector<std::string>{"step1: 100", "step2: 102", "step3: 104", "step4: 100",
                                          "step5: 102", "step6: 104", "step7: 100"});
  for (const char* step : {"5", "7"}) {
    CAPTURE(step);
    const TemporaryFolder killed;
    expect("counted_stream", 2, killed, 128 + 9, {{"TEST_DIE_AT", step}});
    expect("counted_stream", 2, killed, 0);
    check_same_end(whole, killed, 2, "seen");
  }
}

TEST_CASE("what is logged is read by rank 0, where it is reported") {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    expect("late", ranks, folder, 0);
    CHECK(contains(read_file(folder / "rank-0.log"), "step 4  read 1\nstep 8  read 2\n"));
  }
}

TEST_CASE("where a checkpoint stands: within an epoch, at its end, behind a break, behind all") {
  const TemporaryFolder folder;
  {
    Small small(folder);
    for (const auto epoch : epochs(3)) {
      std::int64_t batches = 0;
      for (const Batch& batch : small.loader.epoch(epoch)) {
        small.step(batch);
        if (epoch == 2 && ++batches == 3) break;
        if (epoch == 1 && ++batches == 4) {
          save_checkpoint();
          session().finish();
          break;
        }
      }
      if (epoch == 1) break;
    }
  }
  check_place(folder, {14, 1, 8});
  {
    Small small(folder);
    std::vector<std::int64_t> seen;
    for (const auto epoch : epochs(2)) {
      seen.push_back(epoch);
      for (const Batch& batch : small.loader.epoch(epoch)) small.step(batch);
      save_checkpoint();
    }
    CHECK(seen == std::vector<std::int64_t>{1});
    CHECK(global_step() == 20);
    // More epochs behind them; what a break has left of one is not come back to.
    for (const auto epoch : epochs(4)) {
      for (const Batch& batch : small.loader.epoch(epoch)) {
        small.step(batch);
        break;
      }
      if (epoch == 3) break;
    }
    save_checkpoint();
  }
  check_place(folder, {22, 4, 0});
  Small small(folder);
  for ([[maybe_unused]] const auto epoch : epochs(4)) FAIL_CHECK("there is none left");
}

TEST_CASE("a place that is not known, or known twice, is an error") {
  const TemporaryFolder folder;
  Small small(folder);
  const auto saves = [] { return message_of<Error>([] { save_checkpoint(); }); };
  CHECK(contains(saves(), "for (const auto epoch : epochs(n))"));
  CHECK(contains(message_of<Error>([&] { small.loader.epoch(0); }), "belongs into"));
  const DataLoader test = prepare_data_loader(ten_batches(), /*evaluates=*/true);
  for (const auto epoch : epochs(3)) {
    CHECK(contains(message_of<Error>([] { epochs(2).begin(); }), "one already"));
    CHECK(contains(message_of<Error>([&] { report({}, Place{1, 0, 0}); }), "save_checkpoint"));
    CHECK(contains(message_of<Error>([&] { small.loader.epoch(epoch + 1); }), "in epoch"));
    if (epoch == 0) {
      for (const Batch& batch : small.loader.epoch(epoch)) {
        for (const Batch& tested : test.epoch(0)) CHECK(tested.size() == 2);
        CHECK(contains(message_of<Error>([&] { small.loader.epoch(epoch); }), "second"));
        if (global_step() > 0) {
          small.step(batch);
          continue;
        }
        CHECK(contains(saves(), "no step was counted"));
        count_step();
        small.train(batch);
        CHECK(contains(saves(), "since the last optimizer_step()"));
        zero_grad();
        save_checkpoint();
        small.train(batch);
        small.optimizer->zero_grad();  // not by our function
        save_checkpoint();
        small.step(batch);
      }
      CHECK(contains(message_of<Error>([&] { small.loader.epoch(epoch); }), "evaluates=*/true"));
      continue;
    }
    for (const Batch& batch : ten_batches().epoch(epoch)) {
      small.step(batch);
      CHECK(contains(saves(), "no prepared loader's epoch()"));
    }
  }
  CHECK(global_step() == 31);
  save_checkpoint();  // all of them are done
  shutdown();
  check_place(folder, {31, 3, 0});
}

TEST_CASE("a checkpoint within an epoch is not gone on with by another loader") {
  const TemporaryFolder folder;
  {
    Small small(folder);
    for (const auto epoch : epochs(1)) {
      for (const Batch& batch : small.loader.epoch(epoch)) {
        small.step(batch);
        save_checkpoint();
        break;
      }
    }
  }
  Small small(folder);
  for ([[maybe_unused]] const auto epoch : epochs(1)) {
    for (const Batch& batch : ten_batches().epoch(0)) {
      CHECK(contains(message_of<Error>([&] { small.step(batch); }), "has gone on from there"));
      break;
    }
  }
}

TEST_CASE("checkpoints within epochs come by themselves, with what was logged, none at the end") {
  const TemporaryFolder folder;
  {
    Small small({.storage = folder / "storage", .checkpoint_every_n_steps = 5});
    for (const auto epoch : epochs(2)) {
      for (const Batch& batch : small.loader.epoch(epoch)) {
        const at::Tensor loss = small.train(batch);
        optimizer_step();
        log({{"loss", loss}, {"at", global_step()}});
      }
      save_checkpoint({{"accuracy", 0.5}, {"loss", at::Tensor()}});
    }
  }
  std::vector<std::int64_t> steps;
  for (const Checkpoint& each :
       list_checkpoints(folder / "storage", [](const std::string& text) { FAIL_CHECK(text); })) {
    const auto& manifest = each.manifest;
    steps.push_back(manifest.step);
    if (manifest.step % 10 == 0) {
      CHECK(manifest.metrics == Metrics{{"accuracy", 0.5}});  // no loss is no metric
    } else {
      CHECK(manifest.metrics.at("at") == static_cast<double>(manifest.step));
      CHECK(manifest.metrics.contains("loss"));
    }
  }
  CHECK(steps == std::vector<std::int64_t>{5, 10, 15, 20});
}

TEST_CASE("a program that ends without shutdown() ends well, with its last checkpoint") {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    expect("no_shutdown", ranks, folder, 0);
    Small again(folder);
    CHECK(get_checkpoint().value().epoch == 1);
  }
}

TEST_CASE("a value is kept as it was when it was logged") {
  at::Tensor running = at::ones({});
  const LateMetrics metrics{{"running", running}};
  running.zero_();
  CHECK(read_metrics(metrics) == Metrics{{"running", 1}});
}

TEST_CASE("a part with two parents has its own mode back") {
  torch::nn::Linear shared(1, 1);
  torch::nn::ModuleList trained(shared);
  torch::nn::ModuleList frozen(shared);
  torch::nn::ModuleList both(trained, frozen);
  frozen->eval();
  shared->train();
  const ModuleModes modes(*both);
  both->eval();
  modes.restore(*both);
  CHECK(shared->is_training());
  CHECK(trained->is_training());
  CHECK_FALSE(frozen->is_training());
}

TEST_CASE("values are read late, and once") {
  const at::Tensor weight = at::ones({1}, at::requires_grad());
  const LateMetrics metrics{
      {"tensor", weight * 3}, {"number", 2}, {"none", at::Tensor()}, {"read", [] { return 4.0; }}};
  CHECK(read_metrics(metrics) == Metrics{{"tensor", 3}, {"number", 2}, {"read", 4}});
  CHECK(message_of<Error>([] {
          read_metrics(LateMetrics{{"loss", at::zeros({2})}});
        }) == "metric 'loss' is a tensor of 2 elements, not of one");

  Small small(InitOptions{.session = {.stop_on_bad_loss = true}});
  LossCheck losses(session(), 3);
  const at::Tensor good = at::ones({});
  const at::Tensor bad = good / 0;
  losses.add(1, good);
  losses.add(2, bad);
  CHECK(losses.unread() == 2);
  CHECK(contains(message_of<Error>([&] { losses.add(3, good); }), "inf at step 2"));
  CHECK(losses.unread() == 0);
  // In a loop: at its step, before anything is saved.
  for (const auto epoch : epochs(1)) {
    for (const Batch& batch : small.loader.epoch(epoch)) {
      small.step(batch);
      CHECK(contains(message_of<Error>([&] {
                       backward(at::cross_entropy_loss(small.model(batch[0]), batch[1]) / 0);
                     }),
                     "at step 2"));
      break;
    }
  }
}

TEST_CASE("a prepared model is a value, and an evaluation leaves its modes as they were") {
  class Frozen : public torch::nn::Module {
   public:
    Frozen() { a->eval(); }
    at::Tensor forward(const at::Tensor& inputs) { return b->forward(a->forward(inputs)); }
    std::shared_ptr<SmallNet> a = register_module("a", std::make_shared<SmallNet>(4, true));
    torch::nn::Linear b{register_module("b", torch::nn::Linear(3, 3))};
  };
  init();
  const auto model = prepare_model(std::make_shared<Frozen>());
  const auto same = model;
  CHECK(&*same == model.operator->());
  CHECK(same(make_samples(2).inputs).requires_grad());
  {
    const Evaluation evaluation;
    CHECK_FALSE(model->is_training());
    CHECK_FALSE(model->b->is_training());
    CHECK_FALSE(same(make_samples(2).inputs).requires_grad());
  }
  CHECK(model->is_training());
  CHECK_FALSE(model->a->is_training());
  CHECK(model->b->is_training());
  shutdown();
}

TEST_CASE("optimizers of a module, a holder, parameters and groups") {
  const torch::nn::Linear holder(2, 3);
  const torch::nn::Module& module = *holder;
  CHECK(adam(module, {.lr = 0.5})->lr() == 0.5);
  CHECK(adam(holder)->numbers() == Adam(named_parameters(module), AdamOptions{}).numbers());
  CHECK(adamw(holder)->numbers().at("weight_decay") == 0.01);
  CHECK(sgd(decay_groups(module), {.momentum = 0.9})->momentum() == 0.9);
  CHECK(rmsprop(holder, {.momentum = 0.5})->kind() == "RMSprop");
  CHECK(adagrad(named_parameters(module, "part"))->parameters()[0].name == "part.weight");
}

TEST_CASE("the throughput of steps, without the first ones") {
  const TemporaryFolder folder;
  Small small(folder);
  for (const auto epoch : epochs(3)) {
    for (const Batch& batch : small.loader.epoch(epoch)) small.step(batch);
    const Metrics speed = throughput();
    CHECK(speed.contains("samples_per_second") == (epoch == 2));
    CHECK(speed.contains("step_ms") == (epoch == 2));
    CHECK(speed.contains("data_wait_percent") == (epoch == 2));
  }
  CHECK(throughput().empty());
}

TEST_CASE("what is said twice at the beginning is an error") {
  CHECK(contains(message_of<Error>([] { init({.storage = "a", .session = {.storage = "b"}}); }),
                 "'storage' is said twice"));
  CHECK_FALSE(is_initialized());
  CHECK_THROWS_AS(init({.log_every_n_steps = 0}), Error);
}
