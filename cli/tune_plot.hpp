#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/plot.hpp"
#include "launcher/tune/importance.hpp"

// Pictures of a search.
namespace dtrain::cli {

// A parameter's values against the metric, a point for each trial that has both.
struct ParameterChart {
  std::string name;
  bool logarithmic = false;
  std::vector<std::string> words;  // of values that are no numbers: point x stands for words[x]
  std::vector<std::pair<double, double>> points;
};
// Of what the space samples, in the order of names.
std::vector<ParameterChart> parameter_charts(const tune::SearchSpace& space,
                                             const std::vector<nlohmann::json>& trials);

std::string parameters_script(const std::vector<ParameterChart>& charts, const std::string& metric,
                              PlotKind kind, std::pair<int, int> size);
std::string importance_script(const tune::Importances& importances, const std::string& title,
                              PlotKind kind, std::pair<int, int> size);
// pbt's: a line for each trial over its time, an arrow from whom it took its checkpoint.
std::string family_script(const nlohmann::json& exploitations,
                          const std::vector<nlohmann::json>& trials, const std::string& title,
                          PlotKind kind, std::pair<int, int> size);
// Bars of letters, for a terminal.
std::string importance_lines(const tune::Importances& importances, std::size_t columns);

}  // namespace dtrain::cli
