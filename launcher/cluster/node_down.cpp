#include "launcher/cluster/node_down.hpp"

#include <condition_variable>
#include <mutex>

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

std::string in_words(const wire::AgentProcess& process) {
  return process.what + " (pid " + std::to_string(process.pid) + ")";
}

void survey_again(AgentSession& session, const NodeDownTask& task, NodeDown& result) {
  const wire::SurveyReport after = session.survey({task.head});
  result.processes_now = after.processes.size();
  result.files_now = after.files;
  for (const wire::AgentProcess& process : after.processes) {
    result.left.push_back("process " + in_words(process));
  }
  if (after.sockets > 0) result.left.push_back(std::to_string(after.sockets) + " sockets");
  if (after.port_open) result.left.push_back("port " + std::to_string(after.port) + " is open");
  if (after.unit) result.left.push_back("a unit of systemd");
  for (const std::string& path : after.paths) result.left.push_back(path);
}

}  // namespace

NodeDown take_node_down(Provider& provider, const std::shared_ptr<const AgentBinary>& binary,
                        const NodeDownTask& task, const ProgressSink& progress) {
  NodeDown result;
  result.node = task.machine.node;
  std::string step = "connect";
  const auto tell = [&](NodeProgress::State state, const std::string& text) {
    progress({task.machine.node, state, step, text, std::chrono::milliseconds(0)});
  };
  try {
    tell(NodeProgress::State::at_work, "");
    const std::unique_ptr<Transport> transport = provider.reach(task.machine);
    AgentSession session = AgentSession::open(*transport, binary);
    session.open_node({task.cluster, task.machine.node, task.base, false, task.head, {}});
    const wire::SurveyReport before = session.survey({task.head});
    result.processes = before.processes.size();
    result.files = before.files;
    result.bytes = before.bytes;
    step = "stop";
    tell(NodeProgress::State::at_work, "");
    if (before.unit) session.persist(false);
    const wire::StopReport stopped = session.stop_agents({task.head, task.grace.count()});
    if (!stopped.killed.empty()) {
      result.note = std::to_string(stopped.killed.size()) + " killed";
    }
    step = "clean";
    tell(NodeProgress::State::at_work, "");
    if (stopped.left.empty()) {
      const wire::RemoveReport removed = session.remove_files({task.head, task.keep_files});
      result.kept = removed.kept;
      for (const std::string& left : removed.left) result.left.push_back(left);
      result.changed = removed.changed;
    }
    survey_again(session, task, result);
    if (!result.kept.empty()) {
      std::erase_if(result.left, [&](const std::string& left) { return left == result.kept; });
    }
    tell(result.left.empty() ? NodeProgress::State::ready : NodeProgress::State::failed,
         join(result.left, ", "));
  } catch (Error& error) {
    // The connection says itself where it was going.
    if (step != "connect" || error.context().empty()) {
      error.while_doing(step + " on " + task.machine.node.str());
    }
    result.error = error;
    tell(NodeProgress::State::failed, error.message());
  }
  return result;
}

namespace {

// The node's state as the head says it; "gone" when it does not know it.
std::string state_of(const wire::ApiClient& client, const NodeId& node) {
  const nlohmann::json status = client.get("/v1/status");
  for (const nlohmann::json& each : wire::member(status, "nodes")) {
    if (wire::get_string(each, "node") == node.str()) return wire::get_string(each, "state");
  }
  return "gone";
}

}  // namespace

NodeGone take_node_away(Provider& provider, const ClusterState& state, const Machine& machine,
                        const HeadDoor& door, const UpOptions& options) {
  using std::chrono::milliseconds;
  const wire::ApiClient client(door.socket(), state.name);
  const std::string route = "/v1/nodes/" + wire::percent_encode(machine.node.str());
  const auto tell = [&](NodeProgress::State at, const std::string& text) {
    options.progress({machine.node, at, "leave", text, milliseconds(0)});
  };
  try {
    if (machine.state == MachineState::gone) {  // nothing can run there any more
      client.post(route + "/remove", {{"force", true}});
      return {"left the cluster; its machine is gone", true, true};
    }
    tell(NodeProgress::State::at_work, "draining");
    const auto until = std::chrono::steady_clock::now() + options.drain_limit;
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    auto pause = milliseconds(20);
    std::string now = state_of(client, machine.node);
    if (now != "lost") {  // which takes nothing new as it is
      client.post(route + "/drain", nlohmann::json::object());
      now = state_of(client, machine.node);
    }
    while (now == "draining" && std::chrono::steady_clock::now() < until) {
      tell(NodeProgress::State::at_work, "draining: its ranks run on");
      changed.wait_for(lock, options.access.stop, pause, [] { return false; });
      if (options.access.stop.stop_requested()) return {"still draining", false, false};
      pause = std::min(pause * 2, milliseconds(1000));
      now = state_of(client, machine.node);
    }
    client.post(route + "/remove", nlohmann::json::object());
  } catch (const Error& error) {
    tell(NodeProgress::State::failed, error.message());
    return {error.what(), false, false};
  }
  NodeDownTask task;
  task.machine = machine;
  task.cluster = state.id;
  task.base = base_of(state);
  const NodeDown gone =
      take_node_down(provider, AgentBinary::load(options.agent), task, options.progress);
  if (gone.error) {
    return {"left the cluster; not cleaned: " + gone.error->message(), false, true};
  }
  if (!gone.left.empty()) {
    return {"left the cluster; still there: " + join(gone.left, ", "), false, true};
  }
  return {"left the cluster; " + std::to_string(gone.files) + " files removed", true, true};
}

}  // namespace dtrain
