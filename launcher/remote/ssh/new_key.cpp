#include "launcher/remote/ssh/new_key.hpp"

#include "launcher/core/error.hpp"
#include "launcher/remote/ssh/handles.hpp"

namespace dtrain::ssh {

std::string NewKey::public_line(const std::string& comment) const {
  return public_key.type + " " + public_key.blob + (comment.empty() ? "" : " " + comment);
}

NewKey make_key() {
  ssh_key made = nullptr;
  if (ssh_pki_generate(SSH_KEYTYPE_ED25519, 0, &made) != SSH_OK) {
    throw Error(ErrorCode::internal, "libssh makes no key");
  }
  const Key owned(made);
  char* text = nullptr;
  if (ssh_pki_export_privkey_base64(made, nullptr, nullptr, nullptr, &text) != SSH_OK) {
    throw Error(ErrorCode::internal, "libssh does not give the key that it has made");
  }
  NewKey key{text, {ssh_key_type_to_char(ssh_key_type(made)), public_blob(made)}};
  ssh_string_free_char(text);
  return key;
}

}  // namespace dtrain::ssh
