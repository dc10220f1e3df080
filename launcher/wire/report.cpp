// parse_report of launcher/wire/attempt.hpp: docs/rank_contract.md, checked.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::wire {
namespace {

using nlohmann::json;

constexpr std::int64_t kStepMax = std::int64_t{1} << 53;
constexpr std::int64_t kShardsMax = 1'000'000;
constexpr std::size_t kMetricsMax = 256;
constexpr std::size_t kMetricNameMax = 128;  // characters
constexpr std::size_t kPathMax = 4096;       // bytes
constexpr std::size_t kPhaseMax = 32;        // bytes
constexpr std::size_t kCollectiveMax = 64;   // bytes of its name
constexpr int kDepthMax = 16;
constexpr std::size_t kQuoted = 80;  // bytes of what was wrong

[[noreturn]] void wrong_report(const std::string& message) {
  throw Error(ErrorCode::invalid, message);
}

// At most kQuoted bytes as they may stand in a message.
std::string quote(std::string_view text) {
  const bool cut = text.size() > kQuoted;
  // Escaping makes bytes longer, so cut both before and after it.
  std::string shown = printable(text.substr(0, kQuoted), false);
  if (shown.size() > kQuoted) {
    shown.resize(kQuoted);
    while (!is_utf8(shown)) shown.pop_back();
  }
  return cut ? shown + "…" : shown;
}

void check_name(const std::string& name) {
  const auto continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  const auto characters =
      name.size() - static_cast<std::size_t>(std::count_if(name.begin(), name.end(), continuation));
  if (characters < 1 || characters > kMetricNameMax) {
    wrong_report("a metric's name must have 1 to 128 characters: " + quote(name));
  }
  if (printable(name, false) != name || name.find('\t') != std::string::npos) {
    wrong_report("a metric's name must be printable: " + quote(name));
  }
}

void check_metrics(const json& report) {
  const json& metrics = member(report, "metrics");
  if (!metrics.is_object()) wrong_report("\"metrics\" must be an object of numbers");
  if (metrics.size() > kMetricsMax) wrong_report("\"metrics\" must be at most 256");
  for (const auto& [name, value] : metrics.items()) {
    check_name(name);
    if (value.is_number()) {
      if (!std::isfinite(value.get<double>()))
        wrong_report("metric " + quote(name) + " is too large");
      continue;
    }
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text == "nan" || text == "inf" || text == "-inf") continue;
    }
    wrong_report("metric " + quote(name) + R"( must be a number, "nan", "inf" or "-inf")");
  }
}

void check_text(const json& report, const char* key, std::size_t limit, bool may_be_empty) {
  const std::string text = get_string(report, key);
  if (text.size() > limit || (text.empty() && !may_be_empty)) {
    wrong_report(std::string("\"") + key + "\" must have " + (may_be_empty ? "at most " : "1 to ") +
                 std::to_string(limit) + " bytes");
  }
  if (text.find('\0') != std::string::npos)
    wrong_report(std::string("\"") + key + "\" holds a NUL");
}

void check_word(const json& report, const char* key, std::size_t limit) {
  check_text(report, key, limit, false);
  const std::string text = get_string(report, key);
  if (printable(text, false) != text || text.find('\t') != std::string::npos) {
    wrong_report(std::string("\"") + key + "\" must be printable: " + quote(text));
  }
}

double seconds_at(const json& object, const char* key) {
  const double seconds = as_number(member(object, key), key);
  if (!std::isfinite(seconds) || seconds < 0) {
    wrong_report(std::string("\"") + key + "\" must be seconds, 0 or more");
  }
  return seconds;
}

// The optional ones of RankBeat::StepTimes.
constexpr std::pair<const char*, std::optional<double> RankBeat::StepTimes::*> kStepTimes[] = {
    {"data", &RankBeat::StepTimes::data},
    {"compute", &RankBeat::StepTimes::compute},
    {"communication", &RankBeat::StepTimes::communication},
    {"wait", &RankBeat::StepTimes::wait},
    {"p50", &RankBeat::StepTimes::p50},
    {"p90", &RankBeat::StepTimes::p90},
    {"max", &RankBeat::StepTimes::max}};

// Absent or null: nothing. Throws.
std::optional<RankBeat::StepTimes> step_times_of(const json& report) {
  const auto found = report.find("step_times");
  if (found == report.end() || found->is_null()) return std::nullopt;
  if (!found->is_object()) wrong_report("\"step_times\" must be an object");
  RankBeat::StepTimes times;
  times.steps = static_cast<std::uint64_t>(get_int(*found, "steps", 0, kStepMax));
  times.seconds = seconds_at(*found, "seconds");
  for (const auto& [key, its] : kStepTimes) {
    if (found->contains(key)) times.*its = seconds_at(*found, key);
  }
  return times;
}

void check_heartbeat(const json& report) {
  if (report.contains("phase")) check_word(report, "phase", kPhaseMax);
  step_times_of(report);
  const auto found = report.find("collective");
  if (found == report.end() || found->is_null()) return;
  if (!found->is_object()) {
    get_int(report, "collective", 0, kStepMax);
    return;
  }
  const json& collective = *found;
  get_int(collective, "sequence", 0, kStepMax);
  if (collective.contains("name")) check_word(collective, "name", kCollectiveMax);
  get_int(collective, "bytes", 0, kStepMax, 0);
  get_bool(collective, "done", false);
  if (collective.contains("entered")) {
    const double entered = as_number(collective.at("entered"), "entered");
    if (!std::isfinite(entered) || entered < 0) {
      wrong_report("\"entered\" must be seconds since 1970");
    }
  }
}

void check_checkpoint(const json& report) {
  check_text(report, "path", kPathMax, false);
  const std::int64_t shards = get_int(report, "shards", 1, kShardsMax, 1);
  get_int(report, "shard", 0, shards - 1, 0);
  get_bool(report, "keep", false);
  if (report.contains("metrics")) check_metrics(report);
}

void check(const json& report) {
  if (!report.is_object()) wrong_report("a report must be a JSON object");
  const std::string type = get_string(report, "type");
  const bool heartbeat = type == "heartbeat";
  if (!heartbeat && type != "metrics" && type != "progress" && type != "checkpoint") {
    wrong_report("\"type\" must be metrics, progress, heartbeat or checkpoint, not " + quote(type));
  }
  get_bool(report, "ack", false);
  if (!heartbeat || report.contains("step")) get_int(report, "step", 0, kStepMax);
  if (type == "metrics") check_metrics(report);
  if (type == "checkpoint") check_checkpoint(report);
  if (heartbeat) check_heartbeat(report);
  if (type == "progress") {
    get_int(report, "total", 0, kStepMax, 0);
    get_int(report, "epoch", 0, kStepMax, 0);
    if (report.contains("message")) check_text(report, "message", kReportLimit, true);
    if (report.contains("metrics")) check_metrics(report);
  }
}

}  // namespace

nlohmann::json parse_report(std::string_view line) {
  try {
    if (line.size() + 1 > kReportLimit) {
      wrong_report("the line is longer than " + std::to_string(kReportLimit) + " bytes");
    }
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    json report = parse_json(line, "the line", kReportLimit, kDepthMax);
    check(report);
    return report;
  } catch (Error& error) {
    const bool not_a_number = line.find("NaN") != std::string_view::npos ||
                              line.find("Infinity") != std::string_view::npos;
    throw Error(ErrorCode::invalid, error.message() + ": " + quote(line))
        .with_hint(not_a_number ? R"(write "nan", "inf" and "-inf" as JSON strings)" : "");
  }
}

RankBeat beat_of(int rank, const nlohmann::json& report) {
  RankBeat beat;
  beat.rank = rank;
  try {
    if (report.contains("step")) beat.step = get_int(report, "step", 0, kStepMax);
    if (get_string(report, "type") != "heartbeat") return beat;
    check_heartbeat(report);
    if (report.contains("phase")) beat.phase = get_string(report, "phase");
    beat.step_times = step_times_of(report);
    const auto found = report.find("collective");
    if (found == report.end() || found->is_null()) return beat;
    RankBeat::Collective its;
    if (!found->is_object()) {
      its.sequence = static_cast<std::uint64_t>(get_int(report, "collective", 0, kStepMax));
      beat.collective = std::move(its);
      return beat;
    }
    const json& said = *found;
    its.sequence = static_cast<std::uint64_t>(get_int(said, "sequence", 0, kStepMax));
    if (said.contains("name")) its.name = get_string(said, "name");
    if (said.contains("bytes")) {
      its.bytes = static_cast<std::uint64_t>(get_int(said, "bytes", 0, kStepMax));
    }
    if (said.contains("entered")) its.entered = as_number(said.at("entered"), "entered");
    its.done = get_bool(said, "done", false);
    beat.collective = std::move(its);
  } catch (const Error&) {
    beat.phase.clear();
  }
  return beat;
}

}  // namespace dtrain::wire
