#include "launcher/core/address.hpp"

#include <doctest/doctest.h>

using namespace dtrain;

TEST_CASE("addresses of both families, with ports") {
  CHECK(is_numeric_address("10.0.0.1"));
  CHECK(is_numeric_address("fd00::1"));
  CHECK(is_numeric_address("fe80::1%eth0"));
  for (const char* none : {"", "box0", "10.0.0", "10.0.0.1:22", "[fd00::1]", "fe80::1%", "::g"}) {
    CHECK_MESSAGE(!is_numeric_address(none), none);
  }
  CHECK(is_ipv6_address("::1"));
  CHECK(!is_ipv6_address("127.0.0.1"));
  CHECK(canonical_address("FD00:0:0::A") == "fd00::a");
  CHECK(canonical_address("10.0.0.1") == "10.0.0.1");
  CHECK(canonical_address("fe80::1%eth0") == "fe80::1%eth0");
  CHECK(canonical_address("box0") == "box0");
  CHECK(host_and_port("10.0.0.1", 22) == "10.0.0.1:22");
  CHECK(host_and_port("box0", 2200) == "box0:2200");
  CHECK(host_and_port("fd00::1", 22) == "[fd00::1]:22");
}

TEST_CASE("destinations: what people write, and what is none") {
  const auto all = parse_destination("me@there@bastion:2222");
  REQUIRE(all);
  CHECK(all->user == "me@there");
  CHECK(all->host == "bastion");
  CHECK(all->port == 2222);
  for (const char* six : {"fd00::1", "[fd00::1]", "[fd00::1]:22"}) {
    CAPTURE(six);
    const auto parts = parse_destination(six);
    REQUIRE(parts);
    CHECK_FALSE(parts->user);
    CHECK(parts->host == "fd00::1");
    CHECK(parts->port.has_value() == std::string_view(six).ends_with(":22"));
  }
  CHECK(parse_destination("@")->user == "");
  CHECK(parse_destination("")->host.empty());
  for (const char* none : {"h:", "h:0", "h:65536", "h:2x", "h:-1", "[h", "[h]22", "[h]:"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_destination(none));
  }
}
