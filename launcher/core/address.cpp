#include "launcher/core/address.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/number.hpp"

namespace dtrain {
namespace {

bool parses(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(family, text.c_str(), bytes.data()) == 1;
}

}  // namespace

bool is_ipv6_address(std::string_view text) {
  const std::size_t zone = text.find('%');
  if (zone != std::string_view::npos && zone + 1 == text.size()) return false;
  return parses(AF_INET6, std::string(text.substr(0, zone)));
}

bool is_numeric_address(std::string_view text) {
  return parses(AF_INET, std::string(text)) || is_ipv6_address(text);
}

std::string canonical_address(std::string_view text) {
  for (const int family : {AF_INET, AF_INET6}) {
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    std::array<char, INET6_ADDRSTRLEN> written{};
    if (::inet_pton(family, std::string(text).c_str(), bytes.data()) != 1) continue;
    return ::inet_ntop(family, bytes.data(), written.data(), written.size());
  }
  return std::string(text);
}

std::string host_and_port(std::string_view host, int port) {
  const bool brackets = host.find(':') != std::string_view::npos;
  return (brackets ? "[" + std::string(host) + "]" : std::string(host)) + ":" +
         std::to_string(port);
}

std::optional<Destination> parse_destination(std::string_view text) {
  Destination parts;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    parts.user = std::string(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  const bool bracketed = text.starts_with('[');
  if (bracketed) text.remove_prefix(1);
  std::size_t end = text.find(bracketed ? ']' : ':');
  if (bracketed && end == std::string_view::npos) return std::nullopt;
  if (!bracketed && text.rfind(':') != end) end = std::string_view::npos;
  parts.host = std::string(text.substr(0, end));
  text.remove_prefix(std::min(parts.host.size() + (bracketed ? 1 : 0), text.size()));
  if (text.empty()) return parts;
  parts.port = number_from<int>(text.substr(1));
  const bool fine = text.front() == ':' && parts.port && *parts.port >= 1 && *parts.port <= 65535;
  return fine ? std::optional(std::move(parts)) : std::nullopt;
}

}  // namespace dtrain
