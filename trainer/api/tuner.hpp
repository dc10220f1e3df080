#pragma once

#include <concepts>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trainer/api/torch_trainer.hpp"
#include "trainer/launch/tune.hpp"

namespace dtrain::train {

// A search for hyperparameters, as Ray's Tuner: trials are jobs of this program, each with its own
// parameters.
//
//     void train_func(const nlohmann::json& config) { …config.at("lr")…, report… }
//
//     int main() {
//       return run([] {
//         Tuner tuner(train_func, {{"lr", tune::loguniform(1e-4, 1e-1)}},
//                     TuneConfig{.metric = "accuracy", .num_samples = 30, .scheduler = "asha"});
//         const ResultGrid results = tuner.fit();
//         std::printf("%s\n", results.get_best_result().params.dump().c_str());
//         return results.exit_code;
//       });
//     }
//
// Who runs what is as with TorchTrainer: a trial's ranks end within fit().
class Tuner {
 public:
  template <typename F>
  requires std::invocable<F&, const nlohmann::json&> Tuner(F train_func, nlohmann::json param_space,
                                                           TuneConfig tune, RunConfig run = {},
                                                           ScalingConfig scaling = {})
      : Tuner(TorchTrainer::TrainFunc(TorchTrainer::with_code(std::move(train_func))),
              std::vector<std::string>(), std::move(param_space), std::move(tune), std::move(run),
              std::move(scaling)) {}
  // Any program, which has its parameters by {name} in its arguments or from DTRAIN_PARAMS.
  Tuner(std::vector<std::string> program, nlohmann::json param_space, TuneConfig tune,
        RunConfig run = {}, ScalingConfig scaling = {})
      : Tuner(nullptr, std::move(program), std::move(param_space), std::move(tune), std::move(run),
              std::move(scaling)) {}

  // Throws Error: in the driver where no search could be made of it or nobody follows it any more,
  // in a rank what `train_func` throws, and in one that belongs to no search.
  [[nodiscard]] ResultGrid fit();

 private:
  Tuner(TorchTrainer::TrainFunc train_func, std::vector<std::string> program,
        nlohmann::json param_space, TuneConfig tune, RunConfig run, ScalingConfig scaling);

  TorchTrainer::TrainFunc train_func_;
  std::vector<std::string> program_;
  nlohmann::json space_;
  TuneConfig tune_;
  RunConfig run_;
  ScalingConfig scaling_;
};

}  // namespace dtrain::train
