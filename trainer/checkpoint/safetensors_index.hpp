#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/safetensors.hpp"

// Weights in several safetensors files, in Hugging Face's form: beside the files lies
// model.safetensors.index.json, {"metadata": {"total_size": BYTES}, "weight_map": {NAME: FILE}}.
namespace dtrain::train {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

// The file that each tensor is in, by its name.
using WeightMap = std::map<std::string, std::string>;

// Reads and checks an index: names of files stand for files beside it and nowhere else, a tensor
// stands there once. total_size is not looked at: those of others are often wrong. Throws Error.
WeightMap read_weight_map(const std::filesystem::path& index);

// Opens all files of some weights: a safetensors file, an index, or a folder with either by their
// usual names (an index before a file). Each file is checked as SafetensorsFile does it, and that
// it holds the tensors that the index says, and no others. Throws Error.
std::vector<std::shared_ptr<const SafetensorsFile>> open_weights(const std::filesystem::path& path);

// Writes model.safetensors, or, where that would have more than `max_shard_size` bytes of tensors,
// model-00001-of-0000N.safetensors and so on with their index: tensors in the order given, a new
// file where the next one does not fit; one that is larger has a file of its own. The folder is
// made. Throws Error when it holds weights already, or on what write_safetensors refuses.
inline constexpr std::uint64_t kMaxShardSize = 5'000'000'000;  // Hugging Face's "5GB"
void write_weights(const std::filesystem::path& folder, std::vector<TensorSource> tensors,
                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                   std::uint64_t max_shard_size = kMaxShardSize);

}  // namespace dtrain::train
