#pragma once

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

}  // namespace dtrain::train
