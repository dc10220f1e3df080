#include "trainer/api/callbacks.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "trainer/api/trainer.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::read_file;
using test::small;
using test::SmallModule;
using test::TemporaryFolder;

namespace {

// What this process writes to stdout while it lives.
class Said {
 public:
  Said() {
    std::fflush(stdout);
    ::dup2(said_, STDOUT_FILENO);
  }
  ~Said() {
    std::fflush(stdout);
    ::dup2(before_, STDOUT_FILENO);
    ::close(before_);
    ::close(said_);
  }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;
  std::string text() const {
    std::fflush(stdout);
    std::string all(static_cast<std::size_t>(::lseek(said_, 0, SEEK_END)), 0);
    all.resize(static_cast<std::size_t>(::pread(said_, all.data(), all.size(), 0)));
    return all;
  }

 private:
  int said_ = ::memfd_create("stdout", MFD_CLOEXEC);
  int before_ = ::dup(STDOUT_FILENO);
};

// Its Nth validation has the Nth of these as "score".
class Scored final : public SmallModule {
 public:
  explicit Scored(std::vector<double> scores) : SmallModule({}), scores_(std::move(scores)) {}
  void on_validation_epoch_end() override { log("score", scores_.at(validations_++)); }

 private:
  std::vector<double> scores_;
  std::size_t validations_ = 0;
};

}  // namespace

TEST_CASE("early stopping ends it, and its count is kept") {
  EarlyStopping::Options stopping;
  stopping.min_delta = 1e9;  // nothing is ever better
  stopping.patience = 2;
  const auto callback = std::make_shared<EarlyStopping>(stopping);
  TrainerOptions options;
  options.max_epochs = 50;
  options.callbacks = {callback};
  Trainer trainer(options);
  trainer.fit(small());
  CHECK(trainer.current_epoch() == 3);
  EarlyStopping other(stopping);
  other.load_state(callback->state());
  CHECK(other.waited() == 2);
}

TEST_CASE("early stopping: what is no number is never better, and it says why it stops") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const EarlyStopping::Options stopping{.monitor = "score", .patience = 2};
  const auto epochs_of = [&](const std::vector<double>& scores,
                             const std::shared_ptr<EarlyStopping>& callback) {
    TrainerOptions options;
    options.max_epochs = static_cast<std::int64_t>(scores.size());
    options.callbacks = {callback};
    Trainer trainer(options);
    trainer.fit(std::make_shared<Scored>(scores));
    return trainer.current_epoch();
  };
  CHECK(epochs_of({kNan, 3, 2, kNan, 1}, std::make_shared<EarlyStopping>(stopping)) == 5);

  std::string said;
  const auto without = std::make_shared<EarlyStopping>(stopping);
  {
    const Said out;
    CHECK(epochs_of({kNan, kNan, 1}, without) == 2);
    said = out.text();
  }
  CHECK(contains(said,
                 "early stopping: score has not become better 2 times in a row: the best was "
                 "none, the newest is nan"));
  CHECK_FALSE(without->state().contains("best"));

  // As earlier versions have left it.
  const auto resumed = std::make_shared<EarlyStopping>(stopping);
  resumed->load_state({{"waited", 1}, {"best", {{"best", "nan"}}}});
  CHECK(epochs_of({3, 2, 1}, resumed) == 3);
}

TEST_CASE("monitors add to what is reported, and all is read back from the metrics file") {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.log_every_n_steps = 5;
  options.metrics_file = folder / "metrics";
  ThroughputMonitor::Options throughput;
  throughput.flops_per_sample = 100;
  throughput.peak_flops = 1e9;
  options.callbacks = {std::make_shared<LearningRateMonitor>(),
                       std::make_shared<ThroughputMonitor>(throughput)};
  Trainer trainer(options);
  trainer.fit(small(false));
  for (const char* name : {"lr", "samples_per_second", "mfu", "train_loss", "val_loss"}) {
    CAPTURE(name);
    CHECK(trainer.callback_metrics().contains(name));
    CHECK(contains(read_file(folder / "metrics"), name));
  }
}

TEST_CASE("a step's metrics have the learning rate that it was taken with") {
  TrainerOptions options;
  options.log_every_n_steps = 1;
  options.max_steps = 1;
  options.callbacks = {std::make_shared<LearningRateMonitor>()};
  Trainer trainer(options);
  trainer.fit(small(false));  // from a tenth of 0.01 up
  CHECK(trainer.callback_metrics().at("lr") == doctest::Approx(1e-3));
  CHECK(trainer.optimizer().lr() > 2e-3);
}

TEST_CASE("the best checkpoints are kept, by what is monitored") {
  const TemporaryFolder folder;
  ModelCheckpoint::Options keep;
  keep.save_top_k = 2;
  keep.monitor = "val_loss";
  TrainerOptions options;
  options.max_epochs = 5;
  options.default_root_dir = folder / "storage";
  options.callbacks = {std::make_shared<ModelCheckpoint>(keep)};
  Trainer trainer(options);
  trainer.fit(small());
  int kept = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "storage/checkpoints")) {
    kept += entry.path().filename().string().starts_with("checkpoint_") ? 1 : 0;
  }
  CHECK(kept >= 2);
  CHECK(kept <= 3);  // the two best, and the newest if it is not among them
}

TEST_CASE("the best are kept of validations within an epoch too, and a monitor must be there") {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.max_epochs = 2;  // of 10 steps
  options.val_check_interval = 4;
  options.default_root_dir = folder / "storage";
  const auto fit = [&](const std::string& monitor) {
    options.callbacks = {std::make_shared<ModelCheckpoint>(
        ModelCheckpoint::Options{.save_top_k = 2, .monitor = monitor})};
    Trainer(options).fit(std::make_shared<Scored>(std::vector<double>{3, 1, 2, 4}));
  };
  SUBCASE("kept") {
    fit("score");
    std::map<std::int64_t, double> scores;
    for (const Checkpoint& each : list_checkpoints(folder / "storage", [](const auto&) {})) {
      const Metrics& metrics = each.manifest.metrics;
      scores[each.manifest.step] = metrics.contains("score") ? metrics.at("score") : -1;
    }
    // Of the validations at 4, 8, 14 and 18 the two best, and the newest.
    CHECK(scores == std::map<std::int64_t, double>{{8, 1}, {14, 2}, {20, -1}});
  }
  SUBCASE("a step's, in epochs that are shorter than log_every_n_steps") {
    fit("loss");
    CHECK_FALSE(list_checkpoints(folder / "storage", [](const auto&) {}).empty());
  }
  SUBCASE("a name that nothing has") {
    options.log_every_n_steps = 10;
    CHECK(
        contains(message_of<Error>([&] { fit("scores"); }),
                 "ModelCheckpoint: there is no metric 'scores' to keep the best by; there are: "));
  }
}

TEST_CASE(
    "with a monitor each validation has its checkpoint, also where the end of epochs has none") {
  const TemporaryFolder folder;
  ModelCheckpoint::Options keep;
  keep.every_n_epochs = 0;
  keep.every_n_train_steps = 7;
  keep.save_top_k = -1;
  keep.monitor = "score";
  TrainerOptions options;
  options.max_epochs = 2;  // of 10 steps
  options.default_root_dir = folder / "storage";
  std::map<std::int64_t, double> expected;
  SUBCASE("validated at the end of epochs") {
    expected = {{7, -1}, {10, 3}, {14, -1}, {20, 1}};
  }
  SUBCASE("and within") {
    options.val_check_interval = 5;
    expected = {{5, 3}, {7, -1}, {10, 1}, {14, -1}, {15, 2}, {20, 4}};
  }
  options.callbacks = {std::make_shared<ModelCheckpoint>(keep)};
  Trainer(options).fit(std::make_shared<Scored>(std::vector<double>{3, 1, 2, 4}));
  std::map<std::int64_t, double> scores;
  for (const Checkpoint& each : list_checkpoints(folder / "storage", [](const auto&) {})) {
    const Metrics& metrics = each.manifest.metrics;
    scores[each.manifest.step] = metrics.contains("score") ? metrics.at("score") : -1;
  }
  CHECK(scores == expected);
}

TEST_CASE("a checkpoint has a validation's metrics only where its weights were validated") {
  const TemporaryFolder folder;
  ModelCheckpoint::Options keep;
  keep.every_n_train_steps = 3;
  keep.monitor = "val_loss";
  const auto run = [&](std::int64_t steps) {
    TrainerOptions options;
    options.max_epochs = -1;
    options.max_steps = steps;
    options.default_root_dir = folder / "storage";
    options.callbacks = {std::make_shared<ModelCheckpoint>(keep)};
    Trainer(options).fit(small());
  };
  const auto steps = [&](bool validated) {
    std::vector<std::int64_t> found;
    for (const Checkpoint& each : list_checkpoints(folder / "storage", [](const auto&) {})) {
      if (each.manifest.metrics.contains("val_loss") == validated) {
        found.push_back(each.manifest.step);
      }
    }
    return found;
  };
  SUBCASE("all of them, also after a resume") {
    keep.save_top_k = -1;
    run(17);
    CHECK(steps(true) == std::vector<std::int64_t>{10});
    CHECK(steps(false) == std::vector<std::int64_t>{3, 6, 9, 12, 15, 17});
    run(20);
    CHECK(steps(true) == std::vector<std::int64_t>{10, 20});
    CHECK(steps(false) == std::vector<std::int64_t>{3, 6, 9, 12, 15, 17, 18});
  }
  SUBCASE("the best is one that was validated") {
    keep.save_top_k = 1;
    run(17);
    CHECK(steps(true) == std::vector<std::int64_t>{10});
    CHECK(steps(false) == std::vector<std::int64_t>{17});  // the newest
  }
}

TEST_CASE("a name that both a step and an epoch have is in each checkpoint") {
  class Named final : public SmallModule {
   public:
    Named() : SmallModule({}) {}
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      const at::Tensor loss = SmallModule::training_step(batch, index);
      log("loss", loss, {.on_step = false, .on_epoch = true});  // the Trainer reports one of a step
      return loss;
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options;
  options.max_epochs = 2;
  options.log_every_n_steps = 1;
  options.default_root_dir = folder / "storage";
  options.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{.every_n_train_steps = 4})};
  Trainer(options).fit(std::make_shared<Named>());
  const auto kept = list_checkpoints(folder / "storage", [](const auto&) {});
  CHECK(kept.size() == 6);
  for (const Checkpoint& each : kept) CHECK(each.manifest.metrics.contains("loss"));
}
