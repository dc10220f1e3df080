#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/paths.hpp"

namespace dtrain::watch {

struct ChildSpec {
  std::string name;
  std::vector<std::string> argv;
  bool operator==(const ChildSpec&) const = default;
};

// watch.json: {"children": [{"name": "node-0", "argv": ["/…/dtrain-agent", "node", …]}…]}.
// Throws Error(invalid) with the path.
std::vector<ChildSpec> read_children(const paths::WatchRoot& root);

// When a child that ended is started again: at once after a life of 10 s or more, then after 100
// ms, doubling up to 10 s. Pure.
class Backoff {
 public:
  std::chrono::milliseconds next(std::chrono::milliseconds lived);

 private:
  std::chrono::milliseconds wait_{0};
};

// Parent of the head and node agents of one machine: starts each child of watch.json that does not
// run yet, and starts a dead one again. SIGTERM ends it and leaves the children running; SIGHUP
// reads watch.json again and starts the children that are new in it. Writes watch.pid. Holds
// watch.lock; Error(conflict) when another watch does, but for a contained one when that is on
// another machine, by watch.pid: it may be cut off, and whose turn it is the heads settle.
//
// `contained` is the foreground form, for PID 1 of a container or a task of srun; README.md tells
// it whole. It reaps whatever is left to it. SIGTERM, SIGINT, or the end of a node agent by itself
// ends it: node agents leave the cluster, then the head ends, then all that descends from it, all
// within that time. Gives 0, kCutShort, or what a node agent failed with.
int watch_main(const paths::WatchRoot& root,
               std::optional<std::chrono::milliseconds> contained = std::nullopt);

// Of a contained watch: something was killed before its time, or the head does not know all.
inline constexpr int kCutShort = 3;
// What a node agent fails with that has left for good, and whose files stay: it is not started
// again.
inline constexpr int kLeftFiles = 4;

}  // namespace dtrain::watch
