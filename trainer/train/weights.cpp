#include "trainer/train/weights.hpp"

#include <c10/core/GradMode.h>

#include <memory>
#include <regex>

#include "trainer/core/error.hpp"
#include "trainer/train/tensor_sources.hpp"

namespace dtrain::train {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Whether the two are the same memory, seen in the same way.
bool is_shared(const at::Tensor& one, const at::Tensor& other) {
  return one.is_alias_of(other) && one.const_data_ptr() == other.const_data_ptr() &&
         one.sizes() == other.sizes() && one.strides() == other.strides();
}

}  // namespace

TensorMap read_weights(const std::filesystem::path& path) {
  TensorMap tensors;
  for (const auto& file : open_weights(path)) {
    for (const TensorEntry& entry : file->tensors()) {
      tensors.emplace(entry.name, to_tensor(*file, entry));
    }
  }
  return tensors;
}

void write_weights(const std::filesystem::path& folder, const TensorMap& tensors,
                   std::uint64_t max_shard_size) {
  std::vector<at::Tensor> held;  // what had to be copied stays alive until it is written
  write_weights(folder, to_sources(tensors, held), {{"format", "pt"}}, max_shard_size);
}

NameMap rename_keys(const std::vector<std::pair<std::string, std::string>>& patterns) {
  std::vector<std::pair<std::regex, std::string>> compiled;
  for (const auto& [pattern, replacement] : patterns) {
    try {
      compiled.emplace_back(std::regex(pattern), replacement);
    } catch (const std::regex_error& error) {
      throw Error("rename_keys: '" + pattern + "' is not a regular expression: " + error.what());
    }
  }
  return [compiled = std::move(compiled)](const std::string& name) {
    std::string result = name;
    for (const auto& [pattern, replacement] : compiled) {
      result = std::regex_replace(result, pattern, replacement);
    }
    return result;
  };
}

std::string LoadReport::text() const {
  std::vector<std::string> parts;
  if (!missing_keys.empty()) parts.push_back("missing: " + joined(missing_keys));
  if (!unexpected_keys.empty()) parts.push_back("unexpected: " + joined(unexpected_keys));
  if (!mismatched_keys.empty())
    parts.push_back("of another shape or type: " + joined(mismatched_keys));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text.empty() ? "all weights are loaded" : text;
}

LoadReport load_state_dict(torch::nn::Module& module, const TensorMap& tensors,
                           const LoadOptions& options) {
  const c10::NoGradGuard no_grad;
  TensorMap given;
  for (const auto& [name, tensor] : tensors) {
    const std::string renamed = options.names ? options.names(name) : name;
    if (!renamed.empty() && !given.emplace(renamed, tensor).second) {
      throw Error("load_state_dict: two tensors, one of them '" + name + "', get the name '" +
                  renamed + "'");
    }
  }
  LoadReport report;
  std::vector<std::string> wrong;  // whatever the options
  TensorMap loaded;                // of the module, by name
  std::vector<std::pair<std::string, at::Tensor>> missing;
  for (const auto& [name, tensor] : state_dict(module)) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.emplace_back(name, tensor);
      continue;
    }
    const bool shape = found->second.sizes() == tensor.sizes();
    if (shape && (options.cast || found->second.scalar_type() == tensor.scalar_type())) {
      loaded.emplace(name, tensor);
    } else {
      report.mismatched_keys.push_back(name + ": " + describe(found->second) + ", the model has " +
                                       describe(tensor));
      if (shape || !options.ignore_mismatched_sizes) wrong.push_back(report.mismatched_keys.back());
    }
  }
  // Names by their memory: those of one parameter lie side by side.
  std::multimap<const void*, std::string> by_memory;
  for (const auto& [name, tensor] : loaded) by_memory.emplace(tensor.const_data_ptr(), name);
  const auto sharing = [&](const at::Tensor& tensor) -> std::string {
    const auto [begin, end] = by_memory.equal_range(tensor.const_data_ptr());
    for (auto at = begin; at != end; ++at) {
      if (is_shared(loaded.at(at->second), tensor)) return at->second;
    }
    return {};
  };
  for (const auto& [name, tensor] : loaded) {
    const std::string first = tensor.numel() == 0 ? name : sharing(tensor);
    if (first != name && !given.at(first).equal(given.at(name))) {
      throw Error("load_state_dict: '" + first + "' and '" + name +
                  "' are one parameter of the model, and have different values");
    }
  }
  for (const auto& [name, tensor] : missing) {
    if (tensor.numel() == 0 || sharing(tensor).empty()) report.missing_keys.push_back(name);
  }
  const TensorMap mine = state_dict(module);
  for (const auto& [name, tensor] : given) {
    if (!mine.contains(name)) report.unexpected_keys.push_back(name);
  }
  const bool incomplete = !report.missing_keys.empty() || !report.unexpected_keys.empty();
  if (!wrong.empty() || (options.strict && incomplete)) {
    throw Error("the weights do not fit the model: " + report.text());
  }
  for (auto& [name, tensor] : loaded) tensor.copy_(given.at(name));
  return report;
}

}  // namespace dtrain::train
