#include "launcher/remote/ssh/keyring.hpp"

#include <openssl/crypto.h>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/remote/ssh/handles.hpp"

namespace dtrain::ssh {
namespace {

constexpr std::size_t kLargestKey = std::size_t{256} << 10;
constexpr int kPassphraseTries = 3;

}  // namespace

void FreeKey::operator()(ssh_key_struct* key) const noexcept {
  ssh_key_free(key);
}

std::optional<OpensshKeyFile> read_openssh_key(std::string_view text) {
  constexpr std::string_view kBegin = "-----BEGIN OPENSSH PRIVATE KEY-----";
  constexpr std::string_view kEnd = "-----END OPENSSH PRIVATE KEY-----";
  constexpr std::string_view kMagic{"openssh-key-v1\0", 15};
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) {
    return std::nullopt;
  }
  std::string base64;
  for (const char c : text.substr(begin + kBegin.size(), end - begin - kBegin.size())) {
    if (c != '\n' && c != '\r' && c != ' ') base64 += c;
  }
  const std::string bytes = decode_base64(base64);
  if (std::string_view(bytes).substr(0, kMagic.size()) != kMagic) return std::nullopt;
  BlobReader reader(std::string_view(bytes).substr(kMagic.size()));
  const auto cipher = reader.text();
  const auto kdf = reader.text();
  const auto kdf_options = reader.text();
  const auto count = reader.number();
  const auto key = reader.text();
  if (!cipher || !kdf || !kdf_options || count != 1U || !key) return std::nullopt;
  return OpensshKeyFile{*cipher != "none", encode_base64(*key)};
}

std::shared_ptr<Keyring::Entry> Keyring::entry(const fs::path& file) {
  const std::lock_guard guard(mutex_);
  std::shared_ptr<Entry>& found = entries_[file];
  if (!found) found = std::make_shared<Entry>();
  return found;
}

void Keyring::look_at(Entry& entry, const fs::path& file) {
  if (entry.looked) return;
  entry.looked = true;
  Look& look = entry.look;
  try {
    const auto text = read_file_if_there(file, kLargestKey);
    look.there = text.has_value();
    if (!text) {
      look.trouble = "there is no file " + file.native();
    } else if (const auto openssh = read_openssh_key(*text)) {
      look.encrypted = openssh->encrypted;
      look.public_blob = openssh->public_blob;
    } else {
      look.encrypted = text->find("ENCRYPTED") != std::string::npos;
    }
    if (look.public_blob.empty()) {
      if (const auto half = read_file_if_there(file.native() + ".pub", kLargestKey)) {
        const auto words = split(*half, ' ');
        if (words.size() >= 2 && !decode_base64(words[1]).empty()) look.public_blob = words[1];
      }
    }
  } catch (const Error& error) {
    look.trouble = error.message();
  }
}

Keyring::Look Keyring::look(const fs::path& file) {
  const auto found = entry(file);
  const std::lock_guard guard(found->mutex);
  look_at(*found, file);
  return found->look;
}

OwnedKey Keyring::unlock(
    const fs::path& file,
    const std::function<std::optional<std::string>(const std::string& prompt)>& ask) {
  const auto found = entry(file);
  const std::lock_guard guard(found->mutex);  // the others wait for the one that asks
  look_at(*found, file);
  if (!found->look.trouble.empty()) throw Error(ErrorCode::invalid, found->look.trouble);
  if (!found->key && !found->look.encrypted) {
    ssh_key key = nullptr;
    if (ssh_pki_import_privkey_file(file.c_str(), nullptr, nullptr, nullptr, &key) != SSH_OK) {
      throw Error(ErrorCode::invalid, file.native() + " is not a private key that can be read");
    }
    found->key.reset(key);
  }
  for (int tried = 0; !found->key && !found->given_up && tried < kPassphraseTries; ++tried) {
    auto passphrase = ask("Passphrase of " + file.native() + ": ");
    if (!passphrase) break;
    ssh_key key = nullptr;
    const int rc =
        ssh_pki_import_privkey_file(file.c_str(), passphrase->c_str(), nullptr, nullptr, &key);
    OPENSSL_cleanse(passphrase->data(), passphrase->size());
    if (rc == SSH_OK) found->key.reset(key);
  }
  if (!found->key) {
    found->given_up = true;
    return nullptr;
  }
  return OwnedKey(ssh_key_dup(found->key.get()));
}

}  // namespace dtrain::ssh
