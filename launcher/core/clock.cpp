#include "launcher/core/clock.hpp"

#include <array>
#include <cstdio>
#include <ctime>

#include "launcher/core/error.hpp"

namespace dtrain {

std::chrono::nanoseconds boot_time() {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::int64_t to_millis(WallTime time) {
  return std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

WallTime from_millis(std::int64_t millis) {
  return WallTime(std::chrono::milliseconds(millis));
}

std::string rfc3339(WallTime time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const auto millis = std::chrono::floor<std::chrono::milliseconds>(time - whole).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(millis));
  return text.data();
}

std::string time_of_day(WallTime time) {
  constexpr std::size_t kDate = 11;  // 2026-01-02T
  return rfc3339(time).substr(kDate, 8) + "Z";
}

WallTime parse_rfc3339(const std::string& text) {
  std::tm utc{};
  int millis = 0;
  char zulu = 0;
  int used = 0;
  const int fields =
      std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3d%c%n", &utc.tm_year, &utc.tm_mon,
                  &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &millis, &zulu, &used);
  if (fields != 8 || zulu != 'Z' || static_cast<std::size_t>(used) != text.size()) {
    throw Error(ErrorCode::invalid, "not a time as 2026-01-02T03:04:05.678Z: " + text);
  }
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(timegm(&utc)) + std::chrono::milliseconds(millis);
}

}  // namespace dtrain
