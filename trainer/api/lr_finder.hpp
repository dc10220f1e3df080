#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::train {

// Trainer::lr_find, as Lightning's Tuner.lr_find: trains a few steps, each with a higher learning
// rate than the one before, and looks where the loss falls most.
struct LrFinderOptions {
  enum class Mode : std::uint8_t { exponential, linear };
  double min_lr = 1e-8;
  double max_lr = 1;
  std::int64_t num_training = 100;  // steps
  Mode mode = Mode::exponential;
  // Ends early when the smoothed loss is above so many times its least. Unset: never.
  std::optional<double> early_stop_threshold = 4.0;
};

// What it has found. The losses are smoothed as Lightning does it, whose correction counts one step
// too many: the first ones come out low, the very first at about half of the loss.
struct LrFinderResult {
  struct Point {
    double lr = 0;
    double loss = 0;  // the mean of all ranks
  };
  std::vector<Point> points;
  bool stopped_early = false;

  // The rate where the loss falls most steeply over the rate; nothing where fewer than two points
  // with a finite loss are left.
  std::optional<double> suggestion(std::int64_t skip_begin = 10, std::int64_t skip_end = 1) const;
  // For a terminal: about `rows` points with a bar for each loss, the suggestion marked.
  std::string table(std::int64_t rows = 20) const;
  void save_csv(const std::filesystem::path& path) const;  // lr,loss. Throws Error
};

// The rate of step `index` (from 0). Throws Error on options that make no sense.
double lr_of_step(const LrFinderOptions& options, std::int64_t index);

}  // namespace dtrain::train
