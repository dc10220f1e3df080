#pragma once

#include <memory>
#include <optional>

#include "trainer/api/functions.hpp"
#include "trainer/api/place_counter.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/optimizer_set.hpp"

namespace dtrain::train::internal {

class TrainingPass;  // epochs.cpp's

// What the functions share: one training of a process. functions.cpp makes and prepares it,
// epochs.cpp goes through it. Members end in the reverse order: the context last.
struct Current {
  explicit Current(InitOptions options);

  Context context;
  std::optional<Session> session;
  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<DistributedDataParallel> ddp;
  OptimizerSet::Named optimizers;
  std::vector<Kept> schedulers;
  std::shared_ptr<Optimizer> optimizer;  // what checkpoints keep: the one, or all as one
  std::optional<GradScaler> scaler;
  Precision precision = Precision::fp32;
  bool own_buffers = false;  // each rank its own
  bool has_resumed = false;

  PlaceCounter place;
  std::int64_t epochs = 0;       // of the loop that is gone through
  TrainingPass* pass = nullptr;  // that is open
  bool has_gradients = false;    // of a backward() since the last step
  std::int64_t log_every;
  std::int64_t checkpoint_every;
  std::int64_t logged_at = -1;  // step
  LateMetrics logged;
  std::optional<LossCheck> losses;
  StepTimes times;
  std::int64_t timed_steps = 0;  // in this process
  // As it was when the epoch's data were used up: a resume there does again what came behind.
  struct PassEnd {
    std::int64_t step = -1;
    at::Tensor generators;
    std::vector<nlohmann::json> schedulers;
    std::vector<std::uint32_t> parameters;  // their versions
  };
  PassEnd pass_end;
  bool leaves = false;  // all ranks have agreed to, in an evaluation that some broke off
};

Current& training();        // throws Error before init()
Current& with_model();      // and before prepare_model()
Current& with_optimizer();  // and before prepare_optimizer()

// A checkpoint without its scheduler would begin the schedule anew, and nobody would see it.
void check_schedulers(const Current& t);

// What epoch() of a prepared loader is.
DataLoader::NextBatch train_through(const DataLoader& loader, std::int64_t epoch);
DataLoader::NextBatch evaluate_through(const DataLoader& loader, std::int64_t epoch);

}  // namespace dtrain::train::internal
