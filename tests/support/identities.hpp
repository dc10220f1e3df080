#pragma once

#include <string>

#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

inline const ClusterId kLab{"lab-abcdef"};

// A cluster's CA, and identities signed by it, in a temporary folder or elsewhere.
class Cluster {
 public:
  explicit Cluster(ClusterId id = kLab)
      : id_(std::move(id)), ca_(wire::make_ca(id_, std::chrono::system_clock::now())) {}

  fs::path identity(wire::PeerName::Role role, const std::string& node,
                    WallTime now = std::chrono::system_clock::now()) const {
    save(folder(node), role, node, now);
    return folder(node);
  }
  // The same, elsewhere.
  void save(const fs::path& path, wire::PeerName::Role role, const std::string& node,
            WallTime now = std::chrono::system_clock::now()) const {
    const std::string key = wire::make_key();
    const wire::PeerName name{id_, role, NodeId(node)};
    wire::save_identity(path, key,
                        wire::sign_request(ca_, wire::make_request(key, name), name, now),
                        ca_.certificate_pem);
  }

  fs::path folder(const std::string& node) const { return folder_.path() / node; }

 private:
  TemporaryFolder folder_;
  ClusterId id_;
  wire::CertifiedKey ca_;
};

}  // namespace dtrain::testing
