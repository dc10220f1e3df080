#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "trainer/core/files.hpp"
#include "trainer/core/metrics.hpp"

namespace dtrain::train {

// Scalars as an event file that TensorBoard reads: `tensorboard --logdir FOLDER`. Each object
// writes one new file; several of a run may lie in one folder. Every scalar is in the file when
// the call returns. https://www.tensorflow.org has TFRecord; the messages are Event and Summary.
class TensorBoard {
 public:
  // Makes the folder and a file in it. Throws Error.
  explicit TensorBoard(const std::filesystem::path& folder);
  void scalars(std::int64_t step, const Metrics& metrics);
  // What earlier files of the folder have of this step and later is not to be shown.
  void restart_at(std::int64_t step);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(std::int64_t step, const std::string& content);

  std::filesystem::path path_;
  FileDescriptor file_;
};

// Of the bytes, with Castagnoli's polynomial, masked as TFRecord wants it.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace dtrain::train
