#pragma once

#include <cstdint>
#include <filesystem>

#include "trainer/core/files.hpp"
#include "trainer/core/metrics.hpp"

namespace dtrain::train {

// Metrics as JSON lines, {"step":N,"time":SECONDS,"metrics":{…}}, appended to a file. After a
// resume steps may come again: of a step, the last line counts.
class MetricsFile {
 public:
  // Makes the folder. Throws Error.
  explicit MetricsFile(const std::filesystem::path& path);
  void write(std::int64_t step, const Metrics& metrics);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace dtrain::train
