#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <string>

#include "trainer/checkpoint/safetensors.hpp"

// Between LibTorch's tensors and files.
namespace dtrain::train {

using TensorMap = std::map<std::string, at::Tensor>;

// Writes them as one safetensors file; the caller finishes the sink. Tensors on a device are
// copied to the CPU first. Throws Error on a type that the format does not know.
void write_tensors(FileSink& sink, const TensorMap& tensors,
                   const std::map<std::string, std::string>& metadata = {});

// The format's type for ATen's. Throws Error with the tensor's name on one that it does not know.
DType to_dtype(const std::string& name, at::ScalarType type);

// All tensors of a file, on the CPU, each in memory of its own.
TensorMap read_tensors(const std::filesystem::path& path);
// The same as views of the mapped file, which lives as long as one of them: to read once from,
// never to write to.
TensorMap map_tensors(const std::filesystem::path& path);
at::Tensor to_tensor(const SafetensorsFile& file, const TensorEntry& entry);

// A module's parameters and buffers by the names that Python's state_dict() gives them. The
// tensors are the module's own.
TensorMap state_dict(const torch::nn::Module& module);

// Copies into the module's own tensors, strictly: throws Error that names every tensor that is
// missing, not known to the module, or of another shape or type, and then changes nothing.
void load_state_dict(torch::nn::Module& module, const TensorMap& tensors);
// The same for any tensors: `into` and `tensors` have the same names. `what` is for messages.
void load_tensors(const std::string& what, const TensorMap& into, const TensorMap& tensors);

}  // namespace dtrain::train
