#include "launcher/wire/session.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <type_traits>
#include <utility>

#include "launcher/wire/json.hpp"

namespace dtrain::wire {
namespace {

using nlohmann::json;

// Each message lists its fields once, for reading and writing alike: a message M is const when it
// is written. A field is required unless a default follows.
constexpr std::array<std::pair<SetupState, const char*>, 6> kSetupStates{
    {{SetupState::none, "none"},
     {SetupState::running, "running"},
     {SetupState::succeeded, "succeeded"},
     {SetupState::failed, "failed"},
     {SetupState::cancelled, "cancelled"},
     {SetupState::lost, "lost"}}};

template <typename M, typename Wanted>
concept Is = std::is_same_v<std::remove_const_t<M>, Wanted>;

void fields(Is<Interface> auto& m, auto&& f) {
  f("name", m.name);
  f("address", m.address);
}
void fields(Is<HostFacts> auto& m, auto&& f) {
  f("user", m.user);
  f("uid", m.uid);
  f("home", m.home);
  f("shell", m.shell);
  f("arch", m.arch);
  f("kernel", m.kernel);
  f("hostname", m.hostname);
  f("boot_id", m.boot_id);
  f("machine", m.machine);
  f("wall_ms", m.wall_ms);
  f("home_free", m.home_free);
  f("tmp_free", m.tmp_free);
  f("home_filesystem", m.home_filesystem);
  f("home_on_network", m.home_on_network);
  f("glibc", m.glibc);
  f("cpus", m.cpus);
  f("gpus", m.gpus);
  f("memory", m.memory);
  f("interfaces", m.interfaces);
  f("systemd", m.systemd);
  f("kills_user_processes", m.kills_user_processes);
  f("lingers", m.lingers);
  f("base", m.base);
}
void fields(Is<SessionHello> auto& m, auto&& f) {
  f("version", m.version);
  f("features", m.features);
  f("agent_version", m.agent_version);
  f("agent", m.agent);
  f("agent_sha256", m.agent_sha256);
  f("host", m.host);
}
void fields(Is<FindClusters> auto& m, auto&& f) {
  f("name", m.name);
  f("base", m.base);
}
void fields(Is<SetupList> auto& m, auto&& f) {
  f("list", m.list);
  f("commands", m.commands);
}
void fields(Is<OpenNode> auto& m, auto&& f) {
  f("cluster", m.cluster);
  f("node", m.node);
  f("base", m.base);
  f("prepare", m.prepare);
  f("head", m.head);
  f("lists", m.lists);
}
void fields(Is<InitHead> auto& m, auto&& f) {
  f("name", m.name);
  f("provider", m.provider);
  f("expected_nodes", m.expected_nodes);
  f("wanted_port", m.wanted_port);
}
void fields(Is<SignNode> auto& m, auto&& f) {
  f("node", m.node);
  f("request", m.request);
}
void fields(Is<RevokeNode> auto& m, auto&& f) {
  f("node", m.node);
}
void fields(Is<ConfigureNode> auto& m, auto&& f) {
  f("certificates", m.certificates);
  f("node_config", m.node_config);
  f("capture_environment", m.capture_environment);
  f("marks", m.marks);
}
void fields(Is<StartSetup> auto& m, auto&& f) {
  f("list", m.list);
  f("commands", m.commands);
  f("env", m.env);
  f("from_start", m.from_start);
}
void fields(Is<ReadSetup> auto& m, auto&& f) {
  f("list", m.list);
  f("run", m.run);
  f("offset", m.offset);
  f("wait_ms", m.wait_ms);
}
void fields(Is<CancelSetup> auto& m, auto&& f) {
  f("list", m.list);
}
void fields(Is<StartAgents> auto& m, auto&& f) {
  f("head", m.head);
  f("restart", m.restart);
}
void fields(Is<StopAgents> auto& m, auto&& f) {
  f("head", m.head);
  f("grace_ms", m.grace_ms);
}
void fields(Is<Survey> auto& m, auto&& f) {
  f("head", m.head);
}
void fields(Is<RemoveFiles> auto& m, auto&& f) {
  f("head", m.head);
  f("keep_files", m.keep_files);
}
void fields(Is<Persist> auto& m, auto&& f) {
  f("on", m.on);
}
void fields(Is<Probe> auto& m, auto&& f) {
  f("command", m.command);
  f("env", m.env);
  f("limit_ms", m.limit_ms);
}
void fields(Is<ReadLogs> auto& m, auto&& f) {
  f("head", m.head);
  f("lines", m.lines);
}
void fields(Is<Done> auto&, auto&&) {}
void fields(Is<Text> auto& m, auto&& f) {
  f("text", m.text);
}
void fields(Is<HeadFound> auto& m, auto&& f) {
  f("root", m.root);
  f("cluster", m.cluster);
  f("name", m.name);
  f("provider", m.provider);
  f("expected_nodes", m.expected_nodes);
  f("wanted_port", m.wanted_port);
  f("port", m.port);
  f("ca_sha256", m.ca_sha256);
}
void fields(Is<FoundClusters> auto& m, auto&& f) {
  f("clusters", m.clusters);
}
void fields(Is<AgentProcess> auto& m, auto&& f) {
  f("what", m.what);
  f("pid", m.pid);
  f("program", m.program);
}
void fields(Is<SetupCommand> auto& m, auto&& f) {
  f("command", m.command);
  f("hash", m.hash);
  f("state", m.state);
  f("exit_code", m.exit_code);
  f("began_ms", m.began_ms);
  f("ended_ms", m.ended_ms);
}
void fields(Is<SetupStatus> auto& m, auto&& f) {
  f("list", m.list);
  f("run", m.run);
  f("state", m.state);
  f("commands", m.commands);
  f("first", m.first);
  f("tail", m.tail);
}
void fields(Is<SetupPlan> auto& m, auto&& f) {
  f("list", m.list);
  f("first", m.first);
  f("total", m.total);
  f("running", m.running);
}
void fields(Is<NodeFound> auto& m, auto&& f) {
  f("root", m.root);
  f("head_root", m.head_root);
  f("there", m.there);
  f("config", m.config);
  f("request", m.request);
  f("expires_ms", m.expires_ms);
  f("ca_sha256", m.ca_sha256);
  f("environment", m.environment);
  f("marks", m.marks);
  f("lists", m.lists);
  f("agents", m.agents);
  f("agents_current", m.agents_current);
  f("version", m.version);
  f("persists", m.persists);
  f("head", m.head);
}
void fields(Is<Configured> auto& m, auto&& f) {
  f("changed", m.changed);
  f("warning", m.warning);
}
void fields(Is<SetupOutput> auto& m, auto&& f) {
  f("status", m.status);
  f("offset", m.offset);
  f("bytes", m.bytes);
}
void fields(Is<AgentsStarted> auto& m, auto&& f) {
  f("changed", m.changed);
  f("how", m.how);
  f("agents", m.agents);
  f("warning", m.warning);
}
void fields(Is<StopReport> auto& m, auto&& f) {
  f("found", m.found);
  f("killed", m.killed);
  f("left", m.left);
}
void fields(Is<SurveyReport> auto& m, auto&& f) {
  f("processes", m.processes);
  f("sockets", m.sockets);
  f("port", m.port);
  f("port_open", m.port_open);
  f("files", m.files);
  f("bytes", m.bytes);
  f("checkpoints", m.checkpoints);
  f("checkpoint_bytes", m.checkpoint_bytes);
  f("checkpoint_jobs", m.checkpoint_jobs);
  f("uncommitted", m.uncommitted);
  f("unit", m.unit);
  f("paths", m.paths);
}
void fields(Is<RemoveReport> auto& m, auto&& f) {
  f("kept", m.kept);
  f("left", m.left);
  f("changed", m.changed);
}
void fields(Is<PersistReport> auto& m, auto&& f) {
  f("on", m.on);
  f("warning", m.warning);
}
void fields(Is<ProbeResult> auto& m, auto&& f) {
  f("exit_code", m.exit_code);
  f("timed_out", m.timed_out);
  f("tail", m.tail);
  f("out", m.out);
}
void fields(Is<LogTail> auto& m, auto&& f) {
  f("path", m.path);
  f("lines", m.lines);
}
void fields(Is<LogTails> auto& m, auto&& f) {
  f("logs", m.logs);
}

// ---- Writing.

template <typename Item>
json written(const std::vector<Item>& items);
template <typename Item>
json written(const std::optional<Item>& item);

json written(const std::string& value) {
  return value;
}
json written(bool value) {
  return value;
}
json written(int value) {
  return value;
}
json written(std::int64_t value) {
  return value;
}
json written(SetupState value) {
  return to_string(value);
}
template <typename Tag>
json written(const Id<Tag>& value) {
  return value.str();
}
json written(const std::map<std::string, std::string>& value) {
  json object = json::object();
  for (const auto& [name, text] : value) object[name] = text;
  return object;
}
template <typename Message>
json written(const Message& message) requires requires {
  fields(message, [](const char*, const auto&) {});
}
{
  json object = json::object();
  fields(message, [&](const char* key, const auto& value) { object[key] = written(value); });
  return object;
}
template <typename Item>
json written(const std::vector<Item>& items) {
  json list = json::array();
  for (const Item& item : items) list.push_back(written(item));
  return list;
}
template <typename Item>
json written(const std::optional<Item>& item) {
  return item ? written(*item) : json(nullptr);
}

// ---- Reading.

template <typename Item>
void read(const json& object, const char* key, std::vector<Item>& to);
template <typename Item>
void read(const json& object, const char* key, std::optional<Item>& to);
template <typename Message>
void read_fields(const json& object, Message& to);

void read(const json& object, const char* key, std::string& to) {
  to = get_string(object, key);
}
void read(const json& object, const char* key, bool& to) {
  member(object, key);
  to = get_bool(object, key, false);
}
void read(const json& object, const char* key, int& to) {
  to = static_cast<int>(get_int(object, key, 0, INT_MAX));
}
void read(const json& object, const char* key, std::int64_t& to) {
  to = get_int(object, key, -1, INT64_MAX);
}
void read(const json& object, const char* key, SetupState& to) {
  const std::string name = get_string(object, key);
  const auto* found = std::find_if(kSetupStates.begin(), kSetupStates.end(),
                                   [&](const auto& state) { return name == state.second; });
  if (found == kSetupStates.end()) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no state of a setup list");
  }
  to = found->first;
}
// Ids become parts of paths.
template <typename Tag>
void read(const json& object, const char* key, Id<Tag>& to) {
  to = Id<Tag>(get_string(object, key));
  if (!valid_name(to.str())) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no name");
  }
}
void read(const json& object, const char* key, std::map<std::string, std::string>& to) {
  const json& map = member(object, key);
  if (!map.is_object()) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no object of strings");
  }
  to.clear();
  for (const auto& [name, value] : map.items()) {
    to[name] = get_string(map, name.c_str());
  }
}
void read(const json& object, const char* key, std::vector<std::string>& to) {
  to = get_strings(object, key);
}
template <typename Message>
void read(const json& object, const char* key, Message& to) requires requires {
  fields(to, [](const char*, auto&) {});
}
{ read_fields(member(object, key), to); }
template <typename Message>
void read_fields(const json& object, Message& to) {
  fields(to, [&](const char* key, auto& value) { read(object, key, value); });
}
template <typename Item>
void read(const json& object, const char* key, std::vector<Item>& to) {
  const json& list = member(object, key);
  if (!list.is_array()) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no list");
  }
  to.clear();
  for (const json& item : list) {
    Item& added = to.emplace_back();
    if (!item.is_object()) {
      throw Error(ErrorCode::invalid, std::string("\"") + key + "\" holds what is no object");
    }
    read_fields(item, added);
  }
}
template <typename Item>
void read(const json& object, const char* key, std::optional<Item>& to) {
  to.reset();
  if (member(object, key).is_null()) return;
  read(object, key, to.emplace());
}

// ---- Requests by name, in the order of the variant.

constexpr std::array<const char*, std::variant_size_v<SessionRequest>> kOps{
    "find_clusters", "open_node",  "init_head",    "sign_node",    "revoke_node", "configure_node",
    "start_setup",   "read_setup", "cancel_setup", "start_agents", "stop_agents", "survey",
    "remove_files",  "persist",    "probe",        "read_logs"};

template <std::size_t I = 0>
SessionRequest request_from(const std::string& op, const json& object) {
  if constexpr (I == kOps.size()) {
    throw Error(ErrorCode::invalid, "this agent knows no operation \"" + op.substr(0, 80) + "\"");
  } else {
    if (op != kOps[I]) return request_from<I + 1>(op, object);
    std::variant_alternative_t<I, SessionRequest> request;
    read_fields(object, request);
    return request;
  }
}

}  // namespace

const char* to_string(SetupState state) noexcept {
  for (const auto& [value, name] : kSetupStates) {
    if (value == state) return name;
  }
  return "none";
}

nlohmann::json to_json(const SessionRequest& request) {
  json object = std::visit([](const auto& message) { return written(message); }, request);
  object["op"] = kOps[request.index()];
  return object;
}

SessionRequest session_request_from_json(const nlohmann::json& json) {
  return request_from(get_string(json, "op"), json);
}

template <typename Message>
nlohmann::json session_to_json(const Message& message) {
  return written(message);
}

template <typename Message>
Message session_from_json(const nlohmann::json& json) {
  if (!json.is_object()) throw Error(ErrorCode::invalid, "the answer is no object");
  Message message;
  read_fields(json, message);
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

}  // namespace dtrain::wire
