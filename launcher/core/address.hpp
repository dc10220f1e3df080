#pragma once

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

}  // namespace dtrain
