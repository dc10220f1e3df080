#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

enum class Precision : std::uint8_t { fp32, bf16, fp16 };

// "32", "fp32", "32-true"; "bf16", "bf16-mixed"; "16", "fp16", "16-mixed". Throws Error on others.
Precision precision_of(const std::string& name);

// While one lives, forward passes of this thread compute in 16 bits where that is safe, as
// torch.autocast does. Nothing with fp32. Leave it before backward.
class Autocast {
 public:
  Autocast(c10::Device device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool on_;
  bool was_on_ = false;
  at::ScalarType dtype_before_{};
};

// Keeps small gradients of fp16 from becoming zero: the loss is multiplied, the gradients are
// divided again before the step, and a step whose gradients are infinite is left out and makes the
// factor smaller. All ranks take the same decision. As torch.amp.GradScaler.
//
//     scaler.scale(loss).backward();
//     scaler.unscale(optimizer);  // then clip, if wanted
//     scaler.step(optimizer);     // unscales if that was not done
//     optimizer.zero_grad();      // in place of step() too: the step is given up
class GradScaler {
 public:
  struct Options {
    bool enabled = true;  // else it does nothing
    double init_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;
  };

  GradScaler(Context& context, Options options);

  // Begins a new step where gradients were unscaled and then dropped (zero_grad) without step().
  // Throws Error where they are still there: scaled ones would be added to them.
  at::Tensor scale(const at::Tensor& loss);
  void unscale(Optimizer& optimizer);  // collective
  // True if the optimizer took the step. Collective.
  bool step(Optimizer& optimizer);

  double scale() const { return scale_; }
  // unscale() was called in this step, or there is nothing to unscale.
  bool unscaled() const { return unscaled_ || !options_.enabled; }
  std::int64_t skipped() const { return skipped_; }

  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  void give_up_step();
  void back_off();
  bool found_inf() const;

  Context& context_;
  Options options_;
  double scale_;
  std::vector<at::Tensor> unscaled_parameters_;
  std::int64_t good_steps_ = 0;  // since the scale was changed
  std::int64_t skipped_ = 0;
  bool unscaled_ = false;
  at::Tensor found_inf_;  // over all ranks, on the device: read when the step is decided
};

}  // namespace dtrain::train
