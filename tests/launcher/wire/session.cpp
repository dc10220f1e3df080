#include "launcher/wire/session.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "launcher/core/files.hpp"
#include "launcher/wire/json.hpp"

using namespace dtrain;
using namespace dtrain::wire;
using nlohmann::json;

namespace {

// One file a message of version 1; DTRAIN_ACCEPT=1 writes anew.
const fs::path kSessionGolden = fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/wire/session/v1";

struct Case {
  json message;
  std::function<json(const json&)> again;  // reads it and writes it
};

template <typename Answer>
Case answer(const Answer& message) {
  return {session_to_json(message),
          [](const json& text) { return session_to_json(session_from_json<Answer>(text)); }};
}
Case request(const SessionRequest& message) {
  return {to_json(message),
          [](const json& text) { return to_json(session_request_from_json(text)); }};
}

HeadFound head_found() {
  return {"/home/ada/.dtrain/lab-abcdef/head", "lab-abcdef", "lab", "ssh", 8, 0, 46500, "00ff"};
}

SetupStatus setup_status() {
  SetupStatus status;
  status.list = "setup";
  status.run = "0123456789abcdef";
  status.state = SetupState::failed;
  status.first = 1;
  status.commands = {{"true", "aa", SetupState::succeeded, 0, 1000, 2000},
                     {"false", "bb", SetupState::failed, 1, 2000, 3000},
                     {"echo \"x\"", "cc", SetupState::none, 0, 0, 0}};
  status.tail = {"one", "two"};
  return status;
}

std::map<std::string, Case> session_messages() {
  SessionHello hello;
  hello.features = {"sync_files"};
  hello.agent_version = "0.1.0";
  hello.agent = "/home/ada/.dtrain/agents/00ff/dtrain-agent";
  hello.agent_sha256 = "00ff";
  hello.host.user = "ada";
  hello.host.uid = 1000;
  hello.host.home = "/home/ada";
  hello.host.shell = "/usr/bin/fish";
  hello.host.arch = "x86_64";
  hello.host.kernel = "6.1.0";
  hello.host.hostname = "gpu-1";
  hello.host.boot_id = "boot";
  hello.host.machine = "boot net:[1] mnt:[2]";
  hello.host.wall_ms = 1767225600000;
  hello.host.home_free = 1LL << 40;
  hello.host.tmp_free = -1;
  hello.host.home_filesystem = "nfs";
  hello.host.home_on_network = true;
  hello.host.glibc = "2.28";
  hello.host.cpus = 64;
  hello.host.gpus = 8;
  hello.host.memory = 1LL << 39;
  hello.host.interfaces = {{"eth0", "10.0.0.2"}, {"eth0", "2001:db8::2"}};
  hello.host.systemd = true;
  hello.host.kills_user_processes = true;
  hello.host.base = "/var/tmp/dtrain-1000";

  OpenNode open;
  open.cluster = ClusterId("lab-abcdef");
  open.node = NodeId("node-1");
  open.base = "~/dtrain";
  open.prepare = true;
  open.head = true;
  open.lists = {{"setup", {"true", "false"}}};

  StartSetup start;
  start.list = "setup";
  start.commands = {"true", "false"};
  start.env = {{"RAY_HEAD_IP", "10.0.0.1"}};
  start.from_start = true;

  ConfigureNode configure;
  configure.certificates = "PEM";
  configure.node_config = "{}";
  configure.capture_environment = true;
  configure.marks = {{"files", "00ff"}, {"old", ""}};

  const AgentProcess watch{"watch", 17, "/home/ada/.dtrain/agents/00ff/dtrain-agent"};
  NodeFound found;
  found.root = "/home/ada/.dtrain/lab-abcdef/node-1";
  found.head_root = "/home/ada/.dtrain/lab-abcdef/head";
  found.there = true;
  found.config = "{}";
  found.request = "PEM";
  found.expires_ms = 1767225600000;
  found.ca_sha256 = "00ff";
  found.environment = true;
  found.marks = {{"files", "00ff"}};
  found.lists = {{"setup", 1, 3, true}};
  found.agents = {watch};
  found.agents_current = true;
  found.version = "0.1.0";
  found.persists = true;
  found.head = head_found();
  NodeFound bare = found;
  bare.head.reset();

  SurveyReport survey;
  survey.processes = {watch};
  survey.sockets = 2;
  survey.port = 46500;
  survey.port_open = true;
  survey.files = 12;
  survey.bytes = 3456;
  survey.checkpoints = 2;
  survey.checkpoint_bytes = 2000;
  survey.checkpoint_jobs = {"mnist-abcdef"};
  survey.checkpoints_unknown = "cannot list /x: Permission denied";
  survey.uncommitted = 1;
  survey.unit = true;
  survey.paths = {"/home/ada/.dtrain/lab-abcdef/node-1"};

  SetupOutput output;
  output.status = setup_status();
  output.offset = 4096;
  output.bytes = 96;
  const NodeId node("node-1");
  return {
      {"hello", answer(hello)},
      {"find_clusters", request(FindClusters{"lab", "/scratch"})},
      {"open_node", request(open)},
      {"init_head", request(InitHead{"lab", "ssh", 8, 46500})},
      {"sign_node", request(SignNode{node, "PEM"})},
      {"revoke_node", request(RevokeNode{node})},
      {"configure_node", request(configure)},
      {"start_setup", request(start)},
      {"read_setup", request(ReadSetup{"setup", "0123456789abcdef", 4000, 1000})},
      {"cancel_setup", request(CancelSetup{"setup"})},
      {"start_agents", request(StartAgents{true, true})},
      {"stop_agents", request(StopAgents{true, 30000})},
      {"survey", request(Survey{true})},
      {"remove_files", request(RemoveFiles{true, true})},
      {"persist", request(Persist{true})},
      {"probe", request(Probe{"nvidia-smi -L", {{"A", "b"}}, 10000})},
      {"read_logs", request(ReadLogs{true, 10})},
      {"done", answer(Done{})},
      {"text", answer(Text{"PEM"})},
      {"head_found", answer(head_found())},
      {"found_clusters", answer(FoundClusters{{head_found()}})},
      {"setup_status", answer(setup_status())},
      {"node_found", answer(found)},
      {"node_found_no_head", answer(bare)},
      {"configured", answer(Configured{{"config"}, "a warning"})},
      {"setup_output", answer(output)},
      {"agents_started", answer(AgentsStarted{true, "scope", {watch}, "a warning"})},
      {"stop_report", answer(StopReport{{watch}, {watch}, {}})},
      {"survey_report", answer(survey)},
      {"remove_report",
       answer(
           RemoveReport{"/home/ada/.dtrain/kept/lab-abcdef", {"/x: busy"}, {"/home/ada/code/a"}})},
      {"persist_report", answer(PersistReport{true, "a warning"})},
      {"probe_result", answer(ProbeResult{3, true, {"last"}, "last\n"})},
      {"log_tails", answer(LogTails{{{"/x/node.log", {"one", "two"}}}})},
  };
}

}  // namespace

TEST_CASE("messages of a session are those of the golden files") {
  const bool accept = std::getenv("DTRAIN_ACCEPT") != nullptr;
  for (const auto& entry : session_messages()) {
    const std::string& name = entry.first;
    const Case& each = entry.second;
    CAPTURE(name);
    const fs::path path = kSessionGolden / (name + ".json");
    if (accept) {
      fs::create_directories(kSessionGolden);
      write_file_atomic(path, each.message.dump(2) + "\n", 0644);
    }
    const std::string golden = read_file(path);
    CHECK(each.message.dump(2) + "\n" == golden);
    CHECK(each.again(json::parse(golden)).dump(2) + "\n" == golden);
  }
}

TEST_CASE("what a newer session adds is passed over") {
  for (const auto& entry : session_messages()) {
    const std::string& name = entry.first;
    CAPTURE(name);
    json message = entry.second.message;
    message["added_later"] = {1, 2, 3};
    CHECK_NOTHROW(entry.second.again(message));
  }
}

TEST_CASE("a field of another type, or that is missing, is an error that names it") {
  for (const auto& entry : session_messages()) {
    const std::string& name = entry.first;
    const Case& each = entry.second;
    for (const auto& field : each.message.items()) {
      const std::string& key = field.key();
      CAPTURE(name);
      CAPTURE(key);
      for (const bool missing : {false, true}) {
        json wrong = each.message;
        if (missing) {
          wrong.erase(key);
        } else {
          wrong[key] = wrong[key].is_object() ? json(1) : json(json::object());
          // Any object is a map of nothing, and a head may be absent.
          if (wrong[key].is_object() && (key == "env" || key == "marks")) continue;
        }
        try {
          each.again(wrong);
          FAIL("it was read");
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::invalid);
          // Of what is within, the inner name.
          if (missing) CHECK(error.message().find("\"" + key + "\"") != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("requests that no agent may do") {
  json open = session_messages().at("open_node").message;
  for (const char* name : {"../../etc", "", ".", "a/b", "-x"}) {
    open["node"] = name;
    CHECK_THROWS_AS(session_request_from_json(open), Error);
  }
  CHECK_THROWS_AS(session_request_from_json({{"op", "no such"}}), Error);
  CHECK_THROWS_AS(session_request_from_json(json::array()), Error);
  json read = session_messages().at("read_setup").message;
  read["wait_ms"] = 1.5;
  CHECK_THROWS_AS(session_request_from_json(read), Error);
}
