#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "trainer/checkpoint/store.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Where a training stands, the same on every rank.
struct Place {
  std::int64_t step = 0;      // optimizer steps done
  std::int64_t epoch = 0;     // the epoch it is in, from 0
  std::int64_t position = 0;  // of the sampler in that epoch: samples dealt to all ranks together
};

// The state of this rank's random generators: the CPU's, and the GPU's behind it if there is one.
at::Tensor generator_state(c10::Device device);
void set_generator_state(const at::Tensor& state, c10::Device device);

// Writes model.safetensors, optimizer.safetensors and state.json into a shard. `generators` holds
// generator_state() of every rank.
void write_training_state(ShardWriter& shard, const torch::nn::Module& model,
                          const Optimizer& optimizer, const Place& place,
                          const std::vector<at::Tensor>& generators);

struct RestoredState {
  Place place;
  std::vector<at::Tensor> generators;  // by the rank that had it
};

// Loads model and optimizer (with its learning rate) from a shard's folder. Throws Error that
// names the file and what does not fit.
RestoredState read_training_state(const std::filesystem::path& shard_folder,
                                  torch::nn::Module& model, Optimizer& optimizer);

}  // namespace dtrain::train
