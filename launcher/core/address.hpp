#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dtrain {

// "10.0.0.1" or "fd00::1", without brackets; a zone (%eth0) may follow an IPv6 address.
bool is_numeric_address(std::string_view text);
bool is_ipv6_address(std::string_view text);
// As the kernel writes it: fd00:0::A is fd00::a. What is no address stays as it is.
std::string canonical_address(std::string_view text);

// "host:22", "[fd00::1]:22".
std::string host_and_port(std::string_view host, int port);

// "user@host:22", "[fd00::1]:22", or an IPv6 address alone, which has several colons. What stands
// for user and host is not looked at; absent where brackets are not closed or the port is none.
struct Destination {
  std::optional<std::string> user;
  std::string host;
  std::optional<int> port;
};
std::optional<Destination> parse_destination(std::string_view text);

}  // namespace dtrain
