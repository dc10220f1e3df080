#include "agent/head/store/thinning.hpp"

#include <functional>
#include <nlohmann/json.hpp>

namespace dtrain::head {

std::string names_of(const std::string& metrics) {
  std::string names;
  const nlohmann::json values = nlohmann::json::parse(metrics, nullptr, false);
  for (const auto& [name, value] : values.items()) names += name + '\n';
  return names;
}

void Thinning::add(const Key& key, const std::string& metrics) {
  Side& side = key.rank == 0 ? first_ : others_;
  const auto curve =
      side.curves.try_emplace({key.rank, std::hash<std::string>()(names_of(metrics))}, 0).first;
  ++curve->second;
  side.rows.push_back({key, curve});
}

std::vector<Thinning::Key> Thinning::dropped() const {
  const auto& [curves, rows] = first_.rows.size() > others_.rows.size() ? first_ : others_;
  // Where hardly two rows are of one curve there is nothing to be told apart.
  const bool as_one = rows.size() < 2 * curves.size();
  std::map<const std::size_t*, std::size_t> ages;
  std::vector<Key> keys;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {  // from the newest on
    const std::size_t& size = row->curve->second;
    // Of more than half the mean: a curve of few points stays whole beside one of many.
    if (!as_one && 2 * size * curves.size() <= rows.size()) continue;
    if (++ages[as_one ? nullptr : &size] % 2 == 0) keys.push_back(row->key);
  }
  return keys;
}

}  // namespace dtrain::head
