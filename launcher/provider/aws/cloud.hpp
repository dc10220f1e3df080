#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/aws/instances.hpp"
#include "launcher/provider/aws/network.hpp"
#include "launcher/provider/aws/prices.hpp"
#include "launcher/provider/aws/provider.hpp"

// What the files of AwsProvider share, and nobody else.
namespace dtrain::aws {

inline constexpr const char* kHostKeyTag = "dtrain-host-key";
// In the cluster's folder: notes of what was asked for, whose account and region that was in.
inline constexpr const char* kIntents = "intents";
inline constexpr const char* kPlaceFile = "account.json";
// And which cluster is known here: launcher/cluster/state.hpp.
inline constexpr const char* kClusterFile = "cluster.json";

struct AwsProvider::Cloud {
  Cloud(const ClusterSpec& spec, const fs::path& state, const Access& access,
        std::function<Launch(const Request&)> launch_of)
      : config(process_variables()),
        http(make_http(config.ca_bundle())),
        client(config, real_world(*http), spec.provider.other.value("region", "us-west-2")),
        network(client, spec, access.warn),
        prices(client, paths::state_home() / kPricesFile),
        instances(client, spec.cluster_name, state / kIntents, std::move(launch_of),
                  [this](const Machine& machine, const Tags& tags) {
                    const std::lock_guard lock(mutex);
                    listed.insert(machine.id);
                    const bool runs = machine.state == MachineState::running;
                    if (machine.head && runs) head = machine;
                    if (machine.state == MachineState::stopped) {
                      stopped.insert(machine.id);
                    } else {
                      stopped.erase(machine.id);
                    }
                    const auto key = tags.find(kHostKeyTag);
                    if (key != tags.end()) host_keys[machine.id] = key->second;
                  }) {}

  // Whose credentials these are.
  std::string account() {
    const std::lock_guard lock(mutex);
    if (account_id.empty()) {
      account_id = client.sts("GetCallerIdentity", {}).at("GetCallerIdentityResult/Account");
    }
    return account_id;
  }

  std::optional<Machine> head_that_runs() {
    const std::lock_guard lock(mutex);
    return head;
  }

  bool has_listed(const std::string& id) {
    const std::lock_guard lock(mutex);
    return listed.contains(id);
  }

  // The tag that says an instance's host key; empty: it has none.
  std::string host_key(const std::string& id, bool fresh) {
    if (!fresh) {
      const std::lock_guard lock(mutex);
      if (const auto known = host_keys.find(id); known != host_keys.end()) return known->second;
    }
    const Xml answer = client.ec2("DescribeTags", {{"Filter.1.Name", "resource-id"},
                                                   {"Filter.1.Value.1", id},
                                                   {"Filter.2.Name", "key"},
                                                   {"Filter.2.Value.1", kHostKeyTag}});
    const std::vector<Xml>& tags = answer.list("tagSet");
    return tags.empty() ? "" : tags.front().at("value");
  }

  Config config;
  std::unique_ptr<Http> http;
  Client client;
  Network network;
  Prices prices;
  Instances instances;
  std::mutex mutex;
  std::set<std::string> listed;  // ids, whenever that was
  // As EC2 last listed them: the tags with instances' host keys, the head's that runs, and those
  // that are stopped.
  std::map<std::string, std::string> host_keys;
  std::optional<Machine> head;
  std::set<std::string> stopped;
  std::string account_id;
};

}  // namespace dtrain::aws
