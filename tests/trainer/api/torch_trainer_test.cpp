// TorchTrainer in ranks, and checkpoints of a program's own files. As a driver:
// tests/e2e/training.py.
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "tests/trainer/support/require.hpp"
#include "trainer/core/error.hpp"
#include "trainer/trainer.hpp"

namespace dtrain::train::test {
namespace {

namespace fs = std::filesystem;

// A folder of this rank's with a file and an empty one beneath.
Checkpoint made(const fs::path& folder, const std::string& text) {
  const fs::path mine = folder / ("made-" + std::to_string(context().rank()) + text);
  write_file(mine / "w.txt", text);
  write_file(mine / "sub" / "empty", "");
  return Checkpoint::from_directory(mine);
}

// Two reports, of rank 1's files and of both ranks', and one of nobody's.
int own_files(const fs::path& folder) {
  init({.storage = folder / "storage"});
  require(!checkpoint_directory(), "nothing to resume from");
  const bool second = context().rank() == 1;
  const auto one =
      report(1, {{"a", 1}}, second ? std::optional(made(folder, "one")) : std::nullopt);
  require(one && one->filename() == "checkpoint_000000", "committed, and told on all ranks");
  require(read_file(*checkpoint_directory() / "w.txt") == "one", "all ranks resume from the one");
  const auto both = report(2, {{"a", 2}}, made(folder, second ? "1" : "0"));
  require(open_checkpoint(*both).manifest.shards == 2, "a shard of each");
  require(open_checkpoint(*both).manifest.metrics.at("a") == 2, "with the metrics");
  require(read_file(*checkpoint_directory() / "w.txt") == (second ? "1" : "0"), "each its own");
  require(fs::exists(*checkpoint_directory() / "sub" / "empty"), "folders too");
  require(fs::exists(folder / "made-1one" / "w.txt"), "copied, not moved");
  require(!report(3, {{"a", 3}}, std::nullopt), "metrics alone");
  require(session().last_metrics().at("a") == 3, "the last metrics");
  shutdown();
  return 0;
}

int bad_files(const fs::path& folder) {
  init({.storage = folder / "storage"});
  Checkpoint files = made(folder, "x");
  if (context().rank() == 1) fs::create_symlink("/etc/passwd", files.folder / "link");
  const auto message = message_of<Error>([&] { report(1, {}, files); });
  require(contains(message, "regular files only"), "told on all ranks: " + message);
  files.folder /= "none";
  require(contains(message_of<Error>([&] { report(1, {}, files); }), "in a folder"), "no folder");
  require(list_checkpoints(folder / "storage", [](const auto&) {}).empty(), "nothing committed");
  return 0;
}

int torch_trainer(const fs::path& folder) {
  const auto train = [&](const nlohmann::json& config) {
    for (int step = 0; step < 3; ++step) {
      report(step, {{"a", config.at("a").at(static_cast<std::size_t>(step)).get<double>()}},
             made(folder, std::to_string(step)));
    }
    if (number_of("TEST_THROWS", 0) != 0) throw std::runtime_error("the data is gone");
    return number_of("TEST_CODE", 0);
  };
  TorchTrainer trainer(train, ScalingConfig{.num_workers = 2},
                       RunConfig{.storage_path = folder / "storage",
                                 .checkpoint_config = {.num_to_keep = 2, .score_attribute = "a"}},
                       {{"a", {0.9, 0.1, 0.5}}});
  const Result result = trainer.fit();
  require(!is_initialized(), "the training is left");
  require(result.metrics.at("a") == 0.5 && !result.error, "metrics");
  require(result.checkpoint->filename() == "checkpoint_000002", "the newest");
  require(result.best_checkpoints.size() == 2, "as many as are kept");
  require(result.best_checkpoints.front().first.filename() == "checkpoint_000000",
          "the best first");
  write_file(folder / ("after-" + std::to_string(number_of("RANK", 0))), "");
  return result.exit_code;
}

}  // namespace

const ApiJobs& fit_jobs() {
  static const ApiJobs jobs{
      {"own_files", own_files}, {"bad_files", bad_files}, {"torch_trainer", torch_trainer}};
  return jobs;
}

TEST_CASE("checkpoints of a program's own files") {
  const TemporaryFolder folder;
  expect("own_files", 2, folder, 0);
}

TEST_CASE("files that cannot become a checkpoint are an error on every rank") {
  const TemporaryFolder folder;
  expect("bad_files", 2, folder, 0);
}

TEST_CASE("TorchTrainer as a rank: fit() trains and returns this rank's result") {
  const TemporaryFolder folder;
  expect("torch_trainer", 2, folder, 143, {{"TEST_CODE", "143"}});
  CHECK(std::filesystem::exists(folder / "after-1"));
}

TEST_CASE("in a job that fit() made, a rank ends within it") {
  const TemporaryFolder folder;
  expect("torch_trainer", 2, folder, 7, {{"TEST_CODE", "7"}, {"DTRAIN_FIT", "1"}});
  CHECK_FALSE(std::filesystem::exists(folder / "after-0"));
}

TEST_CASE("what train_func throws ends the rank with its words") {
  const TemporaryFolder folder;
  for (const Exit& exit : launch("torch_trainer", 2, folder.path(), {{"TEST_THROWS", "1"}})) {
    CHECK(exit.code == 1);
    CHECK(contains(exit.error_file, "the data is gone"));
  }
}

}  // namespace dtrain::train::test
