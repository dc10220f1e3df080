#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cluster/progress.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/remote/agent_session.hpp"

// One machine's share of a `down`.
namespace dtrain {

struct NodeDown {
  NodeId node;
  std::size_t processes = 0;  // that were there
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::size_t processes_now = 0;  // that are still there
  std::int64_t files_now = 0;
  std::vector<std::string> left;     // what is still there, each with why; empty: nothing
  std::string kept;                  // with keep_files: where the files are
  std::vector<std::string> changed;  // brought by file sync and changed since: they stay
  std::string note;
  std::optional<Error> error;  // it could not be looked at

  bool complete() const noexcept { return !error && left.empty(); }
};

struct NodeDownTask {
  Machine machine;
  ClusterId cluster;
  std::string base;  // provider.root
  bool head = false;
  bool keep_files = false;
  std::chrono::milliseconds grace{10000};
};

// Ends what runs of the cluster on the machine, removes its files and looks for what is left.
// Never throws. Harmless when nothing is there.
NodeDown take_node_down(Provider& provider, const std::shared_ptr<const AgentBinary>& binary,
                        const NodeDownTask& task, const ProgressSink& progress);

}  // namespace dtrain
