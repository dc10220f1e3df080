#include "launcher/remote/ssh/host.hpp"

#include <algorithm>

#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kLongestName = 255;
constexpr std::size_t kMostJumps = 8;

bool alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void check_word(std::string_view text, std::string_view others, const char* what) {
  const auto allowed = [&](char c) {
    return alphanumeric(c) || others.find(c) != std::string_view::npos;
  };
  const char* wrong = nullptr;
  if (text.empty()) {
    wrong = " is empty";
  } else if (text.size() > kLongestName) {
    wrong = " is too long";
  } else if (text.front() == '-') {
    wrong = " begins with '-'";
  } else if (!std::all_of(text.begin(), text.end(), allowed)) {
    wrong = " has a character that it may not have";
  }
  if (wrong == nullptr) return;
  throw Error(ErrorCode::invalid,
              std::string(what) + wrong + ": '" + printable(text.substr(0, 80), false) + "'");
}

void check_no_control(std::string_view text, const char* what) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::none_of(text.begin(), text.end(), control)) return;
  throw Error(ErrorCode::invalid, std::string(what) + " has a control character: '" +
                                      printable(text.substr(0, 200), false) + "'");
}

}  // namespace

std::string SshHost::str() const {
  std::string text = user.empty() ? "" : user + "@";
  return text + (port ? host_and_port(host, *port) : host);
}

namespace ssh {

void check_host(std::string_view host) {
  check_word(host, "._-:%", "the host name");
}

void check_user(std::string_view user) {
  check_word(user, "._-+@", "the user name");
}

void check_port(int port) {
  if (port >= 1 && port <= 65535) return;
  throw Error(ErrorCode::invalid, "there is no port " + std::to_string(port));
}

void check(const SshHost& host) {
  check_host(host.host);
  if (!host.user.empty()) check_user(host.user);
  if (host.port) check_port(*host.port);
  check_no_control(host.identity.native(), "the name of the private key's file");
  check_no_control(host.proxy_command, "the proxy command");
  if (host.jumps.size() > kMostJumps) {
    throw Error(ErrorCode::invalid, "there are more than 8 jump hosts");
  }
  for (const SshHost& jump : host.jumps) check(jump);
}

SshHost parse_host(std::string_view text) {
  std::string_view rest = text;
  constexpr std::string_view kScheme = "ssh://";
  if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
    if (rest.ends_with('/')) rest.remove_suffix(1);
  }
  const auto parts = parse_destination(rest);
  if (!parts) {
    throw Error(ErrorCode::invalid, "this is no host, or its port is not from 1 to 65535: '" +
                                        printable(text.substr(0, 80), false) + "'");
  }
  if (parts->user) check_user(*parts->user);
  check_host(parts->host);
  SshHost parsed;
  parsed.user = parts->user.value_or("");
  parsed.host = parts->host;
  parsed.port = parts->port;
  return parsed;
}

std::vector<SshHost> parse_jumps(std::string_view text) {
  std::vector<SshHost> jumps;
  if (text.empty() || text == "none") return jumps;
  for (const std::string& part : split(text, ',')) {
    if (jumps.size() == kMostJumps) {
      throw Error(ErrorCode::invalid, "there are more than 8 jump hosts");
    }
    jumps.push_back(parse_host(part));
  }
  return jumps;
}

}  // namespace ssh
}  // namespace dtrain
