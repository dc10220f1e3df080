#include "launcher/core/clock.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"

using namespace dtrain;

TEST_CASE("times are written as RFC 3339 in UTC and read back") {
  const WallTime time = from_millis(1767323045678);
  CHECK(rfc3339(time) == "2026-01-02T03:04:05.678Z");
  CHECK(parse_rfc3339("2026-01-02T03:04:05.678Z") == time);
  CHECK(to_millis(time) == 1767323045678);
  CHECK(time_of_day(time) == "03:04:05Z");
  CHECK(rfc3339(from_millis(0)) == "1970-01-01T00:00:00.000Z");
  CHECK(rfc3339(from_millis(-1)) == "1969-12-31T23:59:59.999Z");
  CHECK(to_millis(parse_rfc3339("1969-12-31T23:59:59.999Z")) == -1);
}

TEST_CASE("what is no time is refused") {
  for (const char* text : {"", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678",
                           "2026-01-02T03:04:05.678Zx", "2026-01-02T03:04:05.678+01:00", "now"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_rfc3339(text), Error);
  }
}
