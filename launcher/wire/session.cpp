#include "launcher/wire/session.hpp"

#include "launcher/wire/setup_list.hpp"

namespace dtrain::wire {

BOOST_DESCRIBE_ENUM(SetupState, none, running, succeeded, failed, cancelled, lost)

BOOST_DESCRIBE_STRUCT(HostFacts, (),
                      (user, uid, home, shell, arch, kernel, hostname, boot_id, machine, wall_ms,
                       home_free, tmp_free, home_filesystem, home_on_network, glibc, cpus, gpus,
                       memory, interfaces, systemd, kills_user_processes, lingers, base))
BOOST_DESCRIBE_STRUCT(SessionHello, (),
                      (version, features, agent_version, agent, agent_sha256, host))
BOOST_DESCRIBE_STRUCT(FindClusters, (), (name, base))
BOOST_DESCRIBE_STRUCT(OpenNode, (), (cluster, node, base, prepare, head, lists))
BOOST_DESCRIBE_STRUCT(InitHead, (),
                      (name, provider, expected_nodes, wanted_port, ranks_on_head, moves))
BOOST_DESCRIBE_STRUCT(SignNode, (), (node, request))
BOOST_DESCRIBE_STRUCT(RevokeNode, (), (node))
BOOST_DESCRIBE_STRUCT(ConfigureNode, (), (certificates, node_config, capture_environment, marks))
BOOST_DESCRIBE_STRUCT(StartSetup, (), (list, commands, env, from_start))
BOOST_DESCRIBE_STRUCT(ReadSetup, (), (list, run, offset, wait_ms))
BOOST_DESCRIBE_STRUCT(CancelSetup, (), (list))
BOOST_DESCRIBE_STRUCT(StartAgents, (), (head, restart, kept))
BOOST_DESCRIBE_STRUCT(StopAgents, (), (head, grace_ms, kept))
BOOST_DESCRIBE_STRUCT(Survey, (), (head))
BOOST_DESCRIBE_STRUCT(RemoveFiles, (), (head, keep_files))
BOOST_DESCRIBE_STRUCT(Persist, (), (on))
BOOST_DESCRIBE_STRUCT(Probe, (), (command, env, limit_ms))
BOOST_DESCRIBE_STRUCT(ReadLogs, (), (head, lines))
BOOST_DESCRIBE_STRUCT(Done, (), ())
BOOST_DESCRIBE_STRUCT(Text, (), (text))
BOOST_DESCRIBE_STRUCT(HeadFound, (),
                      (root, cluster, name, provider, expected_nodes, wanted_port, port, ca_sha256))
BOOST_DESCRIBE_STRUCT(FoundClusters, (), (clusters))
BOOST_DESCRIBE_STRUCT(AgentProcess, (), (what, pid, program))
BOOST_DESCRIBE_STRUCT(SetupCommand, (), (command, hash, state, exit_code, began_ms, ended_ms))
BOOST_DESCRIBE_STRUCT(SetupStatus, (), (list, run, state, commands, first, tail))
BOOST_DESCRIBE_STRUCT(SetupPlan, (), (list, first, total, running))
BOOST_DESCRIBE_STRUCT(NodeFound, (),
                      (root, head_root, there, config, request, expires_ms, ca_sha256, environment,
                       marks, lists, agents, agents_current, version, persists, head))
BOOST_DESCRIBE_STRUCT(Configured, (), (changed, warning))
BOOST_DESCRIBE_STRUCT(SetupOutput, (), (status, offset, bytes))
BOOST_DESCRIBE_STRUCT(AgentsStarted, (), (changed, how, agents, warning))
BOOST_DESCRIBE_STRUCT(StopReport, (), (found, killed, left))
BOOST_DESCRIBE_STRUCT(SurveyReport, (),
                      (processes, sockets, port, port_open, files, bytes, checkpoints,
                       checkpoint_bytes, checkpoint_jobs, checkpoints_unknown, uncommitted, unit,
                       paths))
BOOST_DESCRIBE_STRUCT(RemoveReport, (), (kept, left, changed))
BOOST_DESCRIBE_STRUCT(PersistReport, (), (on, warning))
BOOST_DESCRIBE_STRUCT(ProbeResult, (), (exit_code, timed_out, tail, out))
BOOST_DESCRIBE_STRUCT(LogTail, (), (path, lines))
BOOST_DESCRIBE_STRUCT(LogTails, (), (logs))

namespace {

constexpr MessageNames<SessionRequest> kOps{
    "find_clusters", "open_node",  "init_head",    "sign_node",    "revoke_node", "configure_node",
    "start_setup",   "read_setup", "cancel_setup", "start_agents", "stop_agents", "survey",
    "remove_files",  "persist",    "probe",        "read_logs"};

}  // namespace

const char* to_string(SetupState state) noexcept {
  return boost::describe::enum_to_string(state, "none");
}

nlohmann::json to_json(const SessionRequest& request) {
  return written_as("op", kOps, request);
}

SessionRequest session_request_from_json(const nlohmann::json& json) {
  return read_as<SessionRequest>("op", kOps, json, "this agent knows no operation ");
}

template <typename Message>
nlohmann::json session_to_json(const Message& message) {
  return written(message);
}

template <typename Message>
Message session_from_json(const nlohmann::json& json) {
  if (!json.is_object()) throw Error(ErrorCode::invalid, "the answer is no object");
  Message message;
  read(json, message);
  return message;
}

#define DTRAIN_SESSION_MESSAGE(Type)                          \
  template nlohmann::json session_to_json<Type>(const Type&); \
  template Type session_from_json<Type>(const nlohmann::json&)
DTRAIN_SESSION_MESSAGE(SessionHello);
DTRAIN_SESSION_MESSAGE(Done);
DTRAIN_SESSION_MESSAGE(Text);
DTRAIN_SESSION_MESSAGE(HeadFound);
DTRAIN_SESSION_MESSAGE(FoundClusters);
DTRAIN_SESSION_MESSAGE(SetupStatus);
DTRAIN_SESSION_MESSAGE(NodeFound);
DTRAIN_SESSION_MESSAGE(Configured);
DTRAIN_SESSION_MESSAGE(SetupOutput);
DTRAIN_SESSION_MESSAGE(AgentsStarted);
DTRAIN_SESSION_MESSAGE(StopReport);
DTRAIN_SESSION_MESSAGE(SurveyReport);
DTRAIN_SESSION_MESSAGE(RemoveReport);
DTRAIN_SESSION_MESSAGE(PersistReport);
DTRAIN_SESSION_MESSAGE(ProbeResult);
DTRAIN_SESSION_MESSAGE(LogTails);
#undef DTRAIN_SESSION_MESSAGE

Error setup_error(const SetupStatus& status) {
  const std::string list = status.list;
  for (std::size_t i = 0; i < status.commands.size(); ++i) {
    const SetupCommand& command = status.commands[i];
    if (command.state == SetupState::succeeded) continue;
    const std::string which = list + ", command " + std::to_string(i + 1) + " of " +
                              std::to_string(status.commands.size());
    const std::string what = ": " + printable(command.command, false);
    switch (command.state) {
      case SetupState::failed:
        return Error(ErrorCode::failed,
                     which + " ended with exit code " + std::to_string(command.exit_code) + what);
      case SetupState::cancelled:
        return Error(ErrorCode::failed, which + " was cancelled" + what);
      case SetupState::lost:
        return Error(ErrorCode::failed,
                     which +
                         " ended without a word; the machine was started again, or its "
                         "process killed" +
                         what);
      case SetupState::none:
      case SetupState::running:
      case SetupState::succeeded:
        break;
    }
  }
  const std::string why = status.tail.empty() ? to_string(status.state) : status.tail.front();
  return Error(ErrorCode::failed, list + " did not run to its end: " + printable(why, false));
}

std::optional<Error> probe_error(const ProbeResult& result, const std::string& command,
                                 std::int64_t limit_ms) {
  if (!result.timed_out && result.exit_code == 0) return std::nullopt;
  return Error(ErrorCode::failed,
               "ready.command " +
                   (result.timed_out ? "did not end within " +
                                           human_duration(std::chrono::milliseconds(limit_ms))
                                     : "ended with exit code " + std::to_string(result.exit_code)) +
                   ": " + command);
}

}  // namespace dtrain::wire
