#include "launcher/remote/ssh/handles.hpp"

#include <new>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::ssh {
namespace {

void must(int rc, const Session& session) {
  if (rc == SSH_OK) return;
  throw Error(ErrorCode::invalid,
              "libssh refuses an option: " + printable(ssh_get_error(session.get()), false));
}

}  // namespace

Session make_session() {
  Session session(ssh_new());
  if (!session) throw std::bad_alloc();
  set_option(session, SSH_OPTIONS_PROCESS_CONFIG, 0);
  return session;
}

void set_option(const Session& session, ssh_options_e option, const std::string& value) {
  must(ssh_options_set(session.get(), option, value.c_str()), session);
}

void set_option(const Session& session, ssh_options_e option, int value) {
  must(ssh_options_set(session.get(), option, &value), session);
}

std::string public_blob(ssh_key key) {
  char* text = nullptr;
  if (ssh_pki_export_pubkey_base64(key, &text) != SSH_OK || text == nullptr) return {};
  std::string blob = text;
  ssh_string_free_char(text);
  return blob;
}

}  // namespace dtrain::ssh
