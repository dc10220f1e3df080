// What a Trainer logs and when it reads it; where it goes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <signal.h>

#include <cmath>
#include <sstream>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::read_file;
using test::SmallModule;
using test::TemporaryFolder;

TEST_CASE("values that are read late have the bits of those that are read at once") {
  init();
  at::manual_seed(1);
  const LogOptions both{.on_step = true, .on_epoch = true};
  for (const std::int64_t every : {1, 7, 5000, 100000}) {  // more than wait at most
    CAPTURE(every);
    MetricLog log(true, false);
    double sum = 0;
    double samples = 0;
    double last = 0;
    at::Tensor reused = at::zeros({1});
    for (std::int64_t step = 1; step <= 6000; ++step) {
      reused.normal_();  // the tensor that was logged changes behind it
      const std::int64_t count = 1 + step % 5;
      last = reused.item<double>();
      if (step % 3 == 0) {
        log.add("x", last, count, both);  // doubles and tensors, in one order
      } else {
        log.add("x", reused, count, both);
      }
      sum += last * static_cast<double>(count);
      samples += static_cast<double>(count);
      if (step % every == 0) {
        const nlohmann::json sums = log.state().at("x").at("sums");
        CHECK(metrics_from_json(sums).at("sum") == sum);
      }
    }
    CHECK(log.take_step(context(), true).at("x_step") == last);
    CHECK(log.take_epoch(context()).at("x_epoch") == sum / samples);
  }
  MetricLog log(true, true);
  log.add("half", at::full({}, 1.5, at::kBFloat16), 1, {});
  log.add("count", at::full({1, 1}, 3, at::kLong), 1, {});
  CHECK(log.take_epoch(context()) == Metrics{{"half_epoch", 1.5}, {"count_epoch", 3}});
  CHECK(contains(message_of<Error>([&] { log.add("two", at::zeros({2}), 1, {}); }), "2 elements"));
  shutdown();
}

TEST_CASE("a loss that is no number: told by its own step within the interval, and never kept") {
  class Breaking final : public SmallModule {
   public:
    using SmallModule::SmallModule;
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      begun = index;
      const at::Tensor loss = SmallModule::training_step(batch, index);
      return index == 3 ? loss * std::nan("") : loss;
    }
    std::int64_t begun = 0;
  };
  for (const std::int64_t checkpoint_every : {0, 1}) {
    const TemporaryFolder folder;
    TrainerOptions options;
    options.stop_on_bad_loss = true;
    options.log_every_n_steps = 6;
    options.default_root_dir = folder / "storage";
    ModelCheckpoint::Options keep;
    keep.every_n_train_steps = checkpoint_every;
    options.callbacks = {std::make_shared<ModelCheckpoint>(keep)};
    auto module = std::make_shared<Breaking>(SmallModule::Options{});
    CHECK(contains(message_of<Error>([&] { Trainer(options).fit(module); }),
                   "the loss is nan at step 4 on rank 0"));
    CHECK(module->begun <= (checkpoint_every == 1 ? 3 : 5));
    for (const Checkpoint& each : list_checkpoints(folder / "storage", [](const auto&) {})) {
      CHECK(each.manifest.step <= 3);
    }
  }
}

TEST_CASE("loggers get the hyperparameters, all metrics by step and epoch, and the end") {
  class Own final : public Logger {
   public:
    std::string name() const override { return "own"; }
    void start(std::optional<std::int64_t> step) override {
      told << "start" << step.value_or(-1) << " ";
    }
    void log_hyperparams(const nlohmann::json& values) override { told << values.dump() << " "; }
    void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                     const Metrics& metrics) override {
      told << step << "/" << epoch.value_or(-1) << (metrics.contains("val_loss") ? "v " : " ");
    }
    void finalize(Status status) override { told << (status == Status::failed ? "failed" : "ok"); }
    std::ostringstream told;
  };
  const TemporaryFolder folder;
  const auto fit = [&](std::int64_t epochs) {
    const auto own = std::make_shared<Own>();
    TrainerOptions options;
    options.max_epochs = epochs;
    options.log_every_n_steps = 5;
    options.default_root_dir = folder / "storage";
    options.loggers = {own, std::make_shared<CsvLogger>(folder / "metrics.csv")};
    options.hyperparameters = {{"lr", 0.1}};
    Trainer(options).fit(std::make_shared<SmallModule>(SmallModule::Options{}));
    return own->told.str();
  };
  CHECK(fit(1) == R"(start-1 {"lr":0.1} 5/0 10/0 10/0v ok)");
  CHECK(fit(2) == R"(start10 {"lr":0.1} 15/1 20/1 20/1v ok)");
  std::istringstream table(read_file(folder / "metrics.csv"));
  std::string steps;
  for (std::string line; std::getline(table, line);) steps += line.substr(0, line.find(',')) + " ";
  CHECK(steps == "step 5 10 10 15 20 20 ");

  init();  // a session of one's own has loggers of its own
  TrainerOptions options;
  options.loggers = {std::make_shared<Own>()};
  CHECK(contains(message_of<Error>([&] {
                   Trainer(options).fit(std::make_shared<SmallModule>(SmallModule::Options{}));
                 }),
                 "has the 'loggers'"));
  shutdown();
}

TEST_CASE("what hooks of an epoch log is there at once, for callbacks, plateaus and checkpoints") {
  class Hooks final : public SmallModule {
   public:
    Hooks() : SmallModule({}) {}
    void on_validation_epoch_start() override { log("val_begun", ++validations); }
    void on_validation_epoch_end() override { log("val_f1", validations); }
    void on_train_epoch_start() override { log("begun", at::full({}, ++epochs)); }
    void on_train_epoch_end() override {
      log("done", epochs);
      CHECK(contains(message_of<Error>([&] { log("x", 1.0, {.on_step = true}); }), "on_epoch"));
      CHECK(contains(message_of<Error>([&] { log("x", 1.0, {.on_epoch = false}); }), "on_epoch"));
    }
    Optimizers configure_optimizers() override {
      return {std::make_shared<Sgd>(trained_parameters(), SgdOptions{.lr = 0.1}),
              Plateau{.monitor = "done"}};
    }
    double validations = 0;
    double epochs = 0;
  };
  class Looking final : public Callback {
   public:
    std::string name() const override { return "looking"; }
    void on_validation_end(Trainer& trainer, Module& module) override {
      seen.push_back(trainer.callback_metrics().at("val_f1"));
      CHECK(trainer.callback_metrics().at("val_begun") == seen.back());
      module.log("looked", static_cast<double>(seen.size()));
    }
    void on_train_epoch_end(Trainer& trainer, Module&) override {
      CHECK(trainer.callback_metrics().at("done") == trainer.callback_metrics().at("begun"));
      CHECK(trainer.callback_metrics().at("looked") == static_cast<double>(seen.size()));
    }
    std::vector<double> seen;
  };
  const TemporaryFolder folder;
  const auto looking = std::make_shared<Looking>();
  EarlyStopping::Options better{.monitor = "val_f1", .mode = Best::max, .patience = 1};
  TrainerOptions options;
  options.max_epochs = 3;
  options.default_root_dir = folder / "storage";
  options.callbacks = {std::make_shared<EarlyStopping>(better), looking};
  Trainer(options).fit(std::make_shared<Hooks>());
  CHECK(looking->seen == std::vector<double>{1, 2, 3});
  double epoch = 0;
  for (const Checkpoint& each : list_checkpoints(folder / "storage", [](const auto&) {})) {
    ++epoch;
    for (const char* name : {"val_begun", "val_f1", "begun", "done", "looked"}) {
      CAPTURE(name);
      CHECK(each.manifest.metrics.at(name) == epoch);
    }
  }
  CHECK(epoch == 3);
}

TEST_CASE("a validation within an epoch is reported once, at its step") {
  class Told final : public SmallModule {
   public:
    explicit Told(std::int64_t at) : SmallModule({}), at_(at) {}
    void validation_step(const Batch& batch, std::int64_t index) override {
      if (trainer().global_step() == at_ && index == 0) ::raise(SIGTERM);
      SmallModule::validation_step(batch, index);
    }

   private:
    std::int64_t at_;
  };
  class Validations final : public Logger {
   public:
    std::string name() const override { return "validations"; }
    void log_metrics(std::int64_t step, std::optional<std::int64_t>,
                     const Metrics& metrics) override {
      if (metrics.contains("val_loss")) steps.push_back(step);
    }
    std::vector<std::int64_t> steps;
  };
  const TemporaryFolder folder;
  TrainerOptions options;
  options.val_check_interval = 4;  // of 10 batches
  options.max_epochs = 2;
  const auto run = [&](std::int64_t told_to_go_at = -1) {
    const auto told = std::make_shared<Validations>();
    options.loggers = {told};
    Trainer(options).fit(std::make_shared<Told>(told_to_go_at));
    return told->steps;
  };
  CHECK(run() == std::vector<std::int64_t>{4, 8, 14, 18});
  // With a checkpoint there, it is the checkpoint's report.
  options.default_root_dir = folder / "storage";
  options.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{.every_n_train_steps = 4})};
  CHECK(run() == std::vector<std::int64_t>{4, 8, 14, 18});
  // One that is broken off comes first at the next start.
  options.callbacks.clear();
  options.default_root_dir = folder / "again";
  CHECK(run(8) == std::vector<std::int64_t>{4});
  CHECK(run() == std::vector<std::int64_t>{8, 14, 18});
  // At the training's last step its end tells of it.
  options.default_root_dir.reset();
  options.max_steps = 4;
  CHECK(run() == std::vector<std::int64_t>{4});
}

TEST_CASE("settings of the device: what contradicts itself or is not known is refused") {
  const auto problem = [](auto change) {
    TrainerOptions options;
    change(options);
    return message_of<Error>(
        [&] { Trainer(options).fit(std::make_shared<SmallModule>(SmallModule::Options{})); });
  };
  CHECK(contains(problem([](auto& o) { o.float32_matmul_precision = "low"; }), "'low'"));
  CHECK(contains(problem([](auto& o) { o.benchmark = o.deterministic = true; }), "take one"));
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0", 1);
  CHECK(contains(problem([](auto& o) { o.deterministic = true; }), ":4096:8 or :16:8"));
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");

  InitOptions options;
  options.device.deterministic = true;
  options.device.float32_matmul_precision = "high";
  init(options);
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":4096:8");
  CHECK(at::globalContext().deterministicAlgorithms());
  CHECK_FALSE(at::globalContext().benchmarkCuDNN());
  CHECK((at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGH));
  shutdown();
  init({.device = {.benchmark = true}});
  CHECK(at::globalContext().benchmarkCuDNN());
  shutdown();
  at::globalContext().setDeterministicAlgorithms(false, false);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setFloat32MatmulPrecision("highest");
}
