#include <chrono>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/node_work.hpp"
#include "launcher/core/text.hpp"

// The last steps: is it fit for work, and the agents' start.
namespace dtrain {

void NodeWork::ready_probe() {
  const ReadySpec& ready = spec_.ready;
  if (task_.head && traits_of(spec_.provider.kind).head_asks) return;  // it takes no ranks
  if (ready.gpus && session_->hello().host.gpus < *ready.gpus) {
    begin("ready");
    throw Error(ErrorCode::failed,
                "it has " + counted(static_cast<std::size_t>(session_->hello().host.gpus), "GPU") +
                    ", and ready.gpus wants " + std::to_string(*ready.gpus))
        .with_hint("see dtrain exec --node " + task_.machine.node.str() + " -- nvidia-smi -L");
  }
  // A command is asked when something was done, not at each look.
  if (ready.command.empty() || (report_.steps.empty() && node_.agents_current)) return;
  begin("ready", ready.command);
  if (options_.dry_run) return did("run " + ready.command);
  wire::Probe probe;
  probe.command = ready.command;
  probe.env = {{"RAY_HEAD_IP", head_ip()}};
  probe.limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(ready.timeout).count();
  const wire::ProbeResult result = session_->probe(probe);
  if (const auto error = wire::probe_error(result, ready.command, probe.limit_ms)) {
    report_.tail = result.tail;
    throw Error(*error);
  }
}

void NodeWork::start() {
  const bool current = node_.agents_current && !is_changed_;
  if (!current || options_.force) {
    if (options_.no_restart && !node_.agents.empty()) return;
    begin("start");
    if (options_.dry_run) {
      did(node_.agents.empty() ? (task_.head ? "head and node agents" : "the node agent")
                               : "agents anew; ranks go on");
    } else {
      if (task_.head) provider_.head_starts(*transport_, *cluster_);
      const wire::AgentsStarted started = session_->start_agents(
          {task_.head, options_.force || is_changed_, provider_.keeps_agents(task_.machine)});
      if (!started.warning.empty()) warn(started.warning);
      if (started.changed) did(node_.agents.empty() ? "started" : "started anew; ranks go on");
    }
  }
  if (options_.persist && !node_.persists && !provider_.keeps_agents(task_.machine)) {
    begin("persist");
    if (options_.dry_run) return did("a unit of systemd");
    try {
      const wire::PersistReport persisted = session_->persist(true);
      if (!persisted.warning.empty()) warn(persisted.warning);
      if (persisted.on) did("a unit of systemd starts it after a reboot");
    } catch (const Error& error) {  // it runs all the same
      if (!session_->usable()) throw;
      warn("it does not start again after a reboot: " + error.message());
    }
  }
}

}  // namespace dtrain
