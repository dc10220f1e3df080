#pragma once

#include <concepts>
#include <functional>
#include <nlohmann/json.hpp>

#include "trainer/launch/fit.hpp"

namespace dtrain::train {

// A training from one function that every rank runs, as Ray Train's TorchTrainer.
//
//     void train_func(const nlohmann::json& config) { …prepare_model, report… }
//
//     int main() {
//       return run([] {
//         TorchTrainer trainer(train_func, ScalingConfig{.num_workers = 8, .use_gpu = true},
//                              RunConfig{.name = "resnet"}, {{"lr", 1e-3}});
//         const Result result = trainer.fit();
//         …
//         return result.exit_code;
//       });
//     }
//
// The program is its own driver and its own ranks. Started by a person, fit() runs it once more as
// a job (fit_as_job in ../launch/fit.hpp) and returns how that ended. Started as a rank, by that
// job or by torchrun or srun, fit() joins the training, runs `train_func` and leaves it again: no
// init() and no shutdown() there. So what stands before fit() is run by driver and ranks alike;
// what stands behind it, in a job that fit() made, by the driver alone: a rank ends within fit().
// Under torchrun and srun, and in a job that `dtrain submit` made, fit() returns this rank's
// Result.
//
// An exception of `train_func` leaves fit() in the rank, and the driver finds it in Result::error.
class TorchTrainer {
 public:
  using Config = nlohmann::json;
  // Returns the rank's exit code: 0, or kExitPreempted once it was told to go.
  using TrainFunc = std::function<int(const Config& config)>;

  TorchTrainer(TrainFunc train_func, ScalingConfig scaling = {}, RunConfig run = {},
               Config train_loop_config = Config::object());
  // Functions without a result, and without the configuration.
  template <typename F>
  requires std::invocable<F&, const Config&> || std::invocable<F&>
  explicit TorchTrainer(F train_func, ScalingConfig scaling = {}, RunConfig run = {},
                        Config train_loop_config = Config::object())
      : TorchTrainer(TrainFunc(with_code(std::move(train_func))), std::move(scaling),
                     std::move(run), std::move(train_loop_config)) {}

  // Throws Error: in the driver where no job could be made of it or nobody follows it any more, in
  // a rank what `train_func` throws.
  [[nodiscard]] Result fit();

 private:
  friend class Tuner;
  template <typename F>
  static auto with_code(F train_func) {
    return [f = std::move(train_func)](const Config& config) mutable -> int {
      const auto call = [&]() -> decltype(auto) {
        if constexpr (std::invocable<F&, const Config&>) {
          return f(config);
        } else {
          return f();
        }
      };
      if constexpr (std::convertible_to<decltype(call()), int>) {
        return call();
      } else {
        call();
        return 0;
      }
    };
  }

  TrainFunc train_func_;
  ScalingConfig scaling_;
  RunConfig run_;
  Config config_;
};

}  // namespace dtrain::train
