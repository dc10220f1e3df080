#include "trainer/api/tuner.hpp"

#include <cstdio>
#include <cstdlib>

#include "trainer/core/error.hpp"
#include "trainer/core/params.hpp"

namespace dtrain::train {

Tuner::Tuner(TorchTrainer::TrainFunc train_func, std::vector<std::string> program,
             nlohmann::json param_space, TuneConfig tune, RunConfig run, ScalingConfig scaling)
    : train_func_(std::move(train_func)),
      program_(std::move(program)),
      space_(std::move(param_space)),
      tune_(std::move(tune)),
      run_(std::move(run)),
      scaling_(std::move(scaling)) {
  if (!train_func_ && program_.empty()) throw Error("Tuner: what is to be tuned is missing");
  // What is wrong is told here, however it is started.
  search_document(space_, tune_, scaling_, run_, {}, {});
}

ResultGrid Tuner::fit() {
  if (!train_func_ || read_environment().started_by == StartedBy::nobody) {
    return tune_as_search(DtrainCommand::find(), space_, tune_, scaling_, run_, program_);
  }
  if (!process_variable("DTRAIN_TRIAL")) {
    throw Error(
        "Tuner: this rank is no trial's: start the program alone, it makes a search of itself");
  }
  TorchTrainer trainer(train_func_, scaling_, run_, params());
  const int code = trainer.fit().exit_code;
  std::fflush(nullptr);
  std::exit(code);
}

}  // namespace dtrain::train
