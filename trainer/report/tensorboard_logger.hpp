#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "trainer/core/files.hpp"
#include "trainer/report/logger.hpp"

namespace dtrain::train {

// Scalars as an event file that TensorBoard reads: `tensorboard --logdir FOLDER`. Each start writes
// one new file; several of a run may lie in one folder, and after a resume TensorBoard does not
// show what earlier ones have of the steps that come again. The epoch is a scalar `epoch`, as with
// Lightning; hyperparameters come in the tab HPARAMS, objects within by names like "optimizer/lr".
// Every scalar is in the file when the call returns. https://www.tensorflow.org has TFRecord; the
// messages are Event, Summary and HParamsPluginData.
class TensorBoardLogger final : public Logger {
 public:
  explicit TensorBoardLogger(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::string name() const override { return "tensorboard (" + folder_.string() + ")"; }
  void start(std::optional<std::int64_t> resumed_step) override;
  void log_hyperparams(const nlohmann::json& hyperparameters) override;
  void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                   const Metrics& metrics) override;

  const std::filesystem::path& path() const { return path_; }  // of the file, after start()

 private:
  void write_event(std::int64_t step, const std::string& content);

  std::filesystem::path folder_;
  std::filesystem::path path_;
  FileDescriptor file_;
};

// Of the bytes, with Castagnoli's polynomial, masked as TFRecord wants it.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace dtrain::train
