// What is said and drawn of a search.
#include <algorithm>
#include <set>

#include "cli/render.hpp"
#include "cli/searches.hpp"
#include "cli/tune_follow.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

// Open trials within so few numbers of one another are asked for at once, with what lies between.
constexpr std::uint64_t kNear = 50;
constexpr std::size_t kMostColumns = 12;  // of parameters

const json& member_or_null(const json& object, const char* key) {
  static const json kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

bool is_better(const json& search, const json& value, const json& than) {
  if (!value.is_number()) return false;
  if (!than.is_number()) return true;
  return text_or(search, "mode") == "max" ? value > than : value < than;
}

std::string ending(long long iterations) {
  return iterations == 1 ? " after 1 iteration"
                         : " after " + std::to_string(iterations) + " iterations";
}

// Those that are sampled, in the order of their names: constants say nothing in a table.
std::vector<std::string> parameter_names(const json& search, const std::vector<json>& trials) {
  const tune::SearchSpace space = space_of(search);
  std::set<std::string> names;
  for (const json& trial : trials) {
    for (const auto& [name, value] : flat_params(child(trial, "params"), space)) {
      const tune::Parameter* parameter = space.find(name);
      const bool told =
          parameter == nullptr || parameter->domain.kind != tune::Domain::Kind::constant;
      if (told) names.insert(name);
      if (names.size() == kMostColumns) return {names.begin(), names.end()};
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace

bool trial_ended(const std::string& state) noexcept {
  return state == "complete" || state == "stopped" || state == "failed";
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> SearchNews::wanted(std::uint64_t begun,
                                                                        bool end) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [number, state] : open_) {
    if (looked_at_.contains(number) || (state.starts_with("paused ") && !end)) continue;
    if (!ranges.empty() && number < ranges.back().first + ranges.back().second + kNear) {
      ranges.back().second = number - ranges.back().first + 1;
    } else {
      ranges.emplace_back(number, 1);
    }
  }
  if (begun > next_) ranges.emplace_back(next_, begun - next_);
  return ranges;
}

std::optional<json> SearchNews::trial(const json& trial) {
  const auto number = static_cast<std::uint64_t>(number_or(trial, "trial"));
  const std::string state = text_or(trial, "state");
  const auto known = open_.find(number);
  if (known == open_.end() && number < next_) return std::nullopt;  // it has ended before
  const std::string now = state + " " + text_or(trial, "job");
  const bool is_news = known == open_.end() || known->second != now;
  next_ = std::max(next_, number + 1);
  looked_at_.insert(number);
  if (trial_ended(state)) {
    open_.erase(number);
  } else {
    open_[number] = now;
  }
  if (!is_news) return std::nullopt;
  json event = {{"type", "trial"}};
  for (const char* key :
       {"trial", "state", "reason", "params", "iteration", "value", "metrics", "job", "exploits"}) {
    event[key] = member_or_null(trial, key);
  }
  return event;
}

std::optional<json> SearchNews::best(const json& search) {
  const json& best = child(search, "best");
  if (!best.is_object()) return std::nullopt;
  if (!is_better(search, member_or_null(best, "value"), best_)) return std::nullopt;
  best_ = best["value"];
  json event = best;
  event["type"] = "best";
  return event;
}

std::optional<json> SearchNews::state(const json& search) {
  const std::string state = text_or(search, "state");
  const std::string reason = text_or(search, "reason");
  if (state == state_ && reason == reason_) return std::nullopt;
  state_ = state;
  reason_ = reason;
  return json{{"type", "state"},
              {"search", text_or(search, "search")},
              {"state", state},
              {"reason", reason}};
}

std::string news_line(const json& event, const std::string& metric, bool known) {
  const std::string type = text_or(event, "type");
  const std::string state = text_or(event, "state");
  const std::string reason = printable(text_or(event, "reason"), false);
  const std::string because = reason.empty() ? "" : ": " + reason;
  if (type == "state") return text_or(event, "search") + " " + state + because;
  const std::string name = "trial " + std::to_string(number_or(event, "trial"));
  const json& value = member_or_null(event, "value");
  const std::string measured =
      value.is_null() ? "" : printable(metric, false) + " " + number(value);
  const std::string params = params_line(child(event, "params"));
  if (type == "best") return "best so far: " + name + ", " + measured + ": " + params;
  std::string line = name + " " + state;
  if (trial_ended(state)) {
    line += ending(number_or(event, "iteration"));
    if (!measured.empty()) line += ", " + measured;
    if (!known) line += ", with " + params;
    return line + because;
  }
  if (!known) line += ": " + params;
  if (const std::string job = text_or(event, "job"); !job.empty()) line += "  (" + job + ")";
  return state == "running" ? line : line + because;
}

std::string search_picture(const json& search, std::size_t columns, std::size_t rows, bool color,
                           bool jobs) {
  const std::string state = text_or(search, "state");
  const auto cut_line = [&](const std::string& line) {
    return columns == 0 ? line : fit(line, columns - 1);
  };
  std::string text;
  std::size_t lines = 0;
  const auto add = [&](const std::string& line, Color with) {
    if (rows > 0 && lines + 1 >= rows) return;  // the last row is the cursor's
    std::string shown = printable(line, false);
    std::replace(shown.begin(), shown.end(), '\t', ' ');
    text += paint(cut_line(shown), with, color) + "\n";
    ++lines;
  };
  const std::string reason = text_or(search, "reason");
  add(text_or(search, "search") + "  " + state + "  " + begun_line(search) + "  " +
          span(text_or(search, "created"), text_or(search, "ended")),
      Color::bold);
  if (!reason.empty()) add(reason, Color::none);
  if (const std::string counts = counts_line(child(search, "counts")); !counts.empty()) {
    add(counts, Color::none);
  }
  if (const std::string best = best_line(search); !best.empty()) {
    add((job_ended(state) ? "best: " : "best so far: ") + best, Color::green);
  }
  std::vector<json> shown;    // those that run
  std::vector<json> waiting;  // shown where there is room for all others
  std::vector<json> ended;    // and paused ones: by their value, the best first
  for (const json& trial : child(search, "trials")) {
    const std::string how = text_or(trial, "state");
    (how == "running" ? shown : how == "waiting" ? waiting : ended).push_back(trial);
  }
  if (shown.empty() && waiting.empty() && ended.empty()) return text;
  if (rows > 0) {
    // Beside those lines an empty one, the table's head, a count of the others, and the cursor's.
    const std::size_t beside = lines + 4;
    if (rows <= beside) return text;
    const std::size_t room = rows - beside;
    const std::size_t beside_ended = room - std::min(room, ended.size());
    shown.resize(std::min(shown.size(), std::max(beside_ended, (room + 1) / 2)));
    ended.resize(std::min(ended.size(), room - shown.size()));
    waiting.resize(std::min(waiting.size(), room - shown.size() - ended.size()));
  }
  shown.insert(shown.end(), waiting.begin(), waiting.end());
  shown.insert(shown.end(), ended.begin(), ended.end());
  const std::vector<std::string> names = parameter_names(search, shown);
  std::vector<std::string> header = {"TRIAL", "STATE", "ITER", text_or(search, "metric")};
  header.insert(header.end(), names.begin(), names.end());
  if (jobs) header.emplace_back("JOB");
  header.emplace_back("");
  std::vector<std::vector<Cell>> cells;
  const tune::SearchSpace space = space_of(search);
  for (const json& trial : shown) {
    const json& value = member_or_null(trial, "value");
    std::vector<Cell> row = {std::to_string(number_or(trial, "trial")), text_or(trial, "state"),
                             std::to_string(number_or(trial, "iteration")),
                             value.is_null() ? "" : number(value)};
    const tune::Params params = flat_params(child(trial, "params"), space);
    for (const std::string& name : names) {
      const auto found = params.find(name);
      row.emplace_back(found == params.end() ? "" : number(found->second));
    }
    if (jobs) row.emplace_back(text_or(trial, "job"));
    row.emplace_back(text_or(trial, "reason"));
    cells.push_back(std::move(row));
  }
  text += "\n";
  // Cut first, coloured after: by the row's state.
  const std::vector<std::string> drawn = split(table(header, cells, false), '\n');
  for (std::size_t i = 0; i < shown.size() + 1; ++i) {
    const Color with = i == 0 ? Color::dim : trial_color(text_or(shown[i - 1], "state"));
    text += paint(cut_line(drawn[i]), with, color) + "\n";
  }
  const long long begun = number_or(search, "begun");
  if (const long long more = begun - static_cast<long long>(shown.size()); more > 0) {
    text += paint("and " + std::to_string(more) + " more", Color::dim, color) + "\n";
  }
  return text;
}

}  // namespace dtrain::cli
