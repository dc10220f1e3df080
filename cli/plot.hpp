#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::cli {

// A metric over steps, of one job.
struct Curve {
  std::string label;
  std::vector<std::pair<double, double>> points;  // step, value; by step
};
// A picture: one metric, of every job that has it.
struct Chart {
  std::string metric;
  std::vector<Curve> curves;
};

enum class PlotKind : std::uint8_t { terminal, svg, png };
// By the file's ending; absent if it is none of them.
std::optional<PlotKind> plot_kind_of(const std::filesystem::path& file);

// From what GET /v1/jobs/ID/metrics answers, by job id: rank 0's finite values. Without `metrics`
// all whose names have loss or accuracy in them. Throws Error(not_found) that says which there are.
std::vector<Chart> charts_of(const std::vector<std::pair<std::string, nlohmann::json>>& jobs,
                             const std::vector<std::string>& metrics);

// What gnuplot is told: one chart below the other. `size`: columns and rows of the terminal.
std::string gnuplot_script(const std::vector<Chart>& charts, PlotKind kind,
                           std::pair<int, int> size);

// Its parts, for other pictures: the terminal for so many pictures, one below the other
// (`charts_end` closes that), the range of an axis, a text and a number as gnuplot reads them.
std::string charts_begin(PlotKind kind, std::pair<int, int> size, std::size_t count);
std::string charts_end(PlotKind kind, std::size_t count);
std::string axis_range(const char* axis, const std::vector<double>& values);
std::string gnuplot_text(const std::string& text);
std::string gnuplot_number(double value);
// A value as the contract writes it; "nan" and "inf" have no place on paper.
std::optional<double> finite(const nlohmann::json& value);
// By the output's ending; the terminal without one. Throws Error(usage).
PlotKind plot_kind(const std::string& output);
// Columns and rows that a picture has in our terminal.
std::pair<int, int> plot_size();

// Runs gnuplot, and writes what it has drawn to a file, or to our stdout where `output` is empty.
// Throws Error, in one line, when it is not installed, or fails, or not all could be written.
void draw_picture(const std::string& script, const std::string& output);

}  // namespace dtrain::cli
