#pragma once

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/store.hpp"
#include "trainer/core/run.hpp"
#include "trainer/report/logger.hpp"
#include "trainer/report/reporter.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/preemption.hpp"
#include "trainer/train/training_state.hpp"

namespace dtrain::train {

class CheckpointWriter;

// What a training tells the world, and what it comes back from: metrics, progress, checkpoints.
//
// Under dtrain all goes through the ranks' report sockets, and the head commits checkpoints.
// Without it, rank 0 draws a progress line if stdout is a terminal, and commits checkpoints
// itself, by the same rules. The context must outlive the session. One thread uses it.
//
// A checkpoint stops the training while a copy of this rank's share of it is taken in memory;
// writing, sums, fsync and commit go on behind, on one thread of low priority. The next checkpoint
// waits until the last is done. finish() waits for the end and is what a program calls last: the
// destructor waits too, but can only print what went wrong, and waits for nothing when it runs
// because of an exception.
class Session {
 public:
  struct Options {
    // Where checkpoints go when dtrain does not say (DTRAIN_STORAGE_PATH).
    std::optional<std::filesystem::path> storage;
    // What is kept of them when dtrain does not do it.
    Retention retention;
    bool print_metrics = true;  // by rank 0, a line for each report
    // Where rank 0's metrics and the hyperparameters go as well. They start with resume(), or with
    // the first metrics where that comes earlier, and end with the session; one that cannot start
    // is an Error.
    std::vector<std::shared_ptr<Logger>> loggers;
    std::optional<std::filesystem::path> metrics_file;          // one more: a JsonLinesLogger
    std::optional<std::filesystem::path> tensorboard;           // one more: a TensorBoardLogger
    nlohmann::json hyperparameters = nlohmann::json::object();  // kept in each checkpoint
    bool stop_on_bad_loss = false;                              // see check_loss
    // For how long a rank looks at the start for what rank 0 has written in the storage.
    std::chrono::milliseconds storage_probe = std::chrono::seconds(15);
  };

  // Collective, when dtrain has not started the program and there is a storage: what earlier runs
  // left unfinished in it is removed before anyone writes, and ranks that do not share it are an
  // Error.
  Session(Context& context, Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Makes something else a part of the state: call it before resume(). The functions are called
  // by report() and resume(), and must stay good as long as the session: let them own what they
  // use.
  void keep(const std::string& name, Kept kept);
  void keep_tensors(const std::string& name, std::function<TensorMap()> tensors, bool alike = true,
                    std::function<void()> begin = nullptr);

  // Loads the newest checkpoint, if there is one: DTRAIN_CHECKPOINT, else, without dtrain, the
  // newest one in the storage. Restores model, optimizer, what is kept and this rank's generators,
  // on every rank, and returns where to go on. With as many ranks as before the continuation is
  // bit-identical to a training that never stopped (with three ranks and more over Gloo or NCCL
  // the buckets' layout must be kept too). With another number the same samples come in the same
  // order. It also reserves the memory for checkpoints. A damaged checkpoint is passed over for the
  // one before it, and said (choose_checkpoint).
  // Collective. Throws Error if the checkpoint cannot be read or does not fit.
  std::optional<Place> resume(torch::nn::Module& model, Optimizer& optimizer);

  // Metrics of a step. Every rank may call it; rank 0's are kept.
  void report(std::int64_t step, const Metrics& metrics,
              std::optional<std::int64_t> epoch = std::nullopt);

  // Metrics together with a checkpoint of the whole state. Returns when the state is copied; rank
  // 0's metrics then have checkpoint_blocked_ms as well. Collective. Throws Error on every rank if
  // there is nowhere to put it, or if the one before could not be committed.
  void report(const Place& place, const Metrics& metrics, torch::nn::Module& model,
              Optimizer& optimizer);
  // Metrics together with a checkpoint of a program's own files: a copy of the folder of each rank
  // that gives one (Checkpoint::from_directory), as a shard of it. Returns on all ranks when it is
  // committed, with its path; nothing, and metrics alone, if no rank gives a folder. Collective.
  // Throws Error on every rank if any could not write its part, or there is nowhere to put it.
  std::optional<std::filesystem::path> report(std::int64_t step, const Metrics& metrics,
                                              const std::optional<Checkpoint>& files);
  // What to resume from of such a checkpoint: this rank's own folder where as many were given as
  // there are ranks, else the first. Only to be read. Nothing if there is none. Collective.
  std::optional<std::filesystem::path> checkpoint_directory();
  // The newest value of each name that this rank has reported.
  const Metrics& last_metrics() const { return last_metrics_; }

  // False if nobody said where checkpoints go; then the report above is an Error.
  bool can_checkpoint() const { return storage_.has_value(); }
  const std::optional<std::filesystem::path>& storage() const { return storage_; }

  // Waits until the last checkpoint is committed. Collective. Throws Error, on every rank, if it
  // was not. The path is known to rank 0, and to all ranks under dtrain.
  std::optional<std::filesystem::path> finish();
  // The newest that is committed, without waiting.
  std::optional<std::filesystem::path> last_checkpoint() const;

  // For how long checkpoints have held this rank up: waiting for the last one, and copying.
  struct Blocked {
    std::chrono::nanoseconds last{};
    std::chrono::nanoseconds total{};
    std::int64_t checkpoints = 0;
  };
  const Blocked& blocked() const { return blocked_; }

  // From the first call on SIGTERM does not end the process: true, on all ranks after the same
  // step, once any of them has got it. Then report() a checkpoint, finish() and return
  // kExitPreempted from main. Collective: each rank calls it once a step.
  bool preempted();
  // Whether this rank or, a moment ago, another one has got SIGTERM since then: for long work
  // between two steps, which may then be broken off. Not collective, and not alike on all ranks.
  bool told_to_go();
  // This rank wants the training to end, for a reason of its own: the next preempted() tells the
  // others, and the one after it makes stop_agreed() true on all ranks (with one rank, the next).
  void request_stop() { wants_stop_ = true; }
  bool stop_agreed() const;

  // Says so, once in a row of them, when a loss is not a number or infinite: with step and rank.
  // Throws Error with the same words when Options::stop_on_bad_loss is set. Not collective.
  void check_loss(std::int64_t step, double loss);

  void progress(const Progress& progress);
  // Whether progress() would show its metrics now: what is on a device is read for it only then.
  bool progress_due(std::int64_t step, std::optional<std::int64_t> total) const;
  // Rank 0 prints a line on stdout, above the progress line if there is one.
  void say(const std::string& line);

 private:
  void record(std::int64_t step, std::optional<std::int64_t> epoch, const Metrics& metrics);
  CheckpointWriter& writer();  // throws Error without a storage
  std::optional<Checkpoint> newest();
  void clear_line();

  Context& context_;
  Options options_;
  std::optional<std::filesystem::path> storage_;
  std::unique_ptr<Reporter> reporter_;   // null without dtrain
  std::optional<Loggers> loggers_;       // rank 0's
  std::optional<AtFailure> at_failure_;  // ends them where run() ends the process
  KeptStates states_;
  KeptTensors tensors_;
  std::unique_ptr<CheckpointWriter> writer_;  // null without a storage
  std::unique_ptr<Preemption> preemption_;
  Metrics last_metrics_;
  std::string told_note_;  // where a rank that got SIGTERM says so
  bool told_ = false;
  std::chrono::steady_clock::time_point asked_at_;
  Blocked blocked_;
  int exceptions_at_birth_;
  bool wants_stop_ = false;
  bool loss_is_bad_ = false;
  bool draws_ = false;  // the progress line
  bool line_drawn_ = false;
  std::optional<std::chrono::steady_clock::time_point> drawn_at_;
};

}  // namespace dtrain::train
