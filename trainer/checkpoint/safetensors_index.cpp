#include "trainer/checkpoint/safetensors_index.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLargestIndex = 100'000'000;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

// Refuses a name that stands twice, of which the parser would keep the last.
nlohmann::json parse(const std::string& text) {
  std::vector<std::set<std::string>> open;
  return nlohmann::json::parse(
      text, [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
        if (event == nlohmann::json::parse_event_t::object_start) open.emplace_back();
        if (event == nlohmann::json::parse_event_t::object_end) open.pop_back();
        if (event == nlohmann::json::parse_event_t::key &&
            !open.back().insert(value.get<std::string>()).second) {
          throw Error("'" + value.get<std::string>() + "' stands there twice");
        }
        return true;
      });
}

std::string shard_name(std::size_t number, std::size_t of) {
  const auto digits = [](std::size_t value) {
    const std::string text = std::to_string(value);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return "model-" + digits(number) + "-of-" + digits(of) + ".safetensors";
}

void write_file(const fs::path& path, std::vector<TensorSource> tensors,
                const std::map<std::string, std::string>& metadata) {
  FileSink sink(path);
  write_safetensors(sink, std::move(tensors), metadata);
  sink.finish();
}

}  // namespace

WeightMap read_weight_map(const fs::path& index) {
  const auto refuse = [&](const std::string& why) -> Error {
    return Error(index.string() + ": not a valid index of safetensors files: " + why);
  };
  WeightMap map;
  try {
    const nlohmann::json json = parse(read_text(index, kLargestIndex));
    const auto found = json.is_object() ? json.find("weight_map") : json.end();
    if (!json.is_object() || found == json.end() || !found->is_object() || found->empty()) {
      throw Error("it has no weight_map with names and files");
    }
    for (const auto& [name, file] : found->items()) {
      if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
        throw Error("tensor '" + name + "' is in " + file.dump() +
                    ", which is not the name of a file beside it");
      }
      map.emplace(name, file.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw refuse(error.what());
  } catch (const Error& error) {
    throw refuse(error.what());
  }
  return map;
}

std::vector<std::shared_ptr<const SafetensorsFile>> open_weights(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {kWeightsIndex, kWeightsFile}) {
      if (fs::exists(path / name, ignored)) return open_weights(path / name);
    }
    throw Error(path.string() + ": holds no weights, neither " + kWeightsIndex + " nor " +
                kWeightsFile);
  }
  if (path.extension() != ".json") return {std::make_shared<const SafetensorsFile>(path)};

  const WeightMap map = read_weight_map(path);
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, file] : map) {
    auto& opened = files[file];
    if (!opened) opened = std::make_shared<const SafetensorsFile>(path.parent_path() / file);
    if (opened->find(name) == nullptr) {
      throw Error(path.string() + ": tensor '" + name + "' is not in " + file +
                  ", where it is said to be");
    }
  }
  std::vector<std::shared_ptr<const SafetensorsFile>> all;
  for (const auto& [file, opened] : files) {
    for (const TensorEntry& entry : opened->tensors()) {
      const auto found = map.find(entry.name);
      if (found == map.end() || found->second != file) {
        throw Error(path.string() + ": " + file + " holds tensor '" + entry.name + "', which is " +
                    (found == map.end() ? "not in the index" : "said to be in " + found->second));
      }
    }
    all.push_back(opened);
  }
  return all;
}

void write_weights(const fs::path& folder, std::vector<TensorSource> tensors,
                   const std::map<std::string, std::string>& metadata,
                   std::uint64_t max_shard_size) {
  std::vector<std::vector<TensorSource>> shards(1);
  std::set<std::string> names;
  std::uint64_t size = 0;
  std::uint64_t total = 0;
  for (TensorSource& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error("cannot write weights to " + folder.string() + ": tensor '" + tensor.name +
                  "' is given twice");
    }
    if (!shards.back().empty() && size + tensor.bytes.size() > max_shard_size) {
      shards.emplace_back();
      size = 0;
    }
    size += tensor.bytes.size();
    total += tensor.bytes.size();
    shards.back().push_back(std::move(tensor));
  }
  fs::create_directories(folder);
  for (const char* name : {kWeightsIndex, kWeightsFile}) {
    if (fs::exists(folder / name)) {
      throw Error("cannot write weights to " + folder.string() + ": it holds " + name +
                  " already; choose another folder, or remove it");
    }
  }
  if (shards.size() == 1) {
    write_file(folder / kWeightsFile, std::move(shards[0]), metadata);
    return sync_folder(folder);
  }
  WeightMap map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i + 1, shards.size());
    for (const TensorSource& tensor : shards[i]) map.emplace(tensor.name, name);
    write_file(folder / name, std::move(shards[i]), metadata);
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_atomically(folder / kWeightsIndex, index.dump(2) + "\n");
}

}  // namespace dtrain::train
