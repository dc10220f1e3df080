#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/remote/ssh/host.hpp"

namespace dtrain::ssh {

// What happens with a host whose key nobody knows yet. A changed key is always refused.
enum class UnknownKey : std::uint8_t { ask, refuse, accept };

// How one host is reached, all asked and expanded: what OpenSSH's client would do.
struct Settings {
  std::string host;      // as written
  std::string hostname;  // where to connect
  int port = 22;
  std::string user;
  std::vector<fs::path> identities;    // private keys in the order of the configuration
  std::vector<fs::path> certificates;  // CertificateFile
  bool identity_given = false;         // the first identity was named for this host by our caller
  bool identities_only = false;
  std::string agent_socket;   // empty: no agent
  std::string proxy_command;  // expanded; to be run by sh -c
  std::vector<SshHost> jumps;
  std::string host_key_alias;
  std::vector<fs::path> known_hosts;  // the user's, then the global ones
  UnknownKey unknown_key = UnknownKey::ask;
  std::vector<std::string> ciphers, kex, macs, host_key_algorithms;  // allowed; empty: our own
  int address_family = 0;  // AF_UNSPEC, AF_INET or AF_INET6
  std::string bind_address;
  std::optional<std::chrono::seconds> connect_timeout;
  bool public_key = true;
  bool keyboard_interactive = true;
  bool password = true;
  std::vector<std::string> warnings;  // for a person, once

  // Under what name the host's key is known: the alias, "hostname", or "[hostname]:port".
  std::string key_name() const;
};

// Asks `ssh -G`, at most 10 s; without an SSH client libssh's own parser, with a warning. `config`:
// a file in place of ~/.ssh/config and the system's; empty: those. Throws Error(invalid) for names
// that may not reach a command line, whether written or configured.
Settings resolve(const SshHost& host, const fs::path& config);

// The pure half: what `ssh -G` printed, with `host` laid over it.
Settings settings_from(std::string_view printed, const SshHost& host);

// Replaces %h %p %r %n %% (and %u %d %i %l %L in paths). Every value has been checked; an unknown
// one is an Error(invalid).
std::string expand_tokens(std::string_view text, const Settings& settings);

}  // namespace dtrain::ssh
