#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "trainer/core/error.hpp"

namespace dtrain::train {

// Says which sample of which data set could not be had.
class SampleError : public Error {
 public:
  SampleError(const std::string& dataset, std::int64_t index, const std::string& why)
      : Error("data set " + dataset + ", sample " + std::to_string(index) + ": " + why) {}
};

// What is done about a sample that cannot be read.
enum class BadSamples : std::uint8_t {
  error,  // it ends the training, with its name
  skip,   // it is left out of its batch, told by name, and counted
};

// Samples that were left out, in this process. For all threads.
class SkippedSamples {
 public:
  // The first kMostTold are told on stderr, each by its name; then once that no more will be.
  static constexpr std::int64_t kMostTold = 20;
  void add(const SampleError& why);
  std::int64_t count() const { return count_; }

 private:
  std::atomic<std::int64_t> count_ = 0;
};

}  // namespace dtrain::train
