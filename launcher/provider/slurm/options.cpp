#include "launcher/provider/slurm/options.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::slurm {
namespace {

using nlohmann::json;

// What is dtrain's to say: how many nodes, what runs on them, and how it is found again.
constexpr std::string_view kOurs[] = {"array",
                                      "batch",
                                      "cluster",
                                      "cluster-constraint",
                                      "clusters",
                                      "chdir",
                                      "comment",
                                      "error",
                                      "help",
                                      "hold",
                                      "input",
                                      "job-name",
                                      "kill-on-bad-exit",
                                      "no-kill",
                                      "no-requeue",
                                      "nodefile",
                                      "nodes",
                                      "ntasks",
                                      "ntasks-per-node",
                                      "open-mode",
                                      "output",
                                      "overcommit",
                                      "ntasks-per-core",
                                      "ntasks-per-gpu",
                                      "ntasks-per-socket",
                                      "parsable",
                                      "quiet",
                                      "requeue",
                                      "signal",
                                      "test-only",
                                      "wait",
                                      "wrap"};

// "90", "90:00", "1:30:00", "2-12", "2-12:30", "2-12:30:00": minutes, or days and hours first.
std::optional<std::chrono::seconds> time_limit(const std::string& text) {
  const std::size_t dash = text.find('-');
  const std::vector<std::string> parts =
      split(dash == std::string::npos ? text : text.substr(dash + 1), ':');
  std::vector<std::int64_t> numbers;
  for (const std::string& part : parts) {
    const auto number = number_from<std::int64_t>(part);
    if (!number || *number < 0 || *number > 1'000'000) return std::nullopt;
    numbers.push_back(*number);
  }
  if (numbers.size() > 3) return std::nullopt;
  if (dash != std::string::npos) {
    const auto days = number_from<std::int64_t>(text.substr(0, dash));
    if (!days || *days < 0 || *days > 1'000'000) return std::nullopt;
    numbers.resize(3);
    return std::chrono::hours(*days * 24 + numbers[0]) + std::chrono::minutes(numbers[1]) +
           std::chrono::seconds(numbers[2]);
  }
  if (numbers.size() == 3) {
    return std::chrono::hours(numbers[0]) + std::chrono::minutes(numbers[1]) +
           std::chrono::seconds(numbers[2]);
  }
  numbers.resize(2);
  return std::chrono::minutes(numbers[0]) + std::chrono::seconds(numbers[1]);
}

Error wrong(const std::string& type, const std::string& option, const std::string& why) {
  return Error(ErrorCode::invalid, "available_node_types." + type + ".node_config." +
                                       printable(option, false) + " " + why);
}

// Before the end; Slurm says it up to a minute late, and would say it at once to what is shorter.
constexpr std::chrono::seconds kWarning{120};

bool is_option(std::string_view name) {
  return name.size() > 1 && name.front() != '-' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

constexpr const char* kQuotes = "put quotes around it";

// As sbatch takes it; absent: the option has none.
std::optional<std::string> value_of(const std::string& type, const std::string& option,
                                    const json& value) {
  if (value.is_boolean()) return std::nullopt;
  std::string text;
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const json& each : value) {
      const auto part = value_of(type, option, each);
      if (!part) throw wrong(type, option, "has true or false in its list").with_hint(kQuotes);
      parts.push_back(*part);
    }
    text = join(parts, ",");
  } else if (value.is_string()) {
    text = value.get<std::string>();
  } else if (value.is_number_integer()) {
    text = value.dump();
  } else if (value.is_number()) {  // it is not known any more how it was written
    throw wrong(type, option, "must be a text or a whole number").with_hint(kQuotes);
  } else {
    throw wrong(type, option, "is no text, number, list or true");
  }
  if (text.empty() || text.find('\0') != std::string::npos ||
      text.find('\n') != std::string::npos) {
    throw wrong(type, option, "has a value that sbatch does not take");
  }
  return text;
}

const NodeType& type_of(const ClusterSpec& spec, const std::string& type) {
  const auto found = std::find_if(spec.node_types.begin(), spec.node_types.end(),
                                  [&](const NodeType& each) { return each.name == type; });
  if (found != spec.node_types.end()) return *found;
  throw Error(ErrorCode::not_found, "no node type is called " + printable(type, false));
}

bool says(const NodeType& type, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return type.node_config.contains(name) && type.node_config[name] != json(false);
  });
}

// What node_config has a word about; `resources` is not looked at for that.
struct Said {
  explicit Said(const NodeType& type)
      : cpus(says(type, {"cpus-per-task", "mincpus", "cores-per-socket", "cpus-per-gpu"})),
        memory(says(type, {"mem", "mem-per-cpu", "mem-per-gpu"})),
        gpus(says(type, {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})) {
    // `user` and `mcs` only keep others away.
    const json exclusive = type.node_config.value("exclusive", json(false));
    cpus = cpus || exclusive == json(true) || exclusive == json("exclusive");
  }
  bool cpus;
  bool memory;
  bool gpus;
};

double resource(const NodeType& type, const char* name) {
  const auto entry = type.resources.find(name);
  return entry == type.resources.end() ? 0.0 : entry->second;
}

std::int64_t whole(double value) {
  return std::llround(std::ceil(value));
}

}  // namespace

std::vector<std::string> batch_options(const ClusterSpec& spec, const std::string& type) {
  const NodeType& found = type_of(spec, type);
  const Said said(found);
  std::vector<std::string> options;
  for (const char* name : {"partition", "account", "qos"}) {
    const json& value = spec.provider.other.contains(name) ? spec.provider.other[name] : json();
    if (value.is_string() && !says(found, {name})) {
      options.push_back("--" + std::string(name) + "=" + value.get<std::string>());
    }
  }
  const double cpus = resource(found, "CPU");
  const double memory = resource(found, "memory");
  if (!said.cpus && cpus > 0) {
    options.push_back("--cpus-per-task=" + std::to_string(whole(cpus)));
  } else if (!said.cpus && !says(found, {"exclusive"})) {
    options.emplace_back("--exclusive");
    if (!said.memory && memory == 0) options.emplace_back("--mem=0");  // all of it
  }
  if (!said.memory && memory > 0) {
    options.push_back("--mem=" + std::to_string(whole(memory / 1024)) + "K");
  }
  if (!said.gpus && resource(found, "GPU") > 0) {
    options.push_back("--gres=gpu:" + std::to_string(whole(resource(found, "GPU"))));
  }
  for (const auto& [name, value] : found.node_config.items()) {
    if (!is_option(name)) {
      throw wrong(type, name, "is none of sbatch's long options")
          .with_hint(
              "as sbatch has them, without the dashes in front: gpus-per-node, time, constraint");
    }
    if (std::find(std::begin(kOurs), std::end(kOurs), name) != std::end(kOurs)) {
      throw wrong(type, name, "is for dtrain to say")
          .with_hint("how many nodes there are is said by min_workers and max_workers");
    }
    if (value == json(false)) continue;
    const auto text = value_of(type, name, value);
    options.push_back("--" + name + (text ? "=" + *text : ""));
  }
  const json time = found.node_config.value("time", json());
  const auto limit = time_limit(time.is_string() ? time.get<std::string>() : time.dump());
  if (!limit || *limit >= 2 * kWarning) {
    options.push_back("--signal=B:USR1@" + std::to_string(kWarning.count()));
  }
  return options;
}

Known known_of(const ClusterSpec& spec, const std::string& type) {
  const NodeType& found = type_of(spec, type);
  const Said said(found);
  Known known;
  const double cpus = resource(found, "CPU");
  if (said.cpus || cpus == 0) return known;  // of a whole node nothing is
  known.cpus = static_cast<double>(whole(cpus));
  if (!said.gpus) known.gpus = static_cast<int>(whole(resource(found, "GPU")));
  const double memory = resource(found, "memory");
  if (!said.memory && memory > 0) known.memory = static_cast<std::uint64_t>(memory);
  return known;
}

}  // namespace dtrain::slurm
