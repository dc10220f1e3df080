#include "launcher/cluster/node_down.hpp"

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

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
    const wire::StopReport stopped =
        session.stop_agents({task.head, task.grace.count(), provider.keeps_agents(task.machine)});
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
  } catch (const std::exception& thrown) {
    Error error = as_defect(thrown);
    // The connection says itself where it was going.
    if (step != "connect" || error.context().empty()) {
      error.while_doing(step + " on " + task.machine.node.str());
    }
    result.error = error;
    tell(NodeProgress::State::failed, error.message());
  }
  return result;
}

}  // namespace dtrain
