#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"

// Host keys as OpenSSH's known_hosts files keep them: hashed names, patterns, [host]:port, markers.
namespace dtrain::ssh {

struct HostKey {
  std::string type;  // ssh-ed25519, …
  std::string blob;  // base64, as in the file

  bool operator==(const HostKey&) const = default;
};

// "SHA256:…", as ssh-keygen -l shows it. Throws Error(invalid) when the blob is no base64.
std::string fingerprint(const HostKey& key);

struct KnownKey {
  HostKey key;
  fs::path file;
  int line = 0;
};

// What the files say of one name.
struct KnownKeys {
  std::vector<KnownKey> keys;
  std::vector<KnownKey> revoked;  // @revoked; of any name that matches
  std::vector<KnownKey>
      authorities;  // @cert-authority: host certificates, which libssh cannot check
};

// Reads the lines that match `name` ("host" or "[host]:port"). A broken line is skipped, as OpenSSH
// does it. `file` is only for the result.
void read_known_hosts(std::string_view text, const std::string& name, const fs::path& file,
                      KnownKeys& into);
// The same of files; missing ones are empty.
KnownKeys known_keys(const std::vector<fs::path>& files, const std::string& name);

enum class KeyVerdict { known, unknown, changed, revoked };
KeyVerdict judge(const KnownKeys& known, const HostKey& key);

// Adds a line, under a lock beside the file, unless it is there; makes file (0600) and folders.
void pin(const fs::path& file, const std::string& name, const HostKey& key);
// The same for several at once, and takes out those lines that it, or pin(), has written for
// `removed`.
struct Pin {
  std::string name;
  HostKey key;
};
void change_pins(const fs::path& file, const std::vector<Pin>& added,
                 const std::vector<Pin>& removed);

// `offered` with the algorithms of known keys first, so that a server that has several keys shows
// one that can be compared.
std::vector<std::string> order_algorithms(const std::vector<std::string>& offered,
                                          const KnownKeys& known);

}  // namespace dtrain::ssh
