#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "trainer/train/tensors.hpp"

namespace dtrain::train {

// Writes tensors as a file that Python reads with torch.load(path, weights_only=True): a dictionary
// of the names, or, of several groups, a dictionary of such dictionaries, beside which `extra` (an
// object of numbers, texts, lists and objects) has its entries. Tensors are copied to the CPU
// first. The file is replaced as a whole. Throws Error.
void export_for_torch(const std::filesystem::path& path, const TensorMap& tensors);
void export_for_torch(const std::filesystem::path& path,
                      const std::map<std::string, TensorMap>& groups, const nlohmann::json& extra);

// The same tensors as one safetensors file, for safetensors.torch.load_file().
void export_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

}  // namespace dtrain::train
