#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/safetensors_index.hpp"
#include "trainer/train/tensors.hpp"

// Weights of others, and for others: in one file or several, under other names, in part.
namespace dtrain::train {

// All tensors of a safetensors file, of an index of several, or of a folder with either, on the
// CPU; safetensors_index.hpp says what is checked.
TensorMap read_weights(const std::filesystem::path& path);

// Writes them as Hugging Face's save_pretrained does: model.safetensors, or several files of at
// most max_shard_size bytes of tensors each, with an index. Throws Error on what the format does
// not know, and where the folder holds weights already.
void write_weights(const std::filesystem::path& folder, const TensorMap& tensors,
                   std::uint64_t max_shard_size = kMaxShardSize);

// From a tensor's name in a file to the module's. An empty one leaves the tensor out.
using NameMap = std::function<std::string(const std::string& name)>;
// Regular expressions (ECMAScript's) and what their matches become, one after the other, each over
// the whole name: {{"^module\\.", ""}, {"\\.gamma$", ".weight"}}. Throws Error on one that is none.
NameMap rename_keys(const std::vector<std::pair<std::string, std::string>>& patterns);

struct LoadOptions {
  bool strict = true;  // what is missing or unexpected is an Error
  NameMap names;       // of the tensors; none: as they are
  bool cast = false;   // values of other types are converted, else they are an Error
  bool ignore_mismatched_sizes =
      false;  // leaves out tensors of other shapes, else they are an Error
};

// What was not loaded. Names are the module's, those of `unexpected_keys` after `names`.
struct LoadReport {
  std::vector<std::string> missing_keys;     // in the module alone, which keeps its values
  std::vector<std::string> unexpected_keys;  // in the file alone
  std::vector<std::string> mismatched_keys;  // "fc.weight: Float[10, 512], the model has …"

  bool empty() const {
    return missing_keys.empty() && unexpected_keys.empty() && mismatched_keys.empty();
  }
  std::string text() const;  // one line
};

// Copies into the module's own tensors, as Python's load_state_dict(strict=...). A parameter that
// two of the module's names share needs only one of them; if both come, with different values, that
// is an Error, as are two tensors that get the same name. On an Error nothing is changed.
LoadReport load_state_dict(torch::nn::Module& module, const TensorMap& tensors,
                           const LoadOptions& options);

}  // namespace dtrain::train
