#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/core/files.hpp"

struct ssh_key_struct;

namespace dtrain::ssh {

struct FreeKey {
  void operator()(ssh_key_struct* key) const noexcept;
};
using OwnedKey = std::unique_ptr<ssh_key_struct, FreeKey>;

// The private keys that one command uses: each is read once, and its passphrase asked once, however
// many hosts it opens. Thread-safe. Nothing is ever written.
class Keyring {
 public:
  struct Look {
    bool there = false;
    bool encrypted = false;
    std::string trouble;      // why it is of no use, if it is not
    std::string public_blob;  // base64, from FILE.pub or the file itself; empty: not known
  };
  Look look(const fs::path& file);

  // The private key, decrypted if need be with what `ask` gives for a prompt; nothing when it gives
  // nothing, or three wrong ones: then nobody is asked for this key again. Throws Error(invalid)
  // for a file that is no key.
  OwnedKey unlock(const fs::path& file,
                  const std::function<std::optional<std::string>(const std::string& prompt)>& ask);

 private:
  struct Entry {
    std::mutex mutex;
    bool looked = false;
    Look look;
    OwnedKey key;
    bool given_up = false;
  };
  std::shared_ptr<Entry> entry(const fs::path& file);
  static void look_at(Entry& entry, const fs::path& file);

  std::mutex mutex_;
  std::map<fs::path, std::shared_ptr<Entry>> entries_;
};

// What an OpenSSH private key file says in the clear: whether it is encrypted, and its public half.
struct OpensshKeyFile {
  bool encrypted = false;
  std::string public_blob;  // base64
};
std::optional<OpensshKeyFile> read_openssh_key(std::string_view text);

}  // namespace dtrain::ssh
