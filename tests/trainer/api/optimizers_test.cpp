// Several optimizers, plateaus and the search for a rate; where PyTorch or Lightning has the same,
// equal numbers: tests/golden/trainer, made by python_trainer_golden.py.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using nlohmann::json;
using test::contains;
using test::expect;
using test::Gan;
using test::message_of;
using test::read_file;
using test::SmallModule;
using test::TemporaryFolder;
using test::Variables;

namespace {

json golden(const std::string& name) {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  return json::parse(read_file(std::filesystem::path(folder) / "trainer" / name));
}

// Lightning's model of python_trainer_golden.py.
class Searched final : public Module {
 public:
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    return at::cross_entropy_loss(net_->forward(batch[0]), batch[1]);
  }
  Optimizers configure_optimizers() override {
    return {std::make_shared<Sgd>(trained_parameters(), SgdOptions{.lr = 0.1})};
  }
  DataLoader train_dataloader() override {
    const test::Samples all = test::make_samples(40);
    return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 4});
  }

 private:
  std::shared_ptr<test::TwoLayers> net_ =
      register_module("net", std::make_shared<test::TwoLayers>(8, 16, 3, 0.0));
};

// Its rate falls after each validation but the first: nothing is ever better by so much.
class Flat final : public SmallModule {
 public:
  explicit Flat(Plateau plateau)
      : SmallModule(SmallModule::Options{.plain_sgd = true}), plateau_(std::move(plateau)) {}
  Optimizers configure_optimizers() override {
    return {std::make_shared<Sgd>(trained_parameters(), SgdOptions{.lr = 0.1}), plateau_};
  }

 private:
  Plateau plateau_;
};

Plateau flat() {
  Plateau plateau;
  plateau.options.patience = 0;
  plateau.options.factor = 0.5;
  plateau.options.threshold = 1e9;
  plateau.options.threshold_mode = ReduceLROnPlateauOptions::Threshold::abs;
  return plateau;
}

void check_equal(const std::filesystem::path& one, const std::filesystem::path& other) {
  const TensorMap expected = read_tensors(one);
  REQUIRE(!expected.empty());
  for (const auto& [name, tensor] : read_tensors(other)) CHECK(tensor.equal(expected.at(name)));
}

}  // namespace

TEST_CASE("ReduceLROnPlateau has PyTorch's rates, also from its state") {
  const json all = golden("plateau.json");
  const auto metrics = all["metrics"].get<std::vector<double>>();
  for (const json& its : all["cases"]) {
    const json& given = its["arguments"];
    CAPTURE(given.dump());
    ReduceLROnPlateauOptions options;
    if (given.value("mode", "min") == "max") options.mode = Best::max;
    if (given.value("threshold_mode", "rel") == "abs") {
      options.threshold_mode = ReduceLROnPlateauOptions::Threshold::abs;
    }
    options.factor = given.value("factor", options.factor);
    options.patience = given.value("patience", options.patience);
    options.threshold = given.value("threshold", options.threshold);
    options.cooldown = given.value("cooldown", options.cooldown);
    options.min_lr = given.value("min_lr", options.min_lr);
    options.eps = given.value("eps", options.eps);
    at::Tensor parameter = at::zeros({1}).set_requires_grad(true);
    Sgd optimizer(one_group({{"p", parameter}}), SgdOptions{.lr = 0.1});
    auto plateau = std::make_unique<ReduceLROnPlateau>(optimizer, options);
    json changes = json::array({json::array({-1, 0.1})});
    for (std::size_t n = 0; n < metrics.size(); ++n) {
      plateau->step(metrics[n]);
      if (optimizer.lr() != changes.back()[1]) changes.push_back({n, optimizer.lr()});
      const json state = json::parse(plateau->state().dump());
      optimizer.set_lr(77);
      plateau = std::make_unique<ReduceLROnPlateau>(optimizer, options);
      plateau->load_state(state);
    }
    CHECK(changes == its["changes"]);  // to the last bit
  }
}

TEST_CASE("ReduceLROnPlateau: what makes no sense, and another one's state") {
  at::Tensor parameter = at::zeros({1}).set_requires_grad(true);
  Sgd optimizer(one_group({{"p", parameter}}), SgdOptions{.lr = 0.1});
  ReduceLROnPlateauOptions options;
  ReduceLROnPlateau plateau(optimizer, options);
  options.patience = 3;
  const ReduceLROnPlateau other(optimizer, options);
  CHECK(optimizer.unkept_schedulers() == 2);
  CHECK(contains(message_of<Error>([&] { plateau.load_state(other.state()); }), "\"patience\":3"));
  CHECK(contains(message_of<Error>([&] { plateau.load_state({{"best", 1}}); }), "not its state"));
  for (int i = 0; i < 11; ++i) plateau.step(std::nan(""));  // never better
  CHECK(optimizer.lr() == doctest::Approx(0.01));
  options.factor = 1;
  CHECK(contains(message_of<Error>([&] { ReduceLROnPlateau(optimizer, options); }), "below 1"));
}

TEST_CASE("the Trainer lowers the rate by what is monitored, and a resume goes on with it") {
  const TemporaryFolder folder;
  const auto rate_after = [](std::int64_t epochs, const Plateau& plateau,
                             const std::filesystem::path& root) {
    TrainerOptions options;
    options.max_epochs = epochs;
    options.log_every_n_steps = 1;
    if (!root.empty()) options.default_root_dir = root;
    Trainer trainer(options);
    trainer.fit(std::make_shared<Flat>(plateau));
    return trainer.optimizer().lr();
  };
  CHECK(rate_after(5, flat(), {}) == 0.1 / 16);
  CHECK(rate_after(2, flat(), folder / "run") == 0.1 / 2);
  CHECK(rate_after(5, flat(), folder / "run") == 0.1 / 16);
  Plateau often = flat();
  often.monitor = "train_loss";
  often.per = Scheduler::Per::step;
  often.frequency = 4;  // at 4, 8 of 10
  CHECK(rate_after(1, often, {}) == 0.1 / 2);
  Plateau unknown = flat();
  unknown.monitor = "accuracy";
  CHECK(contains(message_of<Error>([&] { rate_after(1, unknown, {}); }),
                 "no metric 'accuracy' to go by, after epoch 1; there are: "));
}

TEST_CASE("a generator and a discriminator, each with its optimizer: PyTorch's losses") {
  const json expected = golden("gan.json");
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TemporaryFolder folder;
    expect("gan", ranks, folder, 0);
    const json found = json::parse(read_file(folder / "losses-0"));
    REQUIRE(found["losses"].size() == 40);
    for (std::size_t i = 0; i < 40; ++i) {
      CAPTURE(i);
      CHECK(found["losses"][i].get<double>() ==
            doctest::Approx(expected["losses"][i / 2][i % 2].get<double>()).epsilon(1e-4));
    }
    CHECK(found["lr"].get<double>() == doctest::Approx(expected["lr"].get<double>()));
    if (ranks == 2) check_equal(folder / "final-0.safetensors", folder / "final-1.safetensors");
  }
}

TEST_CASE("several optimizers go on from a checkpoint, each with its own state, bit-exactly") {
  for (const char* zero : {"", "1"}) {
    CAPTURE(zero);
    Variables env;
    if (*zero != 0) env["TEST_ZERO"] = zero;
    const TemporaryFolder whole;
    const TemporaryFolder killed;
    expect("gan", 2, whole, 0, env);
    Variables dying = env;
    dying["TEST_DIE_AT"] = "12";
    expect("gan", 2, killed, 128 + 9, dying);
    expect("gan", 2, killed, 0, env);
    CHECK(contains(read_file(killed / "rank-0.log"), "step 10"));
    check_equal(whole / "final-0.safetensors", killed / "final-0.safetensors");
    const json losses = json::parse(read_file(whole / "losses-0"))["losses"];
    const json rest = json::parse(read_file(killed / "losses-0"))["losses"];
    CHECK(rest == json(std::vector<json>(losses.begin() + 20, losses.end())));
  }
}

TEST_CASE("optimizing by hand: what cannot be meant is refused") {
  const auto problem = [](auto change) {
    TrainerOptions options;
    change(options);
    return message_of<Error>([&] {
      Trainer trainer(options);
      trainer.fit(std::make_shared<Gan>());
    });
  };
  CHECK(contains(problem([](auto& o) { o.accumulate_grad_batches = 2; }), "by hand"));
  CHECK(contains(problem([](auto& o) { o.gradient_clip_val = 1.0; }), "clip_gradient_norm"));
  CHECK(contains(problem([](auto& o) { o.precision = "16"; }), "use bf16"));
  CHECK(contains(problem([](auto& o) { o.ddp.static_graph = true; }), "static_graph"));
  class Automatic final : public Gan {
   public:
    bool automatic_optimization() const override { return true; }
  };
  CHECK(contains(message_of<Error>([] { Trainer({}).fit(std::make_shared<Automatic>()); }),
                 "override automatic_optimization()"));
  CHECK(
      contains(message_of<Error>([] { Trainer({}).lr_find(std::make_shared<Gan>()); }), "by hand"));
  class Backwards final : public SmallModule {
   public:
    using SmallModule::SmallModule;
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      const at::Tensor loss = SmallModule::training_step(batch, index);
      manual_backward(loss);
      return loss;
    }
  };
  CHECK(contains(message_of<Error>(
                     [] { Trainer({}).fit(std::make_shared<Backwards>(SmallModule::Options{})); }),
                 "is not false"));
}

TEST_CASE("bf16 by hand: a weight that a step has changed is not taken from autocast's cache") {
  class Twice final : public SmallModule {
   public:
    using SmallModule::SmallModule;
    bool automatic_optimization() const override { return false; }
    at::Tensor training_step(const Batch& batch, std::int64_t) override {
      const at::Tensor before = at::cross_entropy_loss(net().forward(batch[0]), batch[1]);
      optimizers()[0]->zero_grad();
      manual_backward(before);
      optimizers()[0]->step();
      const at::Tensor after = at::cross_entropy_loss(net().forward(batch[0]), batch[1]);
      changed = changed || before.item<double>() != after.item<double>();
      return {};  // nothing to report
    }
    bool changed = false;
  };
  TrainerOptions options;
  options.precision = "bf16";
  options.log_every_n_steps = 1;
  Trainer trainer(options);
  auto module = std::make_shared<Twice>(SmallModule::Options{.plain_sgd = true});
  trainer.fit(module);
  CHECK(module->changed);
  CHECK(!trainer.callback_metrics().contains("loss"));
}

TEST_CASE("the functions: several optimizers have names") {
  init();
  auto model = prepare_model(std::make_shared<test::SmallNet>(4, false));
  const auto of = [&](std::size_t child) {
    return std::make_shared<Sgd>(named_parameters(*model->children()[child]),
                                 SgdOptions{.lr = 0.1});
  };
  const auto first = prepare_optimizer(of(0), Strategy::ddp, "first");
  CHECK(contains(message_of<Error>([&] { prepare_optimizer(of(1)); }), "a name of its own"));
  CHECK(contains(message_of<Error>([&] { prepare_optimizer(of(0), Strategy::ddp, "twice"); }),
                 "'twice/weight' is given twice"));
  CHECK(contains(message_of<Error>([&] { prepare_optimizer(of(1), Strategy::zero1, "second"); }),
                 "the same strategy"));
  const auto second = prepare_optimizer(of(1), Strategy::ddp, "second");
  prepare_scheduler(std::make_shared<Scheduler>(*second, linear_schedule(1, 0, 10)));
  const ReduceLROnPlateau unkept(*first);
  CHECK(contains(message_of<Error>([] { get_checkpoint(); }), "prepare_scheduler()"));
  CHECK(contains(message_of<Error>([] { optimizer_step(); }), "for one optimizer"));
  CHECK(contains(message_of<Error>([] { clip_gradients(1); }), "clip_gradients() is for one"));
  shutdown();
}

TEST_CASE("lr_find has Lightning's numbers") {
  for (const json& its : golden("lr_find.json")) {
    const json& given = its["arguments"];
    CAPTURE(given.dump());
    LrFinderOptions options;
    options.min_lr = given["min_lr"];
    options.max_lr = given["max_lr"];
    options.num_training = given["num_training"];
    if (given.contains("mode")) options.mode = LrFinderOptions::Mode::linear;
    options.early_stop_threshold = given.value("early_stop_threshold", 4.0);
    Trainer trainer({});
    const LrFinderResult found = trainer.lr_find(std::make_shared<Searched>(), options);
    REQUIRE(found.points.size() == its["lr"].size());
    for (std::size_t i = 0; i < found.points.size(); ++i) {
      CAPTURE(i);
      CHECK(found.points[i].lr == doctest::Approx(its["lr"][i].get<double>()).epsilon(1e-12));
      CHECK(found.points[i].loss == doctest::Approx(its["loss"][i].get<double>()).epsilon(1e-3));
    }
    CHECK(found.stopped_early == (found.points.size() < 25));
    const json& suggestion = its["suggestion"];
    CHECK(found.suggestion().has_value() == suggestion.is_number());
    if (!found.suggestion()) continue;
    CHECK(*found.suggestion() == doctest::Approx(suggestion.get<double>()));
    CHECK(contains(found.table(), "<- suggestion"));
  }
  LrFinderOptions options;
  options.max_lr = options.min_lr;
  CHECK(contains(message_of<Error>([&] { lr_of_step(options, 0); }), "max_lr"));
}

TEST_CASE("lr_find leaves everything as it was, on all ranks") {
  for (const int ranks : {1, 2}) {
    for (const char* zero : {"", "1"}) {
      if (ranks == 1 && *zero != 0) continue;
      CAPTURE(ranks);
      CAPTURE(zero);
      Variables env;
      if (*zero != 0) env["TEST_ZERO"] = zero;
      const TemporaryFolder plain;
      const TemporaryFolder searched;
      expect("lr_find", ranks, plain, 0, env);
      env["TEST_LR_FIND"] = "1";
      expect("lr_find", ranks, searched, 0, env);
      check_equal(plain / "final-0.safetensors", searched / "final-0.safetensors");
      const std::string table = read_file(searched / "found-0.csv");
      CHECK(table.starts_with("lr,loss\n0.001,"));
      if (ranks == 2) CHECK(table == read_file(searched / "found-1.csv"));
    }
  }
}
