#pragma once

#include <cstdio>
#include <string>

namespace dtrain {

// "0.42 ms", "8.3 ms", "412 ms", "1.52 s", "75.0 s": what a step takes, to two or three digits.
inline std::string short_time(double seconds) {
  const bool whole = seconds >= 0.9995;
  const double value = whole ? seconds : seconds * 1000;
  char text[48];
  const int digits = whole ? (value < 9.995 ? 2 : 1) : value < 0.995 ? 2 : value < 9.95 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, whole ? "s" : "ms");
  return text;
}

}  // namespace dtrain
