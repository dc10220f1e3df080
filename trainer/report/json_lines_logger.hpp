#pragma once

#include <filesystem>

#include "trainer/report/line_file.hpp"
#include "trainer/report/logger.hpp"

namespace dtrain::train {

// Metrics as JSON lines, {"step":N,"epoch":N,"time":SECONDS,"metrics":{…}}, appended to a file; the
// hyperparameters, where there are any, come first: {"time":SECONDS,"hyperparameters":{…}}. A
// resume drops the lines of the steps that come again; a training that begins anew keeps an older
// file as NAME.1.EXT. Each line is in the file when the call returns.
class JsonLinesLogger final : public Logger {
 public:
  explicit JsonLinesLogger(std::filesystem::path file) : file_(std::move(file)) {}
  std::string name() const override { return "json lines (" + file_.path().string() + ")"; }
  void start(std::optional<std::int64_t> resumed_step) override;
  void log_hyperparams(const nlohmann::json& hyperparameters) override;
  void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                   const Metrics& metrics) override;

 private:
  LineFile file_;
};

}  // namespace dtrain::train
