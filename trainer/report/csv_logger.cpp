#include "trainer/report/csv_logger.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (inside && i + 1 < line.size() && line[i + 1] == '"')
        fields.back() += line[i++];
      else
        inside = !inside;
    } else if (c == ',' && !inside) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string text_of(double value) {
  if (std::isnan(value)) return "nan";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string header_of(const std::vector<std::string>& columns) {
  std::string line = "step,epoch";
  for (const std::string& column : columns) line += "," + quoted(column);
  return line;
}

}  // namespace

void CsvLogger::start(std::optional<std::int64_t> resumed_step) {
  if (!file_.is_rewritable()) {
    throw Error("a table needs a file that can be written anew when a column comes up");
  }
  columns_.clear();
  if (!resumed_step) {
    const std::string kept = file_.begin();
    if (const auto beside = hyperparameters_file();
        !kept.empty() && std::filesystem::exists(beside)) {
      std::filesystem::rename(beside, beside.parent_path() / (kept + ".hparams.json"));
    }
    return file_.append(header_of(columns_));
  }
  std::vector<std::string> lines = file_.resume();
  if (lines.empty()) lines.push_back(header_of(columns_));
  const std::vector<std::string> header = fields_of(lines[0]);
  if (header.size() < 2 || header[0] != "step" || header[1] != "epoch") {
    throw Error(
        "its first line is not that of a table of metrics (step,epoch,…): give another "
        "file, or move it away");
  }
  columns_.assign(header.begin() + 2, header.end());
  std::erase_if(lines, [&](const std::string& line) {
    std::int64_t step = 0;
    const auto read = std::from_chars(line.data(), line.data() + line.size(), step);
    return read.ec == std::errc() && step > *resumed_step;
  });
  file_.replace(lines);
}

std::filesystem::path CsvLogger::hyperparameters_file() const {
  return std::filesystem::path(file_.path()).replace_extension("hparams.json");
}

void CsvLogger::log_hyperparams(const nlohmann::json& hyperparameters) {
  write_atomically(
      hyperparameters_file(),
      hyperparameters.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void CsvLogger::log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                            const Metrics& metrics) {
  std::vector<std::string> columns = columns_;
  for (const auto& [name, value] : metrics) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  }
  if (columns.size() > columns_.size()) {
    std::vector<std::string> lines = file_.resume();
    const std::string more(columns.size() - columns_.size(), ',');
    for (std::string& line : lines) line += more;
    if (lines.empty()) lines.emplace_back();  // somebody has removed the file
    lines[0] = header_of(columns);
    file_.replace(lines);
    columns_ = std::move(columns);
  }
  std::string row = std::to_string(step) + ",";
  if (epoch) row += std::to_string(*epoch);
  for (const std::string& column : columns_) {
    row += ",";
    if (const auto found = metrics.find(column); found != metrics.end()) {
      row += text_of(found->second);
    }
  }
  file_.append(row);
}

}  // namespace dtrain::train
