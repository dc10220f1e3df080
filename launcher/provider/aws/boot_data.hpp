#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtrain::ssh {
struct NewKey;
}

namespace dtrain::aws {

// EC2 takes so many bytes, before they are base64.
inline constexpr std::size_t kMostBootData = 16384;

// What instances of one request start with, by cloud-init; each of it may be empty.
struct BootData {
  // Each instance runs the script of its number in the request, the first being 0; what asks for
  // that number is curl or python3.
  std::vector<std::string> scripts;
  std::string settings;  // a #cloud-config, for all of them
  // What the person gives, whatever it is: cloud-init sees that by its first line.
  std::string users;
  // Who runs the script, as after a login, and behind all else that is done at the start; what it
  // prints goes to /var/log/dtrain-join.log. Empty: root, in its turn.
  std::string user = {};
};

// A #cloud-config: of a host key that is made for it, or null, and of whom it lets in, or empty.
// `restarts`: scripts are run each time that the machine starts.
std::string settings_of(const ssh::NewKey* host_key, const std::string& login_key,
                        bool restarts = false);

// Compressed; it may be larger than EC2 takes. Empty: there is nothing.
std::string packed(const BootData& data);

}  // namespace dtrain::aws
