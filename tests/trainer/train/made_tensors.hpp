#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "trainer/train/tensors.hpp"

namespace dtrain::train::test {

// What tests/golden/resnet/make.py calls made(): the same values in both languages.
inline at::Tensor made_tensor(std::int64_t number, at::IntArrayRef shape, double low, double high) {
  const at::Tensor whole =
      (at::arange(c10::multiply_integers(shape), at::kLong) * 40503 + 7919 * number)
          .remainder(65536);
  return (whole.to(at::kFloat) / 65536 * (high - low) + low).reshape(shape);
}

inline std::filesystem::path golden_folder() {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  return folder;
}

inline TensorMap torchvision_golden() {
  return read_tensors(golden_folder() / "resnet/resnet.safetensors");
}

}  // namespace dtrain::train::test
