#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trainer/checkpoint/store.hpp"
#include "trainer/report/reporter.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/training_state.hpp"

namespace dtrain::train {

// What a training tells the world, and what it comes back from: metrics, progress, checkpoints.
//
// Under dtrain all goes through the rank's report socket, and the head commits checkpoints.
// Without it, rank 0 draws a progress line if stdout is a terminal, and commits checkpoints
// itself, by the same rules. The context must outlive the session.
class Session {
 public:
  struct Options {
    // Where checkpoints go when dtrain does not say (DTRAIN_STORAGE_PATH).
    std::optional<std::filesystem::path> storage;
    // What is kept of them when dtrain does not do it.
    Retention retention;
    bool print_metrics = true;  // by rank 0, a line for each report
  };

  Session(Context& context, Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Loads the newest checkpoint, if there is one: DTRAIN_CHECKPOINT, else, without dtrain, the
  // newest one in the storage. Restores model, optimizer and this rank's generators, on every
  // rank, and returns where to go on: the continuation is bit-identical to a training that never
  // stopped, with up to two ranks of the same number (with more, the order in which Gloo adds up
  // is not the same before and after the first backward; rounding differs).
  // Collective. Throws Error if the checkpoint cannot be read or does not fit.
  std::optional<Place> resume(torch::nn::Module& model, Optimizer& optimizer);

  // Metrics of a step. Every rank may call it; rank 0's are kept.
  void report(std::int64_t step, const Metrics& metrics);

  // Metrics together with a checkpoint of the whole state. Collective; returns the committed
  // checkpoint's path on every rank. Throws Error on every rank if it could not be committed.
  std::filesystem::path report(const Place& place, const Metrics& metrics,
                               const torch::nn::Module& model, const Optimizer& optimizer);
  // False if nobody said where checkpoints go; then the report above is an Error.
  bool can_checkpoint() const { return storage_.has_value(); }

  void progress(const Progress& progress);
  // Rank 0 prints a line on stdout, above the progress line if there is one.
  void say(const std::string& line);

 private:
  std::filesystem::path save(const Place& place, const Metrics& metrics,
                             const torch::nn::Module& model, const Optimizer& optimizer,
                             const std::vector<at::Tensor>& generators);
  void clear_line();

  Context& context_;
  Options options_;
  std::optional<std::filesystem::path> storage_;
  std::unique_ptr<Reporter> reporter_;  // null without dtrain
  bool draws_ = false;                  // the progress line
  bool line_drawn_ = false;
  std::optional<std::chrono::steady_clock::time_point> drawn_at_;
};

}  // namespace dtrain::train
