#pragma once

#include <string>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/wire/identity.hpp"

namespace dtrain::head {

struct JoinScript {
  ClusterId cluster;
  NodeId node;
  std::vector<std::string> addresses;  // of the head, numeric, in the order in which to try them
  int port = 0;
  std::string place;  // of a head that moves: the file that says where it is now, HeadRoot::place()
  wire::CertifiedKey credential;
  std::string ca_pem;
  std::string agent;  // its sum
};

// What a machine runs to become the node: POSIX sh, also busybox's, from a file, from stdin or as
// boot data. Unless it has the agent already, in a home that it shares say, it fetches that from
// the head with whichever of curl, python3 and openssl is there, past any proxy, from nobody but
// who shows a certificate of this CA with the name `head`, and checks its sum. It starts it, which
// asks to join; and leaves nothing of the credential.
std::string join_script(const JoinScript& what);

}  // namespace dtrain::head
