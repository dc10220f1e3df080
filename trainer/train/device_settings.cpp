#include "trainer/train/device_settings.hpp"

#include <ATen/Context.h>

#include <cstdlib>

#include "trainer/core/environment.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr const char* kVariable = "CUBLAS_WORKSPACE_CONFIG";

bool cuda_has_started() {
  if (!at::hasCUDA()) return false;
  const auto gpus = static_cast<c10::DeviceIndex>(at::getNumGPUs());
  for (c10::DeviceIndex gpu = 0; gpu < gpus; ++gpu) {
    if (at::detail::getCUDAHooks().hasPrimaryContext(gpu)) return true;
  }
  return false;
}

void prepare_cublas() {
  if (const std::optional<std::string> config = process_variable(kVariable)) {
    if (*config == ":4096:8" || *config == ":16:8") return;
    throw Error(std::string("deterministic: ") + kVariable + " is '" + *config +
                "'; cuBLAS is deterministic with :4096:8 or :16:8");
  }
  if (cuda_has_started()) {
    throw Error(std::string("deterministic: CUDA has started without ") + kVariable +
                ": set it to :4096:8 in the job's environment, or ask for deterministic before the "
                "first use of a GPU (InitOptions::device)");
  }
  ::setenv(kVariable, ":4096:8", /*overwrite=*/0);
}

}  // namespace

void apply(const DeviceSettings& settings) {
  if (settings.deterministic && settings.benchmark.value_or(false)) {
    throw Error("benchmark lets cuDNN choose by time, which deterministic rules out: take one");
  }
  if (const auto& name = settings.float32_matmul_precision) {
    if (*name != "highest" && *name != "high" && *name != "medium") {
      throw Error("float32_matmul_precision '" + *name +
                  "' is not known; there are highest, high and medium");
    }
    at::globalContext().setFloat32MatmulPrecision(*name);
  }
  if (settings.deterministic) {
    prepare_cublas();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setBenchmarkCuDNN(false);
  }
  if (settings.benchmark) at::globalContext().setBenchmarkCuDNN(*settings.benchmark);
}

}  // namespace dtrain::train
