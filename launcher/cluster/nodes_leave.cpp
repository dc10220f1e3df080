#include "launcher/cluster/nodes_leave.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/node_down.hpp"
#include "launcher/cluster/work_queue.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

class Leaving {
 public:
  Leaving(Provider& provider, const ClusterState& state, const std::vector<Machine>& machines,
          const HeadDoor& door, const UpOptions& options)
      : provider_(provider),
        state_(state),
        machines_(machines),
        client_(door.socket(), state.name),
        options_(options),
        results_(machines.size()),
        in_cluster_(machines.size()),
        binary_(AgentBinary::load(options.agent)) {}

  void run(const std::function<void(const std::vector<NodeGone>&)>& gone) {
    const std::jthread pool([&] {
      side_by_side(machines_.size(), static_cast<std::size_t>(options_.max_parallel),
                   [&](std::size_t) { finish(ready_.take()); });
    });
    drain_all();
    std::exception_ptr defect;  // the pool ends only when all are done
    auto pause = milliseconds(20);
    auto next_look = std::chrono::steady_clock::now() + pause;
    for (std::size_t left = machines_.size(); left > 0;) {
      const auto now = std::chrono::steady_clock::now();
      if (!draining_.empty() && (now >= next_look || stopped())) {
        look();
        pause = std::min(pause * 2, milliseconds(1000));
        next_look = std::chrono::steady_clock::now() + pause;
        continue;
      }
      const auto wait = std::chrono::ceil<milliseconds>(next_look - now);
      auto done =
          draining_.empty() ? std::optional(done_.take()) : done_.take(wait, options_.access.stop);
      std::vector<NodeGone> nodes;
      for (; done; done = done_.take(milliseconds(0), {})) nodes.push_back(*results_[*done]);
      left -= nodes.size();
      try {
        if (!nodes.empty()) gone(nodes);
      } catch (...) {
        defect = std::current_exception();
      }
    }
    if (defect) std::rethrow_exception(defect);
  }

 private:
  bool stopped() const { return options_.access.stop.stop_requested(); }

  std::string route(std::size_t i) const {
    return "/v1/nodes/" + wire::percent_encode(machines_[i].node.str());
  }

  void tell(std::size_t i, NodeProgress::State at, const std::string& text) const {
    options_.progress({machines_[i].node, at, "leave", text, milliseconds(0)});
  }

  // As the head says them; who is not among them has left.
  std::map<NodeId, std::string> states() const {
    std::map<NodeId, std::string> states;
    const nlohmann::json status = client_.get("/v1/status");
    for (const nlohmann::json& each : wire::member(status, "nodes")) {
      states.emplace(wire::get_string(each, "node"), wire::get_string(each, "state"));
    }
    return states;
  }

  // Nothing more is done with it.
  void settle(std::size_t i, std::string why) {
    tell(i, NodeProgress::State::failed, why);
    results_[i] = NodeGone{i, std::move(why), false, false};
    ready_.put(i);
  }

  void drain_all() {
    for (std::size_t i = 0; i < machines_.size(); ++i) draining_.insert(i);
    std::map<NodeId, std::string> now;
    if (!ask(now)) return;
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      const auto state = now.find(machines_[i].node);
      in_cluster_[i] = state != now.end() ? 1 : 0;
      const bool lives = state != now.end() && state->second != "lost";
      try {
        if (machines_[i].state != MachineState::gone && lives) {
          tell(i, NodeProgress::State::at_work, "draining");
          client_.post(route(i) + "/drain", nlohmann::json::object());
          continue;
        }
        ready_.put(i);  // lost ones take nothing new as they are
      } catch (const Error& error) {
        settle(i, error.what());
      }
      draining_.erase(i);
    }
    until_ = std::chrono::steady_clock::now() + options_.drain_limit;
    look();
  }

  // False when the head does not answer: then none of them leaves.
  bool ask(std::map<NodeId, std::string>& now) {
    try {
      now = states();
      return true;
    } catch (const Error& error) {
      for (const std::size_t i : std::exchange(draining_, {})) settle(i, error.what());
      return false;
    }
  }

  void look() {
    if (stopped()) {
      for (const std::size_t i : std::exchange(draining_, {})) settle(i, "still draining");
      return;
    }
    std::map<NodeId, std::string> now;
    if (draining_.empty() || !ask(now)) return;
    const bool over = std::chrono::steady_clock::now() >= until_;
    std::erase_if(draining_, [&](std::size_t i) {
      const auto state = now.find(machines_[i].node);
      if (state != now.end() && state->second == "draining" && !over) {
        tell(i, NodeProgress::State::at_work, "draining: its ranks run on");
        return false;
      }
      ready_.put(i);
      return true;
    });
  }

  // In the pool.
  void finish(std::size_t i) {
    if (!results_[i]) {
      try {
        if (stopped()) throw Error(ErrorCode::failed, "stays, for this up was stopped");
        results_[i] = leave(i);
      } catch (const std::exception& error) {
        tell(i, NodeProgress::State::failed, error.what());
        results_[i] = NodeGone{i, error.what(), false, false};
      }
    }
    done_.put(i);
  }

  NodeGone leave(std::size_t i) const {
    const wire::ApiClient client(client_.socket(), state_.name);
    if (machines_[i].state == MachineState::gone) {  // nothing can run there any more
      client.post(route(i) + "/remove", {{"force", true}});
      return {i, "left the cluster; its machine is gone", true, true};
    }
    // One that has left, and could not be cleaned then, is cleaned now.
    if (in_cluster_[i] != 0) client.post(route(i) + "/remove", nlohmann::json::object());
    NodeDownTask task;
    task.machine = machines_[i];
    task.cluster = state_.id;
    task.base = base_of(state_);
    const NodeDown cleaned = take_node_down(provider_, binary_, task, options_.progress);
    if (cleaned.error) {
      return {i, "left the cluster; not cleaned: " + cleaned.error->message(), false, true};
    }
    if (!cleaned.left.empty()) {
      return {i, "left the cluster; still there: " + join(cleaned.left, ", "), false, true};
    }
    return {i, "left the cluster; " + std::to_string(cleaned.files) + " files removed", true, true};
  }

  Provider& provider_;
  const ClusterState& state_;
  const std::vector<Machine>& machines_;
  const wire::ApiClient client_;
  const UpOptions& options_;
  std::chrono::steady_clock::time_point until_;  // from when all are asked to drain
  // Of each, written before it is put.
  std::vector<std::optional<NodeGone>> results_;
  std::vector<char> in_cluster_;
  const std::shared_ptr<const AgentBinary> binary_;
  std::set<std::size_t> draining_;
  WorkQueue ready_;  // to be removed and cleaned
  WorkQueue done_;
};

}  // namespace

void take_nodes_away(Provider& provider, const ClusterState& state,
                     const std::vector<Machine>& machines, const HeadDoor& door,
                     const UpOptions& options,
                     const std::function<void(const std::vector<NodeGone>& nodes)>& gone) {
  if (machines.empty()) return;
  Leaving(provider, state, machines, door, options).run(gone);
}

}  // namespace dtrain
