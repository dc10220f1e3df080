#pragma once

#include <libssh/libssh.h>

#include <memory>
#include <string>

// libssh's handles with owners. Only .cpp files of this folder include it.
namespace dtrain::ssh {

struct Free {
  void operator()(ssh_session session) const noexcept { ssh_free(session); }
  void operator()(ssh_key key) const noexcept { ssh_key_free(key); }
};
using Session = std::unique_ptr<ssh_session_struct, Free>;
using Key = std::unique_ptr<ssh_key_struct, Free>;

Session make_session();
// Throws Error(invalid) with libssh's words.
void set_option(const Session& session, ssh_options_e option, const std::string& value);
void set_option(const Session& session, ssh_options_e option, int value);

// Base64 of the public half, and its type.
std::string public_blob(ssh_key key);

}  // namespace dtrain::ssh
