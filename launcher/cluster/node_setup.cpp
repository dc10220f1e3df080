#include "launcher/cluster/node_setup.hpp"

#include "launcher/cluster/door.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/remote/agent_session.hpp"

namespace dtrain {

std::vector<wire::SetupList> setup_lists(const ClusterSpec& spec, bool head) {
  std::vector<wire::SetupList> lists;
  const auto add = [&](const char* name, const std::vector<std::string>& commands) {
    if (!commands.empty()) lists.push_back({name, commands});
  };
  add("initialization", spec.initialization_commands);
  // Ray's setup_commands stand at the front of both.
  if (head) {
    add("head_setup", spec.head_setup_commands);
  } else {
    add("worker_setup", spec.worker_setup_commands);
  }
  return lists;
}

std::vector<SetupLog> read_setup_logs(const ClusterState& state, const Machine& machine,
                                      const fs::path& agent, const Access& access) {
  const std::unique_ptr<Provider> provider = provider_of(state, access);
  const std::unique_ptr<Transport> transport = provider->reach(machine);
  AgentSession session = AgentSession::open(*transport, AgentBinary::load(agent));
  wire::OpenNode open;
  open.cluster = state.id;
  open.node = machine.node;
  open.base = base_of(state);
  const paths::NodeRoot root{session.open_node(open).root};
  std::vector<SetupLog> logs;
  for (const std::string list : {"initialization", "head_setup", "worker_setup"}) {
    const Captured captured =
        transport->run({"tail", "-c", std::to_string(kSetupLogText), root.setup_log(list).string()},
                       {}, std::chrono::seconds(30));
    if (captured.exit.code == 0) logs.push_back({list, captured.out});
  }
  return logs;
}

}  // namespace dtrain
