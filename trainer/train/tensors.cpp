#include "trainer/train/tensors.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/train/tensor_sources.hpp"

namespace dtrain::train {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 15> kTypes{{
    {DType::boolean, at::kBool},
    {DType::u8, at::kByte},
    {DType::i8, at::kChar},
    {DType::f8_e4m3, at::kFloat8_e4m3fn},
    {DType::f8_e5m2, at::kFloat8_e5m2},
    {DType::i16, at::kShort},
    {DType::u16, at::kUInt16},
    {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16},
    {DType::i32, at::kInt},
    {DType::u32, at::kUInt32},
    {DType::f32, at::kFloat},
    {DType::i64, at::kLong},
    {DType::u64, at::kUInt64},
    {DType::f64, at::kDouble},
}};

}  // namespace

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

DType to_dtype(const std::string& name, at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw Error("tensor '" + name + "': safetensors does not know the type " + c10::toString(type));
}

std::vector<TensorSource> to_sources(const TensorMap& tensors, std::vector<at::Tensor>& held) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    held.push_back(tensor.detach().to(at::kCPU).contiguous());
    const at::Tensor& flat = held.back();
    sources.push_back({name,
                       to_dtype(name, flat.scalar_type()),
                       flat.sizes().vec(),
                       {static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()}});
  }
  return sources;
}

void write_tensors(FileSink& sink, const TensorMap& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> held;  // what had to be copied stays alive until it is written
  write_safetensors(sink, to_sources(tensors, held), metadata);
}

at::Tensor to_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours != entry.dtype) continue;
    at::Tensor tensor = at::empty(entry.shape, theirs);
    const std::span<const std::byte> bytes = file.bytes(entry);
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  throw Error(file.path().string() + ": tensor '" + entry.name + "' has a type that is not known");
}

TensorMap read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  TensorMap tensors;
  for (const TensorEntry& entry : file.tensors()) {
    tensors.emplace(entry.name, to_tensor(file, entry));
  }
  return tensors;
}

TensorMap map_tensors(const std::filesystem::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  TensorMap tensors;
  for (const TensorEntry& entry : file->tensors()) {
    const std::span<const std::byte> bytes = file->bytes(entry);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    if (bytes.empty() || address % size_of(entry.dtype) != 0) {
      tensors.emplace(entry.name, to_tensor(*file, entry));
      continue;
    }
    for (const auto& [ours, theirs] : kTypes) {
      if (ours != entry.dtype) continue;
      // ATen has no tensors of constant memory; the mapping itself is read-only.
      tensors.emplace(entry.name, at::from_blob(
                                      const_cast<std::byte*>(bytes.data()), entry.shape,
                                      [file](void*) {}, theirs));
    }
  }
  return tensors;
}

TensorMap state_dict(const torch::nn::Module& module) {
  TensorMap tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value());
  return tensors;
}

void load_state_dict(torch::nn::Module& module, const TensorMap& tensors) {
  load_tensors("model", state_dict(module), tensors);
}

void load_tensors(const std::string& what, const TensorMap& mine, const TensorMap& tensors) {
  const c10::NoGradGuard no_grad;
  std::string problems;
  const auto problem = [&](const std::string& text) {
    problems += (problems.empty() ? "" : "; ") + text;
  };
  for (const auto& [name, tensor] : mine) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      problem("'" + name + "' is missing");
    } else if (found->second.sizes() != tensor.sizes() ||
               found->second.scalar_type() != tensor.scalar_type()) {
      problem("'" + name + "' is " + describe(found->second) + ", the " + what + " has " +
              describe(tensor));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!mine.contains(name)) problem("'" + name + "' is not in the " + what);
  }
  if (!problems.empty()) throw Error("the weights do not fit the " + what + ": " + problems);
  for (const auto& [name, tensor] : mine) tensor.copy_(tensors.at(name));
}

}  // namespace dtrain::train
