#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/report/line_file.hpp"
#include "trainer/report/logger.hpp"

namespace dtrain::train {

// Metrics as a table, a row for each record: step, epoch, and a column for each metric in the order
// in which they came up, as Lightning's CSVLogger. A metric that comes up later gets a column at
// the end: the file is then written anew, as a whole, and earlier rows have nothing there. Numbers
// have all their digits; what is not finite is nan, inf, -inf, as pandas reads it. RFC 4180. The
// hyperparameters go beside it, to NAME.hparams.json. Resumes and older files: as JsonLinesLogger.
class CsvLogger final : public Logger {
 public:
  explicit CsvLogger(std::filesystem::path file) : file_(std::move(file)) {}
  std::string name() const override { return "csv (" + file_.path().string() + ")"; }
  // Throws Error where a file to go on with is not such a table.
  void start(std::optional<std::int64_t> resumed_step) override;
  void log_hyperparams(const nlohmann::json& hyperparameters) override;
  void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                   const Metrics& metrics) override;

 private:
  std::filesystem::path hyperparameters_file() const;

  LineFile file_;
  std::vector<std::string> columns_;  // the metrics'
};

}  // namespace dtrain::train
