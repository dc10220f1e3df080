#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"

namespace dtrain {

// A machine as somebody wrote it. What is empty comes from ~/.ssh/config.
struct SshHost {
  std::string host;  // name, address or alias; IPv6 without brackets
  std::optional<int> port;
  std::string user;
  fs::path identity;           // a private key file; tried before all others
  std::string proxy_command;   // run by sh; %h %p %r %n %% are replaced
  std::vector<SshHost> jumps;  // in order, the first one reached from here

  // "user@host:port" as far as written; IPv6 in brackets.
  std::string str() const;
};

namespace ssh {

// The allow-lists for what may become part of a command line or a file's line. They throw
// Error(invalid) that shows the text. A host is letters, digits and . _ - : %, a user letters,
// digits and . _ - + @; neither begins with '-'. Nothing is resolved.
void check_host(std::string_view host);
void check_user(std::string_view user);
void check_port(int port);
// All of them, and that paths and commands hold no control characters. Jumps too.
void check(const SshHost& host);

// "host", "user@host", "user@host:22", "[2001:db8::1]:22", "ssh://user@host:22". Throws
// Error(invalid).
SshHost parse_host(std::string_view text);
// What ProxyJump means: several by commas; "none" and "" are no jump.
std::vector<SshHost> parse_jumps(std::string_view text);

}  // namespace ssh
}  // namespace dtrain
