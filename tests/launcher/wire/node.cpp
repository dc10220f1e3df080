#include "launcher/wire/node.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include "launcher/core/files.hpp"
#include "launcher/wire/json.hpp"

using namespace dtrain;
using namespace dtrain::wire;
using nlohmann::json;

namespace {

// As for the messages about attempts: one file a message of version 1; DTRAIN_ACCEPT=1 writes anew.
const fs::path kGolden = fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/wire/node/v1";

Error full_error() {
  Error error(ErrorCode::exhausted, "no space");
  error.while_doing("writing spec.json");
  error.with_hint("free some");
  return error;
}

const JobId kJob("mnist-abcdef");

std::map<std::string, json> messages() {
  Hello hello;
  hello.features = {"exec"};
  hello.cluster = ClusterId("local-k3x7qa");
  hello.node = NodeId("node-1");
  hello.agent_version = "0.1.0";
  hello.address = "10.0.0.2";
  hello.boot_id = "boot";
  hello.machine = "boot net:[1] mnt:[2]";
  hello.root = "/home/ada/.dtrain";
  hello.log = "/home/ada/.dtrain/node.log";
  hello.cpus = 8;
  hello.gpus = 2;
  hello.memory = 1 << 30;
  hello.attempts = {{kJob, 2}};
  Hello with_glibc = hello;
  with_glibc.glibc = "2.36";
  JobContent content;
  content.workdir_tree = std::string(64, 'a');
  content.bundle_tree = std::string(64, 'b');
  content.program = "bin/train";
  content.glibc = "2.34";
  content.glibc_of = "libc10.so";
  content.size = 1 << 20;
  AttemptEvent event{7, MasterReady{29500}};
  AttemptSpec spec;
  spec.job = kJob;
  spec.node = NodeId("node-1");
  spec.command = {"./train"};
  spec.token = "00ff";
  StartExec exec{"00ff", {"hostname"}, true, true, 50, 120, "xterm", "/tmp"};
  ExecControl control{"00ff", "signal", 50, 120, "INT"};
  ExecExit exited;
  exited.exec = "00ff";
  exited.exit_code = 3;
  ExecExit failed;
  failed.exec = "00ff";
  failed.error = full_error();
  Hello with_jobs = hello;
  with_jobs.jobs = {kJob, JobId("old-abcdef")};
  Hello prepared = hello;
  prepared.prepared = "00ff";
  Preparation preparation;
  preparation.tree = std::string(64, 'a');
  preparation.mounts = {{"~/data", "0"}, {"~/one.txt", "1/one.txt"}};
  preparation.lists = {{"worker_setup", {"true", "false"}}};
  preparation.gpus = 2;
  preparation.command = "nvidia-smi";
  Hello leaving = hello;
  leaving.leaving = "its container was told to end (SIGTERM)";
  Hello in_slurm = hello;
  in_slurm.slurm = SlurmPlace{"4711", "n1"};
  Hello with_interfaces = hello;
  with_interfaces.interface = "eth0";
  with_interfaces.interfaces = {{"eth0", "10.0.0.2"}, {"eth1", "192.168.0.2"}};
  AttemptPrepared not_prepared{kJob, 2, full_error()};
  PairOpened not_opened{"00ff", 0, full_error()};
  PairResult pairs{"00ff", {{NodeId("node-2"), "10.0.0.3", 43210, "connection refused"}}};
  PrepareAttempt prepare{kJob, 2, 3, "/shared/mnist-abcdef/.token", "00ff"};
  DialPairs dial{
      "00ff", {{NodeId("node-2"), "10.0.0.3", 43210, "beef"}}, std::chrono::milliseconds(3000)};
  const LogName log{kJob, 2, "12.err"};
  ShardAsk shard{"00ff", kJob, "/tmp/shard", 1, 4, 470, true, {"/home/ada"}};
  const std::vector<FileEntry> files{{"a/model.safetensors", 12, std::string(64, 'a')}};
  SetupLogs setup{"00ff", {{"setup_commands", "done\n"}}};
  const DoctorReport findings{
      "00ff",
      from_millis(1767323045500),
      from_millis(1767323045900),
      {{"permissions", "problem", "/n/identity/key.pem is 0644", "chmod 600 it", true, false, "no"},
       {"disk", "note", "/tmp has 900 MiB free", "", false, false, {}}},
      {"/tmp: 12.3 GiB free"},
      {{kJob, 2}, {kJob, 3}},
      {{kJob, 3}},
      full_error()};
  return {
      {"node_hello_slurm", to_json(NodeMessage(in_slurm))},
      {"node_hello_interfaces", to_json(NodeMessage(with_interfaces))},
      {"node_prepared", to_json(NodeMessage(AttemptPrepared{kJob, 2, std::nullopt}))},
      {"node_prepared_error", to_json(NodeMessage(not_prepared))},
      {"node_pair_opened", to_json(NodeMessage(PairOpened{"00ff", 43210, std::nullopt}))},
      {"node_pair_opened_error", to_json(NodeMessage(not_opened))},
      {"node_pair_result", to_json(NodeMessage(pairs))},
      {"node_renew", to_json(NodeMessage(RenewCertificate{"PEM"}))},
      {"head_welcome_mirror",
       to_json(HeadMessage(Welcome{1, {"mirror"}, std::chrono::seconds(5), true}))},
      {"head_welcome_provider",
       to_json(HeadMessage(Welcome{1, {"mirror"}, std::chrono::seconds(5), true, "aws"}))},
      {"head_prepare", to_json(HeadMessage(prepare))},
      {"head_open_pair",
       to_json(HeadMessage(OpenPair{"00ff", "beef", std::chrono::milliseconds(5000)}))},
      {"head_dial_pairs", to_json(HeadMessage(dial))},
      {"head_close_pair", to_json(HeadMessage(ClosePair{"00ff"}))},
      {"head_certificate", to_json(HeadMessage(NewCertificate{"PEM"}))},
      {"bulk_forward", to_json(BulkMessage(StartForward{"00ff", 8080}))},
      {"bulk_log_open", to_json(BulkMessage(LogOpen{log}))},
      {"bulk_log_from", to_json(BulkMessage(LogFrom{log, 70000}))},
      {"bulk_log", to_json(BulkMessage(LogData{log, 70000, 65536}))},
      {"bulk_log_released", to_json(BulkMessage(LogData{log, 70000, 65536, true}))},
      {"bulk_log_taken", to_json(BulkMessage(LogTaken{log, 135536}))},
      {"bulk_log_refused", to_json(BulkMessage(LogRefused{log}))},
      {"bulk_shard_ask", to_json(BulkMessage(shard))},
      {"bulk_collect", to_json(BulkMessage(CollectAsk{"00ff", true, true, 1000, {}}))},
      {"bulk_collected",
       to_json(BulkMessage(Collected{"00ff", {{"content", 3, 4096}}, 10000, 5000, std::nullopt}))},
      {"bulk_doctor", to_json(BulkMessage(DoctorAsk{"00ff", true, {kJob}}))},
      {"bulk_findings", to_json(BulkMessage(findings))},
      {"bulk_setup_ask", to_json(BulkMessage(SetupAsk{"00ff"}))},
      {"bulk_setup_logs", to_json(BulkMessage(setup))},
      {"node_hello", to_json(NodeMessage(hello))},
      {"node_hello_jobs", to_json(NodeMessage(with_jobs))},
      {"node_hello_leaving", to_json(NodeMessage(leaving))},
      {"node_hello_glibc", to_json(NodeMessage(with_glibc))},
      {"node_staging", to_json(NodeMessage(Staging{kJob, 2, 5, 10, true}))},
      {"node_leaving",
       to_json(NodeMessage(Leaving{"its container was told to end (SIGTERM)", true}))},
      {"node_hello_prepared", to_json(NodeMessage(prepared))},
      {"node_preparing",
       to_json(NodeMessage(Preparing{"00ff", "setup", "line", true, full_error()}))},
      {"head_prepare_node", to_json(HeadMessage(PrepareNode{"00ff", preparation}))},
      {"content_preparation", to_json(ContentMessage(PreparationHello{"00ff", true}))},
      {"head_stage", to_json(HeadMessage(Stage{kJob, 2, content}))},
      {"head_unstage", to_json(HeadMessage(Unstage{kJob, 2}))},
      {"head_take_stacks", to_json(HeadMessage(TakeStacks{kJob,
                                                          2,
                                                          from_millis(1767323045500),
                                                          "hang: no progress for 5 m 00 s",
                                                          {2, 3},
                                                          std::string(64, 'c')}))},
      {"node_stacks_taken",
       to_json(NodeMessage(StacksTaken{kJob, 2, from_millis(1767323045500), true, std::nullopt}))},
      {"node_stacks_taken_error",
       to_json(NodeMessage(StacksTaken{kJob, 2, from_millis(1767323045500), false, full_error()}))},
      {"node_logs_released", to_json(NodeMessage(LogsReleased{kJob, 2, ""}))},
      {"node_logs_released_error",
       to_json(NodeMessage(LogsReleased{kJob, 2, "Operation not supported"}))},
      {"content_hello", to_json(ContentMessage(ContentHello{kJob, 2, true}))},
      {"content_grant", to_json(ContentMessage(ContentGrant{content}))},
      {"content_want", to_json(ContentMessage(ContentWant{{{std::string(64, 'a'), 5}}}))},
      {"content_stream", to_json(ContentMessage(ContentStream{10}))},
      {"content_end", to_json(ContentMessage(ContentEnd{}))},
      {"content_refused", to_json(ContentMessage(ContentRefused{full_error()}))},
      {"content_checkpoint", to_json(ContentMessage(CheckpointAsk{kJob, 3}))},
      {"content_files", to_json(ContentMessage(ContentFiles{files}))},
      {"content_hello_elsewhere", to_json(ContentMessage(ContentHello{kJob, 2, true, true}))},
      {"content_checkpoint_elsewhere", to_json(ContentMessage(CheckpointAsk{kJob, 3, true}))},
      {"content_elsewhere",
       to_json(ContentMessage(ContentElsewhere{NodeId("node-1"), "10.0.0.2", 28501, "00ff"}))},
      {"content_stream_by_turn", to_json(ContentMessage(ContentStream{10, true}))},
      {"content_whole", to_json(ContentMessage(ContentWhole{}))},
      {"content_wanted", to_json(ContentMessage(ContentWanted{true}))},
      {"content_forbidden", to_json(ContentMessage(ContentForbidden{NodeId("node-1")}))},
      {"content_missed", to_json(ContentMessage(ContentMissed{"connection refused"}))},
      {"content_offer", to_json(ContentMessage(ContentOffer{kJob, 2, {}, 28501, "00ff"}))},
      {"content_offer_checkpoint",
       to_json(ContentMessage(ContentOffer{kJob, 2, 3, 28501, "00ff"}))},
      {"content_offer_preparation",
       to_json(ContentMessage(ContentOffer{{}, 0, {}, 28501, "00ff", "aa00"}))},
      {"content_preparation_elsewhere",
       to_json(ContentMessage(PreparationHello{"00ff", true, true}))},
      {"content_shard", to_json(ContentMessage(ShardOffer{"00ff", files, std::nullopt}))},
      {"content_shard_error", to_json(ContentMessage(ShardOffer{"00ff", {}, full_error()}))},
      {"node_heartbeat", to_json(NodeMessage(Heartbeat{}))},
      {"node_heartbeat_times",
       to_json(NodeMessage(Heartbeat{std::chrono::nanoseconds(5000000001),
                                     std::chrono::nanoseconds(7000000002),
                                     std::chrono::nanoseconds(5), 1767323045123456789}))},
      {"node_event", to_json(NodeMessage(FromSupervisor{kJob, 2, event}))},
      {"node_supervisor_lost", to_json(NodeMessage(SupervisorLost{kJob, 2, "killed", {17}}))},
      {"node_start_failed", to_json(NodeMessage(StartFailed{kJob, 2, full_error()}))},
      {"head_welcome", to_json(HeadMessage(Welcome{1, {"exec"}, std::chrono::seconds(5)}))},
      {"head_refused", to_json(HeadMessage(Refused{full_error()}))},
      {"head_heartbeat", to_json(HeadMessage(Heartbeat{}))},
      {"head_heartbeat_times",
       to_json(HeadMessage(Heartbeat{std::chrono::nanoseconds(7000000002)}))},
      {"head_welcome_times",
       to_json(HeadMessage(Welcome{
           1, {}, std::chrono::seconds(5), false, "", std::chrono::nanoseconds(7000000002)}))},
      {"head_start", to_json(HeadMessage(StartAttempt{spec, {{"API_KEY", "value"}}}))},
      {"head_command", to_json(HeadMessage(ToSupervisor{kJob, 2, RenewLease{}}))},
      {"head_forget", to_json(HeadMessage(ForgetJob{kJob}))},
      {"head_shutdown", to_json(HeadMessage(Shutdown{}))},
      {"head_shutdown_remove", to_json(HeadMessage(Shutdown{true}))},
      {"bulk_hello", to_json(BulkMessage(BulkHello{NodeId("node-1")}))},
      {"bulk_exec", to_json(BulkMessage(exec))},
      {"bulk_output", to_json(BulkMessage(ExecOutput{"00ff", true, 65536}))},
      {"bulk_input", to_json(BulkMessage(ExecInput{"00ff", 5}))},
      {"bulk_credit", to_json(BulkMessage(ExecCredit{"00ff", 65536}))},
      {"bulk_control", to_json(BulkMessage(control))},
      {"bulk_exit", to_json(BulkMessage(exited))},
      {"bulk_exit_error", to_json(BulkMessage(failed))},
  };
}

// Reads a message as its kind and writes it again.
json again(const std::string& name, const json& message) {
  if (name.rfind("node_", 0) == 0) return to_json(node_message_from_json(message));
  if (name.rfind("head_", 0) == 0) return to_json(head_message_from_json(message));
  if (name.rfind("content_", 0) == 0) return to_json(content_message_from_json(message));
  return to_json(bulk_message_from_json(message));
}

}  // namespace

TEST_CASE("messages of head and node are those of the golden files") {
  const bool accept = std::getenv("DTRAIN_ACCEPT") != nullptr;
  for (const auto& entry : messages()) {
    const auto& name = entry.first;
    const auto& message = entry.second;
    CAPTURE(name);
    const fs::path path = kGolden / (name + ".json");
    if (accept) {
      fs::create_directories(kGolden);
      write_file_atomic(path, message.dump(2) + "\n", 0644);
    }
    const std::string golden = read_file(path);
    CHECK(message.dump(2) + "\n" == golden);
    CHECK(again(name, json::parse(golden)).dump(2) + "\n" == golden);
  }
}

TEST_CASE("what a newer version adds is passed over") {
  for (auto entry : messages()) {
    auto name = entry.first;
    auto message = entry.second;
    message["added_later"] = {1, 2, 3};
    CAPTURE(name);
    CHECK_NOTHROW(again(name, message));
  }
}

TEST_CASE("a message with a field missing or of another type is an error that names it") {
  for (const auto& entry : messages()) {
    const auto& name = entry.first;
    const auto& message = entry.second;
    for (const auto& field : message.items()) {
      const auto& key = field.key();
      const auto& value = field.value();
      if (key == "error" || key == "exit_code" || key == "hint") continue;  // either may be absent
      CAPTURE(name);
      CAPTURE(key);
      json wrong = message;
      wrong[key] = value.is_object() ? json(1) : json::object();
      CHECK_THROWS_AS(again(name, wrong), Error);
    }
  }
  CHECK_THROWS_AS(node_message_from_json({{"type", "no such"}}), Error);
  CHECK_THROWS_AS(head_message_from_json(json::array()), Error);
  CHECK_THROWS_AS(
      bulk_message_from_json(
          {{"type", "output"}, {"exec", "x"}, {"stream", "out"}, {"bytes", kBulkFrame + 1}}),
      Error);
  for (const char* file : {"../1.out", "01.out", "1", "out", "x.out", "1.outer", "12345678.out"}) {
    CAPTURE(file);
    CHECK_THROWS_AS(
        bulk_message_from_json(
            {{"type", "log_open"}, {"job", "mnist-abcdef"}, {"attempt", 1}, {"file", file}}),
        Error);
  }
  CHECK_THROWS_AS(
      node_message_from_json(
          {{"type", "event"}, {"job", "../../etc"}, {"attempt", 1}, {"event", json::object()}}),
      Error);
}
