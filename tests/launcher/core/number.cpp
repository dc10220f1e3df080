#include "launcher/core/number.hpp"

#include <doctest/doctest.h>

using namespace dtrain;

TEST_CASE("a number is the whole text, and fits") {
  CHECK(number_from<int>("-12") == -12);
  CHECK(number_from<double>("1e3") == 1000.0);
  for (const char* none : {"", "1x", " 1", "+1", "1 ", "1e3", "2147483648"}) {
    CAPTURE(none);
    CHECK_FALSE(number_from<int>(none));
  }
}
