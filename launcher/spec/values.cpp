#include "launcher/spec/values.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/number.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/limits.hpp"

namespace dtrain {
namespace {

using spec::shown;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

template <typename Value, std::size_t N>
using Names = std::array<std::pair<Value, const char*>, N>;

template <typename Value, std::size_t N>
Value value_of(const Names<Value, N>& names, std::string_view text) {
  std::vector<std::string> known;
  for (const auto& [value, name] : names) {
    if (text == name) return value;
    known.emplace_back(name);
  }
  Error error(ErrorCode::invalid, shown(text) + " is not one of: " + join(known, ", "));
  if (const auto near = nearest(text, known)) error.with_hint("did you mean " + *near + "?");
  throw error;
}

template <typename Value, std::size_t N>
const char* name_of(const Names<Value, N>& names, Value wanted) noexcept {
  for (const auto& [value, name] : names) {
    if (value == wanted) return name;
  }
  return "?";
}

constexpr Names<BundleMode, 2> kBundleModes{
    {{BundleMode::automatic, "auto"}, {BundleMode::off, "off"}}};
constexpr Names<OnHeadLost, 2> kOnHeadLost{
    {{OnHeadLost::go_on, "continue"}, {OnHeadLost::stop, "stop"}}};
constexpr Names<Launcher, 2> kLaunchers{{{Launcher::direct, "direct"}, {Launcher::srun, "srun"}}};
constexpr Names<SameFailure, 2> kSameFailures{
    {{SameFailure::stop, "stop"}, {SameFailure::restart, "restart"}}};
constexpr Names<ScoreOrder, 2> kScoreOrders{{{ScoreOrder::max, "max"}, {ScoreOrder::min, "min"}}};
constexpr Names<CpuBind, 2> kCpuBinds{{{CpuBind::none, "none"}, {CpuBind::cores, "cores"}}};
constexpr Names<OnHang, 3> kOnHang{
    {{OnHang::report, "report"}, {OnHang::restart, "restart"}, {OnHang::nothing, "nothing"}}};

std::string_view file_name(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_interpreter(std::string_view program) {
  static constexpr std::array<std::string_view, 7> kKnown{"sh",  "bash", "dash", "zsh",
                                                          "env", "perl", "time"};
  return program.starts_with("python") ||
         std::find(kKnown.begin(), kKnown.end(), program) != kKnown.end();
}

// The words of a shell line as far as a name needs them: no quoting is undone.
std::vector<std::string> rough_words(std::string_view line) {
  std::vector<std::string> words;
  for (std::string& word : split(line, ' ')) {
    for (std::string& part : split(word, '\n')) {
      if (!part.empty()) words.push_back(std::move(part));
    }
    if (words.size() > 20) break;
  }
  return words;
}

}  // namespace

NodeCount parse_node_count(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto min = number_from<int>(text.substr(0, colon));
  const auto max = colon == std::string_view::npos ? min : number_from<int>(text.substr(colon + 1));
  if (!min || !max) {
    throw Error(ErrorCode::invalid, shown(text) + " is no number of nodes: N, or \"min:max\"")
        .with_hint("for example: 4, or \"2:8\"");
  }
  return {*min, *max};
}

ProcsPerNode parse_procs_per_node(std::string_view text) {
  if (text == "gpu") return {ProcsKind::gpu, 1};
  if (text == "cpu") return {ProcsKind::cpu, 1};
  if (const auto number = number_from<int>(text)) return {ProcsKind::number, *number};
  Error error(ErrorCode::invalid, shown(text) + " is no number of ranks: N, gpu or cpu");
  throw error.with_hint(text == "auto"
                            ? "write gpu for one rank per GPU, or cpu for one rank per CPU"
                            : "for example: 2, or gpu for one rank per GPU");
}

std::uint64_t parse_bytes(std::string_view text) {
  const auto wrong = [&](const std::string& why) {
    return Error(ErrorCode::invalid, shown(text) + " " + why)
        .with_hint("for example: 4GiB, 500MB, or a number of bytes");
  };
  const std::size_t end = std::min(text.size(), text.find_first_not_of("0123456789."));
  const std::string_view digits = text.substr(0, end);
  std::string unit;
  for (const char c : text.substr(end)) {
    if (c != ' ') unit += lower(c);
    if (unit.size() > 3) break;
  }
  if (unit.ends_with('b')) unit.pop_back();
  double factor = 1;
  if (!unit.empty()) {
    static constexpr std::string_view kUnits = "kmgtp";
    const std::size_t power = kUnits.find(unit.front());
    const bool binary = unit.size() == 2 && unit[1] == 'i';
    if (power == std::string_view::npos || (unit.size() > 1 && !binary)) {
      throw wrong("is no amount of memory: the units are kB MB GB TB PB and KiB MiB GiB TiB PiB");
    }
    factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  } else if (const auto whole = number_from<std::uint64_t>(digits)) {
    return *whole;
  }
  const auto value = number_from<double>(digits);
  if (!value || !std::isfinite(*value)) throw wrong("is no amount of memory");
  const double bytes = std::floor(*value * factor);
  if (bytes > static_cast<double>(limits::kMemory)) throw wrong("is more than 1 EiB");
  return static_cast<std::uint64_t>(bytes);
}

GpuAmount gpus_from(double number) {
  const double parts = number * GpuAmount::kOne;
  const double rounded = std::round(parts);
  const double one = GpuAmount::kOne;
  // Farther from it than the nearest double of four decimals is.
  const bool is_finer = std::abs(parts - rounded) > 1e-9 * std::max(1.0, std::abs(parts));
  if (number >= 0 && number <= limits::kGpus && !is_finer &&
      (rounded < one || std::fmod(rounded, one) == 0)) {
    GpuAmount gpus;
    gpus.parts = static_cast<std::int64_t>(rounded);
    return gpus;
  }
  throw Error(ErrorCode::invalid,
              "must be a whole number of 0 to " + std::to_string(limits::kGpus) +
                  ", or below 1 a part of a GPU in ten-thousandths, not " + number_text(number))
      .with_hint("for example: GPU: 1, or GPU: 0.25");
}

GpuAmount parse_gpus(std::string_view text) {
  const auto number = number_from<double>(text);
  if (number) return gpus_from(*number);
  throw Error(ErrorCode::invalid, shown(text) + " is no number of GPUs")
      .with_hint("for example: GPU: 1, or GPU: 0.25");
}

BundleMode parse_bundle_mode(std::string_view text) {
  return value_of(kBundleModes, text);
}
OnHeadLost parse_on_head_lost(std::string_view text) {
  return value_of(kOnHeadLost, text);
}
Launcher parse_launcher(std::string_view text) {
  return value_of(kLaunchers, text);
}
ScoreOrder parse_score_order(std::string_view text) {
  return value_of(kScoreOrders, text);
}
SameFailure parse_same_failure(std::string_view text) {
  return value_of(kSameFailures, text);
}

void check_failure(std::string_view text) {
  if (std::find(kFailures.begin(), kFailures.end(), text) != kFailures.end()) return;
  const auto code = number_from<int>(text);
  if (code && *code >= 1 && *code <= 255) return;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal_name(signal) == text) return;
  }
  std::string names;
  for (const char* each : kFailures) names += std::string(each) + ", ";
  throw Error(ErrorCode::invalid, shown(text) + " is no failure that is known")
      .with_hint(names + "an exit code of 1 to 255, or a signal as SIGUSR1");
}
OnHang parse_on_hang(std::string_view text) {
  return value_of(kOnHang, text);
}
CpuBind parse_cpu_bind(std::string_view text) {
  return value_of(kCpuBinds, text);
}

LabelRule parse_label_rule(std::string_view text) {
  LabelRule rule;
  std::string_view rest = text;
  rule.negated = rest.starts_with('!');
  if (rule.negated) rest.remove_prefix(1);
  const bool is_list = rest.starts_with("in(") && rest.ends_with(')');
  if (is_list) {
    for (const std::string& each : split(rest.substr(3, rest.size() - 4), ',')) {
      rule.values.push_back(trimmed(each));
    }
  } else {
    rule.values.emplace_back(rest);
  }
  const bool is_open = !is_list && rest.starts_with("in(");
  if (is_open || std::find(rule.values.begin(), rule.values.end(), "") != rule.values.end()) {
    throw Error(ErrorCode::invalid, shown(text) + " is no rule for a label")
        .with_hint("VALUE, !VALUE, in(A, B) or !in(A, B)");
  }
  return rule;
}

bool LabelRule::takes(const std::string* label) const {
  const bool is_one =
      label != nullptr && std::find(values.begin(), values.end(), *label) != values.end();
  return is_one != negated;
}

std::string to_string(NodeCount count) {
  if (count.min == count.max) return std::to_string(count.min);
  return std::to_string(count.min) + ":" + std::to_string(count.max);
}

std::string to_string(ProcsPerNode procs) {
  if (procs.kind == ProcsKind::gpu) return "gpu";
  if (procs.kind == ProcsKind::cpu) return "cpu";
  return std::to_string(procs.number);
}

nlohmann::json to_json(GpuAmount gpus) {
  if (!gpus.is_part()) return gpus.whole();
  return static_cast<double>(gpus.parts) / GpuAmount::kOne;
}

std::string gpus_text(GpuAmount gpus) {
  return to_json(gpus).dump();
}

const char* to_string(BundleMode mode) noexcept {
  return name_of(kBundleModes, mode);
}
const char* to_string(OnHeadLost what) noexcept {
  return name_of(kOnHeadLost, what);
}
const char* to_string(Launcher launcher) noexcept {
  return name_of(kLaunchers, launcher);
}
const char* to_string(ScoreOrder order) noexcept {
  return name_of(kScoreOrders, order);
}
const char* to_string(SameFailure what) noexcept {
  return name_of(kSameFailures, what);
}
const char* to_string(OnHang what) noexcept {
  return name_of(kOnHang, what);
}
const char* to_string(CpuBind bind) noexcept {
  return name_of(kCpuBinds, bind);
}

std::string default_job_name(const JobSpec& spec) {
  if (spec.command.empty()) return "job";
  const std::vector<std::string> words =
      spec.shell ? rough_words(spec.command.front().substr(0, 4096)) : spec.command;
  std::string_view program;
  for (const std::string& word : words) {
    const bool assignment = word.find('=') != std::string::npos && word.front() != '/';
    if (program.empty()) {
      if (!(spec.shell && assignment)) program = file_name(word);
    } else if (is_interpreter(program)) {
      if (word == "-c" || word == "-m") break;
      if (!word.empty() && word.front() != '-' && !assignment) {
        program = file_name(word);
        if (const std::size_t dot = program.rfind('.'); dot != std::string_view::npos && dot > 0) {
          program = program.substr(0, dot);
        }
      }
    } else {
      break;
    }
  }
  std::string name;
  for (const char c : program.substr(0, limits::kNameLength)) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (allowed) {
      if (!name.empty() || (c != '.' && c != '-')) name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
  return name.empty() ? "job" : name;
}

}  // namespace dtrain
