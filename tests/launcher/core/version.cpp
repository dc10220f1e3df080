#include "launcher/core/version.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace dtrain;

TEST_CASE("versions in their order") {
  const std::vector<std::string> order{
      "0.1.0",       "0.2.0",        "0.9.0",        "0.10.0-alpha", "0.10.0-alpha.1",
      "0.10.0-beta", "0.10.0-rc.2",  "0.10.0-rc.10", "0.10.0",       "0.10.1",
      "1.0.0-1",     "1.0.0-1.text", "1.0.0-text",   "1.0.0",        "10.0.0"};
  for (std::size_t a = 0; a < order.size(); ++a) {
    for (std::size_t b = 0; b < order.size(); ++b) {
      CAPTURE(order[a]);
      CAPTURE(order[b]);
      CHECK(is_newer_version(order[a], order[b]) == (a > b));
    }
  }
  CHECK_FALSE(is_newer_version("0.1.0+debian2", "0.1.0+debian1"));
  CHECK(is_newer_version("0.2.0+a", "0.1.0"));
}

TEST_CASE("what is no version is neither newer nor older") {
  for (const std::string other : {"", "1", "1.0", "1.0.0.0", "v1.0.0", "1.0.x", "1.0.0-", "1..0",
                                  "99999999999999999999.0.0", "1.0.0-a..b"}) {
    CAPTURE(other);
    CHECK_FALSE(is_newer_version(other, "0.1.0"));
    CHECK_FALSE(is_newer_version("0.1.0", other));
  }
}
