// The Trainer's loop: modes of modules, checkpoints between, and what a resume brings back.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "trainer/core/error.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;
using test::check_same_end;
using test::contains;
using test::expect;
using test::launch;
using test::lines_of;
using test::read_file;
using test::SmallModule;
using test::TemporaryFolder;
using test::Variables;

namespace {

std::map<std::string, std::string> metrics_of(const TemporaryFolder& folder, int rank) {
  return lines_of(folder, "metrics", rank);
}

}  // namespace

TEST_CASE("submodules that are frozen by eval() stay so, within epochs and over them") {
  class Freezing final : public SmallModule {
   public:
    using SmallModule::SmallModule;
    void on_fit_start() override { net().children()[0]->eval(); }
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      train_modes.push_back({is_training(), net().is_training(), net().children()[0]->is_training(),
                             net().children()[1]->is_training()});
      return SmallModule::training_step(batch, index);
    }
    void validation_step(const Batch& batch, std::int64_t index) override {
      for (const auto& part : modules()) evaluates = evaluates && !part->is_training();
      SmallModule::validation_step(batch, index);
    }
    std::vector<std::vector<bool>> train_modes;
    bool evaluates = true;
  };
  TrainerOptions options;
  options.max_epochs = 2;
  options.val_check_interval = 4;
  Trainer trainer(options);
  auto module = std::make_shared<Freezing>(SmallModule::Options{});
  module->eval();  // as a whole: not meant to last
  trainer.fit(module);
  CHECK(module->train_modes.size() == 20);
  CHECK(module->train_modes ==
        std::vector<std::vector<bool>>(20, std::vector<bool>{true, true, false, true}));
  CHECK(module->evaluates);
}

TEST_CASE("checkpoints between come at every such step, also the last of an epoch") {
  const auto steps_of = [](ModelCheckpoint::Options keep) {
    const TemporaryFolder folder;
    TrainerOptions options;
    options.max_epochs = 2;  // of 10 steps
    options.default_root_dir = folder / "storage";
    options.callbacks = {std::make_shared<ModelCheckpoint>(keep)};
    Trainer trainer(options);
    trainer.fit(std::make_shared<SmallModule>(SmallModule::Options{}));
    std::vector<std::int64_t> steps;
    for (const Checkpoint& each :
         list_checkpoints(folder / "storage", [](const std::string& text) { FAIL_CHECK(text); })) {
      steps.push_back(each.manifest.step);
    }
    return steps;
  };
  ModelCheckpoint::Options keep;
  keep.every_n_epochs = 0;
  keep.every_n_train_steps = 5;
  CHECK(steps_of(keep) == std::vector<std::int64_t>{5, 10, 15, 20});
  keep.every_n_epochs = 1;
  CHECK(steps_of(keep) == std::vector<std::int64_t>{5, 10, 15, 20});
  keep.every_n_epochs = 2;
  keep.every_n_train_steps = 4;
  CHECK(steps_of(keep) == std::vector<std::int64_t>{4, 8, 12, 16, 20});
}

TEST_CASE("a resume within an epoch knows its sums and the metrics before") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TemporaryFolder whole;
    expect("recorded", ranks, whole, 0);
    CHECK(metrics_of(whole, 0).contains("epoch30"));
    CHECK(contains(metrics_of(whole, 0).at("step16"), "val_loss"));
    CHECK(contains(metrics_of(whole, 0).at("step16"), "shared_epoch"));
    const TemporaryFolder killed;
    expect("recorded", ranks, killed, 128 + 9, {{"TEST_DIE_AT", "17"}});
    expect("recorded", ranks, killed, 0);
    CHECK(contains(read_file(killed / "rank-0.log"), "checkpoint_000005, step 15"));
    check_same_end(whole, killed, ranks, "metrics");
  }
}

TEST_CASE("a training that max_steps ends within an epoch goes on as if it had not ended") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TemporaryFolder whole;
    expect("recorded", ranks, whole, 0);
    for (const char* steps : {"17", "18"}) {  // 18: where a checkpoint between is due
      CAPTURE(steps);
      const TemporaryFolder ended;
      expect("recorded", ranks, ended, 0, {{"TEST_MAX_STEPS", steps}});
      for (int rank = 0; rank < ranks; ++rank) {
        REQUIRE(
            std::filesystem::remove(ended / ("final-" + std::to_string(rank) + ".safetensors")));
      }
      expect("recorded", ranks, ended, 0);
      CHECK(contains(read_file(ended / "rank-0.log"), "step " + std::string(steps) + "\n"));
      check_same_end(whole, ended, ranks, "metrics");
    }
  }
}

TEST_CASE("what a training tells at its end within an epoch, it tells once") {
  class Averaged final : public SmallModule {
   public:
    Averaged() : SmallModule({}) {}
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      log("mean_index", static_cast<double>(index), {.on_step = false, .on_epoch = true});
      return SmallModule::training_step(batch, index);
    }
  };
  for (const int checkpoints : {0, 1, 2}) {  // 2: one between is due at the last step
    CAPTURE(checkpoints);
    const TemporaryFolder folder;
    TrainerOptions options;
    options.max_epochs = -1;
    options.max_steps = 4;
    options.val_check_interval = 4;
    options.metrics_file = folder / "metrics";
    if (checkpoints > 0) options.default_root_dir = folder / "storage";
    if (checkpoints == 2) {
      options.callbacks = {
          std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{.every_n_train_steps = 4})};
    }
    Trainer trainer(options);
    trainer.fit(std::make_shared<Averaged>());
    if (checkpoints > 0) {
      const auto kept =
          list_checkpoints(folder / "storage", [](const std::string& text) { FAIL_CHECK(text); });
      REQUIRE(kept.size() == 1);
      CHECK(kept[0].manifest.metrics.contains("val_loss"));
      REQUIRE(kept[0].manifest.metrics.contains("mean_index"));
      CHECK(kept[0].manifest.metrics.at("mean_index") == 1.5);
    }
    const std::string told = read_file(folder / "metrics");
    for (const char* name : {"val_loss", "mean_index"}) {
      CAPTURE(name);
      const auto first = told.find(name);
      REQUIRE(first != std::string::npos);
      CHECK(told.find(name, first + 1) == std::string::npos);
    }
    CHECK(trainer.callback_metrics().at("mean_index") == 1.5);
  }
}

TEST_CASE("an epoch that other batches began is trained on to its end, and validated there") {
  class Seen final : public SmallModule {
   public:
    Seen(std::int64_t size, std::multiset<std::int64_t>& indices)
        : SmallModule({.plain_sgd = true}), size_(size), indices_(indices) {}
    DataLoader train_dataloader() override {
      const test::Samples all = test::make_samples(12);
      return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = size_});
    }
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      indices_.insert(batch.indices.begin(), batch.indices.end());
      return SmallModule::training_step(batch, index);
    }

   private:
    std::int64_t size_;
    std::multiset<std::int64_t>& indices_;
  };
  const TemporaryFolder folder;
  std::multiset<std::int64_t> indices;
  const auto fit = [&](std::int64_t batch_size, std::int64_t max_steps) {
    TrainerOptions options;
    options.max_steps = max_steps;
    options.default_root_dir = folder / "storage";
    Trainer trainer(options);
    trainer.fit(std::make_shared<Seen>(batch_size, indices));
    return trainer.global_step();
  };
  CHECK(fit(6, 1) == 1);
  CHECK(fit(4, -1) == 3);  // 4 and 2 of the 6 that are left
  CHECK(indices == std::multiset<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const auto kept =
      list_checkpoints(folder / "storage", [](const std::string& text) { FAIL_CHECK(text); });
  REQUIRE(kept.size() == 2);
  CHECK(kept.back().manifest.step == 3);
  CHECK(kept.back().manifest.metrics.contains("val_loss"));
}

TEST_CASE("SIGTERM in a validation breaks it off, and the next start begins with it") {
  for (const char* every : {"10", "4"}) {  // at an epoch's end, and within
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(every);
      const TemporaryFolder whole;
      expect("recorded", ranks, whole, 0, {{"TEST_VALIDATE_EVERY", every}});
      const TemporaryFolder told;
      // 9 samples in batches of 2: 5 batches, or 3 and 2 of two ranks. In the second validation.
      const int batch = ranks == 1 ? 7 : 3;
      expect("recorded", ranks, told, 143,
             {{"TEST_VALIDATE_EVERY", every}, {"TEST_TERM_IN_VALIDATION", std::to_string(batch)}});
      CHECK(read_file(told / ("validated-" + std::to_string(ranks - 1))) == std::to_string(batch));
      expect("recorded", ranks, told, 0, {{"TEST_VALIDATE_EVERY", every}});
      check_same_end(whole, told, ranks, "metrics");
    }
  }
}

TEST_CASE("ranks that do not share their storage are told at the start, all of them") {
  const TemporaryFolder folder;
  for (const test::Exit& exit : launch("apart", 2, folder.path())) {
    CHECK(exit.code == 1);
    CHECK(contains(exit.error_file, "rank 1: this rank, on node 0, does not see what rank 0"));
    CHECK(contains(exit.error_file, "a folder that all nodes share"));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "storage-0")) {
    CHECK(entry.is_directory());  // nothing is left behind
  }
}

TEST_CASE("ranks whose copies of the data differ are told at the start, all of them") {
  const std::map<std::string, std::string> told{
      {"train", "training data differ: samples is 40 on rank 0 and 30 on rank 2"},
      {"val", "validation data differ: samples is 9 on rank 0 and 7 on rank 2"},
      {"epochs", "training data differ: batch_size is 4 on rank 0 and 3 on rank 2"}};
  for (const auto& [data, words] : told) {
    CAPTURE(data);
    const TemporaryFolder folder;
    for (const test::Exit& exit : launch("data_apart", 3, folder.path(), {{"TEST_DATA", data}})) {
      CHECK(exit.code == 1);
      CHECK(contains(exit.error_file, words));
    }
  }
}

TEST_CASE("buffers that are each rank's own are there again, for as many ranks") {
  const TemporaryFolder folder;
  expect("own_buffers", 2, folder, 0);
  CHECK(read_file(folder / "buffers-0.safetensors") != read_file(folder / "buffers-1.safetensors"));
  expect("own_buffers", 2, folder, 0);
  expect("own_buffers", 3, folder, 0, {{"TEST_BUFFERS_OF", "0"}});
}

TEST_CASE("golden: a training that an earlier version has left is gone on with") {
  const char* golden = std::getenv("DTRAIN_GOLDEN");
  REQUIRE_MESSAGE(golden != nullptr, "DTRAIN_GOLDEN is not set; run meson test");
  const auto training = std::filesystem::path(golden) / "training";
  const TemporaryFolder folder;
  const auto checkpoints = folder / "storage/checkpoints";
  std::filesystem::create_directories(checkpoints);
  std::filesystem::copy(training / "checkpoint_000004", checkpoints / "checkpoint_000004",
                        std::filesystem::copy_options::recursive);
  expect("fit", 1, folder, 0);
  CHECK(contains(read_file(folder / "rank-0.log"), "checkpoint_000004, step 8"));
  // To the bit only on the processor that it was made on.
  const TensorMap expected = read_tensors(training / "final.safetensors");
  for (const auto& [name, tensor] : read_tensors(folder / "final-0.safetensors")) {
    CHECK(tensor.allclose(expected.at(name), 1e-3, 1e-4));
  }
}
