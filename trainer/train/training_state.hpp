#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/checkpoint/store.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/snapshot.hpp"

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

// What a training remembers beside model and optimizer: a scheduler, a scaler, how an iterable data
// set stands. `alike`: the same on every rank, and kept once; else each rank's own, which is there
// again only for the same number of ranks. Both functions are called on every rank, and may be
// collective. `begin`, if there is one, is called in place of `load` where a checkpoint has no such
// state, once model and optimizer are loaded: what a schedule says of the rate is not theirs.
struct Kept {
  std::function<nlohmann::json()> save;
  std::function<void(const nlohmann::json&)> load;
  bool alike = true;
  std::function<void()> begin = nullptr;
  // In place of `load` where another number of ranks has written the checkpoint, if there is one.
  std::function<void(const nlohmann::json&, const Warn&)> load_of_other_ranks = nullptr;
};
using KeptStates = std::map<std::string, Kept>;

// Tensors beside model and optimizer: they are copied from at a checkpoint, and into at a resume.
// `alike`: the same on every rank (averaged weights); else each rank's own (its batch norms'
// statistics), which come back only for the same number of ranks. `begin` as for Kept.
struct KeptTensorMap {
  std::function<TensorMap()> tensors;
  bool alike = true;
  std::function<void()> begin = nullptr;
};
using KeptTensors = std::map<std::string, KeptTensorMap>;

// All that a checkpoint holds, by reference.
struct Training {
  torch::nn::Module& model;
  Optimizer& optimizer;
  const KeptStates& states;
  const KeptTensors& tensors;
};

// The tensors that this rank writes. docs/checkpoint_format.md has the files' names.
TensorFiles tensors_to_write(const Training& training, const Context& context);

// The two documents: what all ranks have in common (state.json, by rank 0), and this rank's own
// (rank.json). Every rank calls both: what is kept may be collective.
nlohmann::json common_state(const Training& training, const Place& place,
                            const nlohmann::json& hyperparameters);
nlohmann::json rank_state(const Training& training, const Context& context);

// Loads everything from a committed checkpoint: model, optimizer (with its learning rate), what is
// kept, and this rank's generators. With another number of ranks than it was written with, each
// rank's generators begin anew, from the seed, the rank and the step. Told to `warn`: what is kept
// on one side only, and what can change bits (LibTorch's version, the processor, the threads).
// Throws Error that names the file and what does not fit.
Place load_training(const Checkpoint& checkpoint, const Training& training, const Context& context,
                    const Warn& warn);

}  // namespace dtrain::train
