#pragma once

#include <doctest/doctest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/cluster/down.hpp"
#include "launcher/cluster/up.hpp"
#include "launcher/core/error.hpp"
#include "tests/launcher/remote/session_support.hpp"
#include "tests/support/fake_cloud.hpp"
#include "tests/support/patience.hpp"

// Clusters of machines that are made: a cloud in memory whose machines are all this one, with real
// agents, in a home of the test's own.
namespace dtrain::testing {

struct House {
  House() {
    cloud->transport = [] { return std::make_unique<LocalTransport>(); };
  }
  ~House() { end_processes(home.path()); }

  UpOptions options() const {
    UpOptions how;
    how.agent = DTRAIN_AGENT_BINARY;
    how.provider = std::make_shared<FakeCloudProvider>(cloud, "c");
    how.may_make = [](const ClusterPlan&) { return true; };
    return how;
  }
  UpReport up_now(bool replace = false) {
    UpOptions how = options();
    how.replace = replace;
    return up(spec, how);
  }
  DownReport down_now(const std::stop_token& stop = {}, bool workers_only = false) const {
    DownOptions how;
    how.workers_only = workers_only;
    how.agent = DTRAIN_AGENT_BINARY;
    how.provider = std::make_shared<FakeCloudProvider>(cloud, "c");
    how.access.stop = stop;
    return down("c", how);
  }
  // What a head is told that may ask for more machines; none is ever made.
  wire::WantedMachines wanted_machines() const {
    wire::WantedMachines told;
    told.provider = "aws";
    told.scaler = (home.path() / "no-scaler").string();
    told.types = {{"gpu", 0, "one", {}}};
    told.types.front().max_workers = 4;
    told.environment = {"NAME=value"};
    told.down_when_idle = {std::chrono::hours(2), false};
    return told;
  }
  void workers(int count) { spec.node_types[1].min_workers = count; }

  static ClusterSpec cluster() {
    ClusterSpec spec;
    spec.cluster_name = "c";
    spec.provider.kind = ProviderKind::aws;
    spec.max_workers = 10;
    NodeType head;
    head.name = "head";
    NodeType gpu;
    gpu.name = "gpu";
    gpu.min_workers = 1;
    spec.node_types = {head, gpu};
    spec.head_node_type = "head";
    return spec;
  }

  Home home;
  VariableIs state{"XDG_STATE_HOME", (home.path() / "laptop").string()};
  VariableIs door{"DTRAIN_HEAD_SOCKET", std::nullopt};
  VariableIs chosen{"DTRAIN_CLUSTER", std::nullopt};
  VariableIs spare{"DTRAIN_SPARE_ROOT", (home.path() / "spare").string()};
  std::shared_ptr<FakeCloud> cloud = std::make_shared<FakeCloud>();
  ClusterSpec spec = cluster();
};

// "node-0 i-1, node-1: why not"
inline std::string names(const UpReport& report) {
  std::vector<std::string> nodes;
  for (const Machine& machine : report.nodes) {
    nodes.push_back(machine.node.str() + " " + machine.id);
  }
  for (const NodeUp& node : report.each) {
    if (node.error) nodes.push_back(node.machine.node.str() + ": " + node.error->what());
  }
  return join(nodes, ", ");
}

// What another thread does, so many times.
class Awaited {
 public:
  explicit Awaited(int times = 1) : left_(times) {}
  void happens() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  // False when it took too long.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return left_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

// "node-1 machine stopping i-2: it is being given back"
inline std::vector<std::string> not_gone(const DownReport& report) {
  std::vector<std::string> rows;
  for (const DownRow& row : report.rows) {
    if (!row.gone) rows.push_back(row.node + " " + row.what + " " + row.now + " " + row.note);
  }
  return rows;
}

using Lines = std::vector<std::string>;

}  // namespace dtrain::testing
