#include "agent/head/engine/history.hpp"

#include <map>
#include <utility>

#include "agent/head/store/thinning.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

std::vector<MetricsRow> thinned(std::vector<MetricsRow> rows, const Engine::MetricsQuery& query) {
  if (query.rank) {
    std::erase_if(rows, [&](const MetricsRow& row) { return row.rank != *query.rank; });
  }
  if (!query.points) return rows;
  using Kind = std::pair<int, std::string>;
  std::map<Kind, std::size_t> left;  // rows of it that are still to come
  std::vector<decltype(left)::iterator> kinds;
  for (const MetricsRow& row : rows) {
    kinds.push_back(left.try_emplace({row.rank, names_of(row.metrics)}, 0).first);
    ++kinds.back()->second;
  }
  std::map<Kind, std::size_t> strides;
  for (const auto& [kind, count] : left) {
    strides[kind] = (count + *query.points - 1) / *query.points;
  }
  std::vector<MetricsRow> kept;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto& [kind, to_come] = *kinds[i];
    if (--to_come % strides.at(kind) == 0) kept.push_back(std::move(rows[i]));
  }
  return kept;
}

std::string metrics_text(const std::vector<MetricsRow>& rows) {
  std::string text = R"({"metrics":[)";
  for (const MetricsRow& row : rows) {
    const nlohmann::json shown = {{"attempt", row.attempt},
                                  {"rank", row.rank},
                                  {"step", row.step},
                                  {"time", rfc3339(row.time)},
                                  {"metrics", nlohmann::json::parse(row.metrics, nullptr, false)}};
    if (text.back() != '[') text += ',';
    text += wire::dump(shown);
  }
  return text + "]}";
}

}  // namespace dtrain::head
