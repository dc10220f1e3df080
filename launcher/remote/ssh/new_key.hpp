#pragma once

#include <string>

#include "launcher/remote/ssh/known_hosts.hpp"

namespace dtrain::ssh {

// An ed25519 key pair.
struct NewKey {
  std::string private_text;  // as OpenSSH's files have it, without a passphrase
  HostKey public_key;

  // "ssh-ed25519 AAAA… COMMENT", as authorized_keys has it.
  std::string public_line(const std::string& comment = {}) const;
};
// Throws Error(internal) where libssh cannot.
NewKey make_key();

}  // namespace dtrain::ssh
