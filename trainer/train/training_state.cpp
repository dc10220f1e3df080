#include "trainer/train/training_state.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/version.h>

#include <cstring>

#include "trainer/core/base64.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/mix.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kRank = "rank.json";
constexpr std::size_t kLargestState = std::size_t{256} << 20;

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

json read_state(const fs::path& path, const char* format) {
  json state = json::parse(read_text(path, kLargestState), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || state.value("format", json()) != format) {
    throw Error(path.string() + ": not the state of a training");
  }
  if (state.value("version", json()) != 1) {
    throw Error(path.string() + ": of a version that is not known here");
  }
  return state;
}

// What decides about the last bits of a result.
json made_by() {
  return {{"libtorch", TORCH_VERSION},
          {"cpu", at::get_cpu_capability()},
          {"threads", at::get_num_threads()}};
}

json states_of(const KeptStates& states, bool alike) {
  json result = json::object();
  for (const auto& [name, kept] : states) {
    if (kept.alike == alike) result[name] = kept.save();
  }
  return result;
}

void load_states(const json& saved, const KeptStates& states, bool alike, bool of_other_ranks,
                 const Warn& warn) {
  for (const auto& [name, kept] : states) {
    if (kept.alike != alike) continue;
    if (saved.contains(name)) {
      if (of_other_ranks && kept.load_of_other_ranks) {
        kept.load_of_other_ranks(saved.at(name), warn);
      } else {
        kept.load(saved.at(name));
      }
    } else {
      warn("the checkpoint has no state '" + name + "': it begins anew");
      if (kept.begin) kept.begin();
    }
  }
  for (const auto& [name, value] : saved.items()) {
    if (!states.contains(name)) warn("nobody takes the checkpoint's state '" + name + "'");
  }
}

// A file of which each shard holds a part.
TensorMap map_parts(const Checkpoint& checkpoint, const std::string& name) {
  TensorMap all;
  const int shards = checkpoint.manifest.shards;
  for (int shard = 0; shard < shards; ++shard) {
    const fs::path path = checkpoint.folder / shard_name(shard, shards) / name;
    if (!fs::exists(path)) continue;
    TensorMap part = map_tensors(path);
    all.merge(part);
    if (!part.empty()) {
      throw Error(path.string() + ": has '" + part.begin()->first +
                  "', which another shard has too");
    }
  }
  return all;
}

bool has_as_many_ranks(const Manifest& manifest, const Context& context) {
  return manifest.world_size == context.world_size() && manifest.shards == manifest.world_size;
}

void load_kept_tensors(const Checkpoint& checkpoint, const KeptTensors& all, const Context& context,
                       const Warn& warn) {
  const Manifest& manifest = checkpoint.manifest;
  for (const auto& [name, kept] : all) {
    const std::string file = name + ".safetensors";
    TensorMap saved;
    if (kept.alike) {
      saved = map_parts(checkpoint, file);
    } else if (has_as_many_ranks(manifest, context)) {
      const fs::path path = checkpoint.folder / shard_name(context.rank(), manifest.shards) / file;
      if (fs::exists(path)) saved = map_tensors(path);
    } else {
      continue;
    }
    const TensorMap mine = kept.tensors();
    if (saved.empty() && !mine.empty()) {
      warn("the checkpoint has no tensors '" + name + "': they begin anew");
      if (kept.begin) kept.begin();
    } else {
      load_tensors(name, mine, saved);
    }
  }
}

void warn_of_differences(const json& then, const Warn& warn) {
  const json now = made_by();
  for (const auto& [what, value] : now.items()) {
    if (then.contains(what) && then.at(what) != value) {
      warn("the checkpoint was made with " + what + " " + then.at(what).dump() + ", this is " +
           value.dump() + ": results may differ in their last bits");
    }
  }
}

void restore_generators(const Checkpoint& checkpoint, const json& common, const Training& training,
                        const Context& context, const Place& place, const Warn& warn) {
  const Manifest& manifest = checkpoint.manifest;
  const int rank = context.rank();
  if (!has_as_many_ranks(manifest, context)) {
    const std::uint64_t seed =
        mix(mix(common.at("seed").get<std::uint64_t>(), static_cast<std::uint64_t>(rank)),
            static_cast<std::uint64_t>(place.step));
    generator_of(c10::kCPU).set_current_seed(seed);
    if (!context.device().is_cpu()) generator_of(context.device()).set_current_seed(seed);
    return;
  }
  const fs::path path = checkpoint.folder / shard_name(rank, manifest.shards) / kRank;
  const json own = read_state(path, "dtrain-rank-state");
  const std::vector<std::byte> bytes = from_base64(own.at("generator").get<std::string>());
  at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  set_generator_state(state, context.device());
  load_states(own.at("kept"), training.states, false, /*of_other_ranks=*/false, warn);
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

TensorFiles tensors_to_write(const Training& training, const Context& context) {
  TensorFiles alike;
  alike[kModel] = state_dict(training.model);
  const bool sharded = training.optimizer.state_is_sharded();
  if (!sharded) alike[kOptimizer] = training.optimizer.state();
  TensorFiles own;
  for (const auto& [name, kept] : training.tensors) {
    (kept.alike ? alike : own)[name + ".safetensors"] = kept.tensors();
  }
  TensorFiles share = share_of_rank(alike, kModel, context.rank(), context.world_size());
  if (sharded) share[kOptimizer] = training.optimizer.state();
  share.merge(own);
  return share;
}

json common_state(const Training& training, const Place& place, const json& hyperparameters) {
  return {{"format", "dtrain-training-state"},
          {"version", 1},
          {"step", place.step},
          {"epoch", place.epoch},
          {"position", place.position},
          {"optimizer",
           {{"kind", training.optimizer.kind()}, {"numbers", training.optimizer.numbers()}}},
          {"kept", states_of(training.states, true)},
          {"seed", generator_of(c10::kCPU).current_seed()},
          {"hyperparameters", hyperparameters},
          {"made_by", made_by()}};
}

json rank_state(const Training& training, const Context& context) {
  const at::Tensor state = generator_state(context.device()).contiguous();
  return {{"format", "dtrain-rank-state"},
          {"version", 1},
          {"rank", context.rank()},
          {"generator",
           to_base64({static_cast<const std::byte*>(state.const_data_ptr()), state.nbytes()})},
          {"kept", states_of(training.states, false)}};
}

Place load_training(const Checkpoint& checkpoint, const Training& training, const Context& context,
                    const Warn& warn) {
  const fs::path first = checkpoint.folder / shard_name(0, checkpoint.manifest.shards);
  const fs::path path = first / kState;
  const json common = read_state(path, "dtrain-training-state");
  Place place;
  try {
    place.step = common.at("step").get<std::int64_t>();
    place.epoch = common.at("epoch").get<std::int64_t>();
    place.position = common.at("position").get<std::int64_t>();
    const auto kind = common.at("optimizer").at("kind").get<std::string>();
    const auto numbers = common.at("optimizer").at("numbers").get<std::map<std::string, double>>();
    if (kind != training.optimizer.kind()) {
      throw Error("the optimizer was " + kind + ", this one is " + training.optimizer.kind());
    }
    load_state_dict(training.model, map_tensors(first / kModel));
    training.optimizer.load_state(map_parts(checkpoint, kOptimizer));
    training.optimizer.load_numbers(numbers);
    load_kept_tensors(checkpoint, training.tensors, context, warn);
    load_states(common.at("kept"), training.states, true,
                checkpoint.manifest.world_size != context.world_size(), warn);
    restore_generators(checkpoint, common, training, context, place, warn);
    warn_of_differences(common.at("made_by"), warn);
  } catch (const json::exception& error) {
    throw Error(path.string() + ": " + error.what());
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + ", while loading " + checkpoint.folder.string());
  }
  return place;
}

}  // namespace dtrain::train
