#include "trainer/data/sample_error.hpp"

#include <cstdio>

namespace dtrain::train {

void SkippedSamples::add(const SampleError& why) {
  const std::int64_t number = ++count_;
  if (number > kMostTold) return;
  std::fprintf(stderr, "warning: left out: %s%s\n", why.what(),
               number == kMostTold ? " (further ones are counted, and not told)" : "");
}

}  // namespace dtrain::train
