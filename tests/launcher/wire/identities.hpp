#pragma once

#include <string>

#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

inline const ClusterId kLab{"lab-abcdef"};

// A cluster's CA, and identities signed by it, in a temporary folder.
class Cluster {
 public:
  explicit Cluster(ClusterId id = kLab)
      : id_(std::move(id)), ca_(wire::make_ca(id_, std::chrono::system_clock::now())) {}

  fs::path identity(wire::PeerName::Role role, const std::string& node,
                    WallTime now = std::chrono::system_clock::now()) {
    const fs::path path = folder_.path() / node;
    const std::string key = wire::make_key();
    const wire::PeerName name{id_, role, NodeId(node)};
    wire::save_identity(path, key,
                        wire::sign_request(ca_, wire::make_request(key, name), name, now),
                        ca_.certificate_pem);
    return path;
  }

  fs::path folder(const std::string& node) const { return folder_.path() / node; }

 private:
  TemporaryFolder folder_;
  ClusterId id_;
  wire::CertifiedKey ca_;
};

}  // namespace dtrain::testing
