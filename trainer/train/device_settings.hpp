#pragma once

#include <optional>
#include <string>

namespace dtrain::train {

// How this process computes, by Lightning's and PyTorch's names. What is unset stays as it is.
struct DeviceSettings {
  // torch.backends.cudnn.benchmark: cuDNN tries its algorithms for each shape and takes the
  // fastest. Not with `deterministic`: which one that is differs from run to run.
  std::optional<bool> benchmark = std::nullopt;
  // torch.use_deterministic_algorithms: the same bits in each run; an operation that has no such
  // algorithm throws. cuBLAS needs CUBLAS_WORKSPACE_CONFIG in the environment before CUDA starts:
  // it is set to :4096:8 unless it is there.
  bool deterministic = false;
  // torch.set_float32_matmul_precision: "highest"; "high" and "medium" let matrix products of float
  // compute in TF32 or bfloat16, several times faster on GPUs that have them.
  std::optional<std::string> float32_matmul_precision = std::nullopt;
};

// Before the first use of a GPU (init() does it); for the whole process, and for good. Throws Error
// on settings that contradict each other or are not known, and where it is too late for
// `deterministic`: CUDA has started without CUBLAS_WORKSPACE_CONFIG.
void apply(const DeviceSettings& settings);

}  // namespace dtrain::train
