#include "cli/doctor_words.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "cli/jobs.hpp"
#include "cli/render.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kMostNodes = 3;  // named in a row

// Equal on all of `nodes`.
struct Found {
  std::string kind;
  std::string state;  // "problem", "note", "fixed", "not fixed"
  std::string what;
  std::string hint;
  std::vector<std::string> nodes;
};

std::string state_of(const nlohmann::json& finding) {
  if (wire::get_bool(finding, "fixed", false)) return "fixed";
  if (!text_or(finding, "error").empty()) return "not fixed";
  return text_or(finding, "severity");
}

Color color_of(const std::string& state) {
  if (state == "fixed") return Color::green;
  return state == "note" ? Color::yellow : Color::red;
}

// In the order in which they were met first, problems before notes.
class FoundList {
 public:
  void add(const std::string& node, Found found) {
    const auto [place, is_new] =
        places_.try_emplace({found.state, found.kind, found.what, found.hint}, list_.size());
    if (is_new) list_.push_back(std::move(found));
    list_[place->second].nodes.push_back(node);
  }
  std::vector<Found> in_order() && {
    std::stable_sort(list_.begin(), list_.end(), [](const Found& a, const Found& b) {
      return (a.state == "note") < (b.state == "note");
    });
    return std::move(list_);
  }

 private:
  std::vector<Found> list_;
  std::map<std::vector<std::string>, std::size_t> places_;
};

void add_rows(const std::vector<Found>& list, std::vector<std::vector<Cell>>& rows) {
  std::map<std::pair<std::string, std::string>, std::size_t> shown;
  std::map<std::pair<std::string, std::string>, std::vector<const Found*>> more;
  for (const Found& found : list) {
    if (++shown[{found.state, found.kind}] > kMostRows) {
      more[{found.state, found.kind}].push_back(&found);
      continue;
    }
    rows.push_back(
        {join_some(found.nodes, kMostNodes), {found.state, color_of(found.state)}, found.what});
    if (!found.hint.empty() && found.state != "fixed") {
      rows.push_back({"", "", {"  → " + found.hint, Color::dim}});
    }
  }
  for (const auto& [which, rest] : more) {
    std::vector<std::string> nodes;
    for (const Found* found : rest) nodes.push_back(found->nodes.front());
    rows.push_back(
        {join_some(nodes, kMostNodes),
         {which.first, color_of(which.first)},
         "and " + std::to_string(rest.size()) + " more of " + which.second + " (--json has all)"});
  }
}

// Of what begins alike ("clock: ") the first.
std::string what_is_well(const nlohmann::json& answer) {
  FoundList well;
  for (const nlohmann::json& node : child(answer, "nodes")) {
    for (const nlohmann::json& text : child(node, "looked")) {
      well.add(text_or(node, "node"), {"", "well", text.get<std::string>(), "", {}});
    }
  }
  std::vector<std::vector<Cell>> rows;
  std::map<std::string, std::size_t> alike;
  for (const Found& each : std::move(well).in_order()) {
    const std::string begin = each.what.substr(0, each.what.find(": "));
    if (++alike[begin] <= kMostRows) rows.push_back({join_some(each.nodes, kMostNodes), each.what});
  }
  for (const auto& [begin, count] : alike) {
    if (count <= kMostRows) continue;
    rows.push_back(
        {"", begin + ": and " + std::to_string(count - kMostRows) + " more (--json has all)"});
  }
  return rows.empty() ? "" : table({"NODE", "IS WELL"}, rows, false) + "\n";
}

}  // namespace

bool is_well(const nlohmann::json& answer) {
  return wire::get_bool(answer, "complete", false) && number_or(answer, "problems", 0) == 0;
}

std::string doctor_words(const nlohmann::json& answer, bool verbose, bool color) {
  FoundList list;
  std::size_t asked = 0;
  std::size_t silent = 0;
  std::size_t fixable = 0;
  for (const nlohmann::json& node : child(answer, "nodes")) {
    const std::string name = text_or(node, "node");
    if (name != "head") ++asked;
    const nlohmann::json& error = child(node, "error");
    if (!error.is_null()) {
      ++silent;
      list.add(name, {"away", "not asked", text_or(error, "message"), text_or(error, "hint"), {}});
    }
    for (const nlohmann::json& finding : child(node, "findings")) {
      const std::string failed = text_or(finding, "error");
      const std::string state = state_of(finding);
      if (state != "fixed" && wire::get_bool(finding, "fixable", false)) ++fixable;
      list.add(name, {text_or(finding, "kind"),
                      state,
                      text_or(finding, "what") + (failed.empty() ? "" : ": " + failed),
                      text_or(finding, "hint"),
                      {}});
    }
  }
  std::vector<std::vector<Cell>> rows;
  add_rows(std::move(list).in_order(), rows);
  std::string text = verbose ? what_is_well(answer) : "";
  if (rows.empty()) return text + "nothing found on " + counted(asked, "node") + "\n";
  text += table({"NODE", "FOUND", "WHAT"}, rows, color);
  std::vector<std::string> counts;
  const auto count = [&](const char* key, const char* one) {
    if (const auto many = number_or(answer, key); many > 0) {
      counts.push_back(counted(static_cast<std::size_t>(many), one));
    }
  };
  count("problems", "problem");
  count("notes", "note");
  if (const auto fixed = number_or(answer, "fixed"); fixed > 0) {
    counts.push_back(std::to_string(fixed) + " fixed");
  }
  if (silent > 0) counts.push_back(counted(silent, "node") + " not asked");
  text += "\n" + join(counts, ", ") + " on " + counted(asked, "node");
  if (fixable > 0 && !wire::get_bool(answer, "fix", false)) {
    text += "; `dtrain doctor --fix` puts right what it can: " + std::to_string(fixable);
  }
  return text + "\n";
}

}  // namespace dtrain::cli
