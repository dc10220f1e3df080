#include "trainer/train/training_state.hpp"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/core/base64.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr std::size_t kLargestState = std::size_t{256} << 20;

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

json read_state_json(const std::filesystem::path& path) {
  json state = json::parse(read_text(path, kLargestState), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || state.value("format", json()) != "dtrain-training-state") {
    throw Error(path.string() + ": not the state of a training");
  }
  if (state.value("version", json()) != 1) {
    throw Error(path.string() + ": of a version that is not known here");
  }
  return state;
}

}  // namespace

at::Tensor generator_state(c10::Device device) {
  std::vector<at::Tensor> parts{generator_of(c10::kCPU).get_state()};
  if (!device.is_cpu()) parts.push_back(generator_of(device).get_state());
  return at::cat(parts);
}

void set_generator_state(const at::Tensor& state, c10::Device device) {
  at::Generator cpu = generator_of(c10::kCPU);
  const std::int64_t size = cpu.get_state().numel();
  if (state.numel() < size) throw Error("the state of the random generator is too short");
  cpu.set_state(state.narrow(0, 0, size).clone());
  if (device.is_cpu() || state.numel() == size) return;  // saved without a GPU
  generator_of(device).set_state(state.narrow(0, size, state.numel() - size).clone());
}

void write_training_state(ShardWriter& shard, const torch::nn::Module& model,
                          const Optimizer& optimizer, const Place& place,
                          const std::vector<at::Tensor>& generators) {
  FileSink model_file = shard.create(kModel);
  write_tensors(model_file, state_dict(model));
  shard.close(model_file);
  FileSink optimizer_file = shard.create(kOptimizer);
  write_tensors(optimizer_file, optimizer.state());
  shard.close(optimizer_file);

  json states = json::array();
  for (const at::Tensor& state : generators) {
    const at::Tensor flat = state.contiguous();
    states.push_back(
        to_base64({static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()}));
  }
  const json document = {
      {"format", "dtrain-training-state"},
      {"version", 1},
      {"step", place.step},
      {"epoch", place.epoch},
      {"position", place.position},
      {"optimizer", {{"kind", optimizer.kind()}, {"numbers", optimizer.numbers()}}},
      {"generators", states}};
  FileSink state_file = shard.create(kState);
  state_file.write(document.dump(1) + "\n");
  shard.close(state_file);
}

RestoredState read_training_state(const std::filesystem::path& shard_folder,
                                  torch::nn::Module& model, Optimizer& optimizer) {
  const std::filesystem::path path = shard_folder / kState;
  const json document = read_state_json(path);
  RestoredState restored;
  double lr = 0;
  std::string kind;
  try {
    restored.place.step = document.at("step").get<std::int64_t>();
    restored.place.epoch = document.at("epoch").get<std::int64_t>();
    restored.place.position = document.at("position").get<std::int64_t>();
    kind = document.at("optimizer").at("kind").get<std::string>();
    lr = document.at("optimizer").at("numbers").at("lr").get<double>();
    for (const json& text : document.at("generators")) {
      const std::vector<std::byte> bytes = from_base64(text.get<std::string>());
      at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
      std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
      restored.generators.push_back(std::move(state));
    }
  } catch (const json::exception& error) {
    throw Error(path.string() + ": " + error.what());
  }
  if (kind != optimizer.kind()) {
    throw Error(path.string() + ": the optimizer was " + kind + ", this one is " +
                optimizer.kind());
  }
  try {
    load_state_dict(model, read_tensors(shard_folder / kModel));
    optimizer.load_state(read_tensors(shard_folder / kOptimizer));
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + ", while loading " + shard_folder.string());
  }
  optimizer.set_lr(lr);
  return restored;
}

}  // namespace dtrain::train
