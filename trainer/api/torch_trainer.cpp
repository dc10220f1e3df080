#include "trainer/api/torch_trainer.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "trainer/api/functions.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/run.hpp"

namespace dtrain::train {
namespace {

// What is in the storage when this process keeps checkpoints itself, else its last one.
void add_checkpoints(Result& result, const RunConfig& run, const Retention& retention) {
  if (const auto last = session().last_checkpoint()) result.checkpoint = *last;
  if (context().environment().report_socket) return;
  const auto nobody = [](const std::string&) {};
  std::vector<Checkpoint> kept = list_checkpoints(run.storage_path, nobody);
  if (kept.empty()) return;
  result.checkpoint = kept.back().folder;
  for (const Checkpoint& each : best_first(std::move(kept), retention)) {
    result.best_checkpoints.emplace_back(each.folder, each.manifest.metrics);
  }
}

}  // namespace

TorchTrainer::TorchTrainer(TrainFunc train_func, ScalingConfig scaling, RunConfig run,
                           Config train_loop_config)
    : train_func_(std::move(train_func)),
      scaling_(std::move(scaling)),
      run_(std::move(run)),
      config_(std::move(train_loop_config)) {
  if (!train_func_) throw Error("TorchTrainer: train_func is missing");
  submit_words(scaling_, run_, {}, {});  // what is wrong is told here, however it is started
}

Result TorchTrainer::fit() {
  if (read_environment().started_by == StartedBy::nobody) {
    return fit_as_job(DtrainCommand::find(), scaling_, run_);
  }
  const bool ends_here = process_variable(kFitVariable).has_value();
  Result result;
  try {
    const CheckpointConfig& kept = run_.checkpoint_config;
    InitOptions options;
    if (run_.storage_path.empty()) {
      const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
      run_.storage_path = "runs/" + (run_.name.empty() ? program.filename().string() : run_.name);
    }
    options.session.storage = run_.storage_path;
    options.session.retention = {.num_to_keep = kept.num_to_keep,
                                 .score_attribute = kept.score_attribute,
                                 .higher_is_better = kept.score_order != "min"};
    const Retention retention = options.session.retention;
    options.session.hyperparameters = config_;
    init(std::move(options));
    result.exit_code = train_func_(config_);
    session().finish();
    result.metrics = session().last_metrics();
    result.job = context().environment().job;
    add_checkpoints(result, run_, retention);
    shutdown();
  } catch (const std::exception& error) {
    // What the program makes of an error of fit() is for the one that called it, as what follows.
    if (ends_here) end_for(error);
    throw;
  }
  if (ends_here) {
    std::fflush(nullptr);
    std::exit(result.exit_code);
  }
  return result;
}

}  // namespace dtrain::train
