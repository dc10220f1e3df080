#include "cli/step_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "cli/render.hpp"
#include "cli/stack_tree.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

constexpr std::array<const char*, 8> kColumns{"p50",  "p90",     "max",           "own",
                                              "data", "compute", "communication", "wait"};
constexpr std::size_t kP90 = 1;
constexpr std::size_t kMax = 2;
constexpr std::size_t kOwn = 3;

// Of a rank, or of a node's ranks. NaN: not known.
struct Row {
  std::set<int> ranks;
  std::string node;
  std::array<double, kColumns.size()> seconds{};
  bool slow = false;

  double length() const { return std::isnan(seconds[kOwn]) ? seconds[0] : seconds[kOwn]; }
};

bool longer(const Row& a, const Row& b) {
  return a.length() > b.length();
}

// Of its ranks: of single steps the longest, of all else the one in the middle.
Row node_of(const std::vector<const Row*>& rows) {
  Row all;
  all.node = rows[0]->node;
  for (const Row* row : rows) all.ranks.insert(row->ranks.begin(), row->ranks.end());
  all.slow = std::all_of(rows.begin(), rows.end(), [](const Row* row) { return row->slow; });
  for (std::size_t column = 0; column < kColumns.size(); ++column) {
    std::vector<double> known;
    for (const Row* row : rows) {
      if (!std::isnan(row->seconds[column])) known.push_back(row->seconds[column]);
    }
    std::sort(known.begin(), known.end());
    const bool longest = column == kP90 || column == kMax;
    all.seconds[column] = known.empty() ? std::nan("")
                          : longest     ? known.back()
                                        : known[(known.size() - 1) / 2];
  }
  return all;
}

std::vector<Cell> cells_of(const Row& row) {
  std::string ranks = ranks_in_words(row.ranks);
  ranks.erase(0, ranks.find(' ') + 1);
  std::vector<Cell> cells{ranks, row.node};
  for (const double seconds : row.seconds) {
    cells.emplace_back(std::isnan(seconds) ? "" : short_time(seconds));
  }
  cells.push_back(row.slow ? Cell("slow", Color::yellow) : Cell());
  return cells;
}

}  // namespace

std::string step_times(const nlohmann::json& job, bool color, std::size_t most) {
  const nlohmann::json& attempts = child(job, "attempts");
  if (!attempts.is_array() || attempts.empty()) return {};
  std::vector<Row> ranks;
  for (const nlohmann::json& rank : child(attempts.back(), "ranks")) {
    const nlohmann::json& times = child(rank, "step_times");
    if (!times.is_object()) continue;
    Row row;
    row.ranks = {static_cast<int>(number_or(rank, "rank", 0))};
    row.node = text_or(rank, "node");
    for (std::size_t column = 0; column < kColumns.size(); ++column) {
      const auto seconds = times.find(kColumns[column]);
      const bool known = seconds != times.end() && seconds->is_number();
      row.seconds[column] = known ? seconds->get<double>() : std::nan("");
    }
    const auto slow = times.find("slow");
    row.slow = slow != times.end() && slow->is_boolean() && slow->get<bool>();
    ranks.push_back(std::move(row));
  }
  if (ranks.empty()) return {};
  std::vector<std::vector<Cell>> rows;
  std::string rest;
  if (ranks.size() <= most) {
    for (const Row& row : ranks) rows.push_back(cells_of(row));
  } else {
    std::map<std::string, std::vector<const Row*>> by_node;
    for (const Row& row : ranks) by_node[row.node].push_back(&row);
    std::vector<Row> nodes;
    for (const auto& [node, its] : by_node) nodes.push_back(node_of(its));
    std::stable_sort(nodes.begin(), nodes.end(), longer);
    for (std::size_t i = 0; i < nodes.size() && i < most; ++i) rows.push_back(cells_of(nodes[i]));
    std::partial_sort(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(most), ranks.end(),
                      longer);
    rest = "of " + std::to_string(ranks.size()) + " ranks on " + std::to_string(nodes.size()) +
           (nodes.size() == 1 ? " node" : " nodes") + ", the slowest\n";
    for (std::size_t i = 0; i < most; ++i) rows.push_back(cells_of(ranks[i]));
  }
  return table({"RANKS", "NODE", "P50", "P90", "MAX", "OWN", "DATA", "COMPUTE", "COMM", "WAIT", ""},
               rows, color) +
         rest;
}

}  // namespace dtrain::cli
