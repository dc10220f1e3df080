#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/ids.hpp"
#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/aws/launch.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain::aws {

// The subnets and the security group that a cluster's instances are in. Each is asked for when it
// is needed, and once. Throws ApiError, or Error. Thread-safe.
class Network {
 public:
  using Warn = std::function<void(const std::string&)>;
  // The client and the spec outlive it.
  Network(Client& client, const ClusterSpec& spec, Warn warn)
      : client_(client), spec_(spec), warn_(std::move(warn)) {}

  // Where instances of a type may be, in the order in which that is tried: what of its config is
  // another there. The subnets that the config names; else those of the YAML's zones, of the
  // default VPC, or of the only one.
  std::vector<Launch::Place> places(const nlohmann::json& config, const ClusterId& cluster);
  // Where no machine was made: the groups that there are follow the YAML's rules all the same.
  void follow_rules();
  // It has made a group, which AWS may not know everywhere yet.
  bool has_made() const { return has_made_; }

 private:
  struct Subnet {
    std::string id;
    std::string vpc;
    std::string zone;
    bool is_public = false;  // its instances have addresses that are reached from everywhere
    bool is_default = false;
  };
  const std::vector<Subnet>& subnets();
  std::vector<Subnet> of_zones();
  const std::string& vpc_of_choice(const std::vector<Subnet>& all);
  const std::string& group(const std::string& vpc, const ClusterId& cluster);
  struct Group {
    std::string id;       // empty: there is none
    bool ours = false;    // the cluster's, by its tag
    bool is_new = false;  // just made, without rules
  };
  Group find_group(const std::string& vpc, const std::string& name);
  Group make_group(const std::string& vpc, const std::string& name, const ClusterId& cluster);
  void let_in(const std::string& vpc, const Group& group);
  nlohmann::json permissions() const;  // the YAML's own
  nlohmann::json from_here(const std::string& vpc);

  Client& client_;
  const ClusterSpec& spec_;
  const Warn warn_;
  std::mutex mutex_;
  std::optional<std::vector<Subnet>> subnets_;
  std::string vpc_;                            // of choice, once it was made
  std::map<std::string, std::string> groups_;  // by VPC
  bool has_made_ = false;
};

// This machine's address as AWS sees it. Throws Error.
std::string address_seen(Client& client);

}  // namespace dtrain::aws
