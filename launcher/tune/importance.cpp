#include "launcher/tune/importance.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "launcher/core/error.hpp"
#include "launcher/tune/numeric.hpp"
#include "launcher/tune/random.hpp"

namespace dtrain::tune {
namespace {

constexpr std::uint64_t kTrees = 64;
constexpr int kPermutations = 3;  // of each parameter and tree
constexpr std::size_t kSmallestNode = 2;
constexpr std::size_t kMostCells = 400'000;  // trials times parameters, so that it takes seconds
constexpr double kAbsent = -1e308;           // a parameter that is not there: apart from all others

// Trials as numbers: a parameter's value, or its logarithm where its domain goes by that; values of
// a list that are not all numbers, whose order says nothing, as the ranks of their mean metric. (So
// with nearly as many of them as trials they foretell better than they should.)
struct Table {
  std::vector<std::string> names;
  std::vector<std::vector<double>> columns;
  std::vector<double> values;
};

double number_of(const Domain& domain, const nlohmann::json& value) {
  if (!value.is_number()) return kAbsent;
  const auto number = value.get<double>();
  return domain.logarithmic() && number > 0 ? natural_log(number) : number;
}

bool all_numbers(const Domain& domain) {
  return std::all_of(domain.values.begin(), domain.values.end(),
                     [](const nlohmann::json& value) { return value.is_number(); });
}

std::vector<double> ranked(const std::string& name, const std::vector<Params>& trials,
                           const std::vector<double>& values) {
  struct Mean {
    double sum = 0;
    double count = 0;
  };
  std::map<std::string, Mean> means;
  std::vector<std::string> words;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    const auto found = trials[i].find(name);
    words.push_back(found == trials[i].end() ? "" : "=" + found->second.dump());
    Mean& mean = means[words.back()];
    mean.sum += values[i];
    mean.count += 1;
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [word, mean] : means) order.emplace_back(mean.sum / mean.count, word);
  std::sort(order.begin(), order.end());
  std::map<std::string, double> ranks;
  for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i].second] = static_cast<double>(i);
  std::vector<double> column;
  for (const std::string& word : words) column.push_back(ranks[word]);
  return column;
}

Table table_of(const SearchSpace& space, const std::vector<Params>& trials,
               const std::vector<double>& values) {
  Table table;
  table.values = values;
  for (const Parameter& parameter : space.parameters()) {
    std::vector<double> column;
    if (parameter.domain.listed() && !all_numbers(parameter.domain)) {
      column = ranked(parameter.name, trials, values);
    } else {
      for (const Params& trial : trials) {
        const auto found = trial.find(parameter.name);
        column.push_back(found == trial.end() ? kAbsent
                                              : number_of(parameter.domain, found->second));
      }
    }
    const auto [least, most] = std::minmax_element(column.begin(), column.end());
    if (*least == *most) continue;
    table.names.push_back(parameter.name);
    table.columns.push_back(std::move(column));
  }
  return table;
}

class Tree {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;  // of columns

  Tree(const Table& table, std::vector<std::size_t> rows, Stream& chance)
      : table_(table), chance_(chance) {
    grow(std::move(rows));
  }

  // The value foretold for trial `row`, with column `other`'s value taken from trial `from`.
  double foretell(std::size_t row, std::size_t other, std::size_t from) const {
    std::size_t at = 0;
    while (nodes_[at].left != 0) {
      const Node& node = nodes_[at];
      const double value = table_.columns[node.column][node.column == other ? from : row];
      at = value <= node.bound ? node.left : node.right;
    }
    return nodes_[at].mean;
  }

 private:
  struct Node {
    double mean = 0;
    double bound = 0;
    std::size_t column = 0;
    std::size_t left = 0;  // 0: a leaf
    std::size_t right = 0;
  };
  struct Split {
    double gain = 0;
    double bound = 0;
    std::size_t column = 0;
  };

  std::size_t grow(std::vector<std::size_t> rows) {
    const std::size_t at = nodes_.size();
    double sum = 0;
    for (const std::size_t row : rows) sum += table_.values[row];
    Node made;
    made.mean = sum / static_cast<double>(rows.size());
    nodes_.push_back(made);
    const Split best = best_split(rows);
    if (best.gain <= 0) return at;
    std::vector<std::size_t> left;
    std::vector<std::size_t> right;
    for (const std::size_t row : rows) {
      (table_.columns[best.column][row] <= best.bound ? left : right).push_back(row);
    }
    rows = {};
    nodes_[at].column = best.column;
    nodes_[at].bound = best.bound;
    const std::size_t first = grow(std::move(left));
    const std::size_t second = grow(std::move(right));
    nodes_[at].left = first;
    nodes_[at].right = second;
    return at;
  }

  // Among a third of the columns, drawn anew for each node, two at least: so that trees differ.
  Split best_split(std::vector<std::size_t>& rows) {
    Split best;
    if (rows.size() < 2 * kSmallestNode) return best;
    const std::size_t count = table_.columns.size();
    std::vector<std::size_t> columns(count);
    std::iota(columns.begin(), columns.end(), std::size_t{0});
    const std::size_t tried = std::min(count, std::max<std::size_t>(2, (count + 2) / 3));
    for (std::size_t i = 0; i < tried; ++i) {
      std::swap(columns[i], columns[i + chance_.below(count - i)]);
      split_by(columns[i], rows, best);
    }
    return best;
  }

  void split_by(std::size_t column, std::vector<std::size_t>& rows, Split& best) const {
    const std::vector<double>& by = table_.columns[column];
    std::sort(rows.begin(), rows.end(),
              [&](std::size_t a, std::size_t b) { return by[a] != by[b] ? by[a] < by[b] : a < b; });
    const auto size = static_cast<double>(rows.size());
    double all = 0;
    for (const std::size_t row : rows) all += table_.values[row];
    double sum = 0;
    for (std::size_t i = 1; i < rows.size(); ++i) {
      sum += table_.values[rows[i - 1]];
      if (i < kSmallestNode || rows.size() - i < kSmallestNode) continue;
      const double low = by[rows[i - 1]];
      const double high = by[rows[i]];
      if (low == high) continue;
      const auto left = static_cast<double>(i);
      const double apart = sum / left - (all - sum) / (size - left);
      const double gain = apart * apart * left * (size - left) / size;
      if (gain > best.gain) {
        const double middle = low / 2 + high / 2;
        best = {gain, middle > low && middle < high ? middle : low, column};
      }
    }
  }

  const Table& table_;
  Stream& chance_;
  std::vector<Node> nodes_;
};

double squared(double x) {
  return x * x;
}

// The place of each among all, equal ones alike: a loss that went to 1e9 in one trial is the worst,
// and not all that there is to explain.
std::vector<double> places(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) {
      result[order[k]] = static_cast<double>(i + end - 1) / 2;
    }
    i = end;
  }
  return result;
}

// Those with a value; of very many, as many as can be looked at, drawn.
std::vector<std::size_t> usable_trials(const std::vector<double>& values, std::size_t parameters,
                                       std::uint64_t seed) {
  std::vector<std::size_t> usable;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) usable.push_back(i);
  }
  if (usable.size() < kFewestTrials) {
    throw Error(ErrorCode::not_found, "importance wants " + std::to_string(kFewestTrials) +
                                          " trials with a value at least; there are " +
                                          std::to_string(usable.size()));
  }
  Stream chance(seed, 0, "importance trials");
  const std::size_t most =
      std::max<std::size_t>(200, kMostCells / std::max<std::size_t>(1, parameters));
  for (std::size_t i = 0; i < most && most < usable.size(); ++i) {
    std::swap(usable[i], usable[i + chance.below(usable.size() - i)]);
  }
  usable.resize(std::min(usable.size(), most));
  return usable;
}

// Trees, each grown from as many trials as there are, drawn with some of them more than once, and
// asked about those that were not drawn.
class Forest {
 public:
  Forest(const Table& table, std::uint64_t seed)
      : table_(table),
        lost_(table.columns.size(), 0),
        foretold_(table.values.size(), 0),
        votes_(table.values.size(), 0) {
    for (std::uint64_t number = 0; number < kTrees; ++number) add_tree(seed, number);
  }

  // What is lost of the fit where that column's values are permuted.
  double lost(std::size_t column) const { return std::max(0.0, lost_[column]); }

  double explained() const {
    const std::vector<double>& values = table_.values;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    if (*least == *most) return 0;
    double mean = 0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    double error = 0;
    double variance = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (votes_[i] == 0) continue;
      error += squared(foretold_[i] / votes_[i] - values[i]);
      variance += squared(values[i] - mean);
    }
    return variance > 0 ? 1 - error / variance : 0;
  }

 private:
  void add_tree(std::uint64_t seed, std::uint64_t number) {
    const std::vector<double>& values = table_.values;
    Stream chance(seed, number, "importance");
    std::vector<std::size_t> sample;
    std::vector<bool> seen(values.size(), false);
    for (std::size_t i = 0; i < values.size(); ++i) {
      sample.push_back(chance.below(values.size()));
      seen[sample.back()] = true;
    }
    const Tree tree(table_, std::move(sample), chance);
    std::vector<std::size_t> unseen;
    double error = 0;
    for (std::size_t row = 0; row < values.size(); ++row) {
      if (seen[row]) continue;
      unseen.push_back(row);
      const double value = tree.foretell(row, Tree::kNone, row);
      error += squared(value - values[row]);
      foretold_[row] += value;
      votes_[row] += 1;
    }
    if (unseen.empty()) return;
    for (std::size_t column = 0; column < lost_.size(); ++column) {
      double permuted = 0;
      for (int time = 0; time < kPermutations; ++time) {
        std::vector<std::size_t> from = unseen;
        for (std::size_t i = from.size(); i > 1; --i) {
          std::swap(from[i - 1], from[chance.below(i)]);
        }
        for (std::size_t i = 0; i < unseen.size(); ++i) {
          permuted += squared(tree.foretell(unseen[i], column, from[i]) - values[unseen[i]]);
        }
      }
      lost_[column] += (permuted / kPermutations - error) / static_cast<double>(unseen.size());
    }
  }

  const Table& table_;
  std::vector<double> lost_;
  std::vector<double> foretold_;  // summed over the trees that had not seen it
  std::vector<double> votes_;     // how many those are
};

}  // namespace

Importances importances(const SearchSpace& space, const std::vector<Params>& trials,
                        const std::vector<double>& values, std::uint64_t seed) {
  std::vector<Params> chosen;
  std::vector<double> targets;
  for (const std::size_t i : usable_trials(values, space.parameters().size(), seed)) {
    chosen.push_back(trials[i]);
    targets.push_back(values[i]);
  }
  const Table table = table_of(space, chosen, places(targets));
  if (table.columns.empty()) {
    throw Error(ErrorCode::not_found, "no parameter differs between the trials");
  }
  const Forest forest(table, seed);
  double all = 0;
  for (std::size_t column = 0; column < table.columns.size(); ++column) all += forest.lost(column);
  Importances result;
  result.explained = forest.explained();
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    result.parameters.push_back({table.names[column], all > 0 ? forest.lost(column) / all : 0});
  }
  std::stable_sort(result.parameters.begin(), result.parameters.end(),
                   [](const Importance& a, const Importance& b) { return a.share > b.share; });
  return result;
}

}  // namespace dtrain::tune
