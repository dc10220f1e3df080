#include "agent/head/head.hpp"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/head/engine/engine.hpp"
#include "agent/head/machines/idle.hpp"
#include "agent/head/machines/keeper.hpp"
#include "agent/head/machines/succession.hpp"
#include "agent/head/server/api.hpp"
#include "agent/head/server/checkpoint_transfers.hpp"
#include "agent/head/server/content_server.hpp"
#include "agent/head/server/doctor.hpp"
#include "agent/head/server/exec_hub.hpp"
#include "agent/head/server/file_server.hpp"
#include "agent/head/server/joins.hpp"
#include "agent/head/server/log_copies.hpp"
#include "agent/head/server/log_server.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/prunes.hpp"
#include "agent/head/server/setup_asks.hpp"
#include "agent/head/setup.hpp"
#include "agent/head/turn.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds kCredentialLife{30 * 60};
constexpr const char* kOpen = "a shell, a command or a forwarded port is open there";

// Runs work on the context after a delay; the next takes the place of one that is pending.
auto on_timer(asio::steady_timer& timer) {
  return [&timer](std::chrono::milliseconds delay, std::function<void()> work) {
    timer.expires_after(delay);
    timer.async_wait([work = std::move(work)](error_code stopped) {
      if (!stopped) work();
    });
  };
}

MachineKeeper::Hooks keeper_hooks(asio::io_context& context, asio::steady_timer& next_look,
                                  const fs::path& notes, ConfigFile& config, Engine& engine,
                                  Joins& joins, const ExecHub& execs) {
  MachineKeeper::Hooks hooks;
  hooks.post = [&](std::function<void()> work) { asio::post(context, std::move(work)); };
  hooks.timer = on_timer(next_look);
  hooks.source = [&, notes](const wire::WantedMachines& wanted) {
    return make_source(wanted, config->name, notes);
  };
  hooks.is_taken = [&](const NodeId& node) { return joins.is_taken(node); };
  hooks.issue = [&](const NodeId& node, const std::string& type,
                    const std::vector<std::string>& addresses, MachineKeeper::Hooks::Issued done) {
    Joins::Wanted wanted;
    wanted.node = node;
    wanted.type = type;
    wanted.valid_for = kCredentialLife;
    wanted.begins = false;
    wanted.made = true;
    wanted.other_addresses = addresses;
    // Of a name that was some node's already it is the same machine, which was stopped.
    wanted.again = joins.is_taken(node);
    joins.issue(wanted, [done = std::move(done)](const nlohmann::json& answer) {
      if (answer.contains("error")) return done("", wire::error_from_json(answer));
      done(wire::get_string(answer, "script"), std::nullopt);
    });
  };
  hooks.begin = [&](const NodeId& node) { joins.begin(node, [](const nlohmann::json&) {}); };
  hooks.made = [&] { return joins.made(); };
  const auto presence = [&](const NodeId& node) {
    // That node has left, and its machine comes again.
    const bool comes = engine.is_gone(node) && joins.of(node) != nullptr;
    return comes ? Engine::Presence::unseen : engine.presence(node);
  };
  hooks.node = presence;
  hooks.busy = [&] {
    std::map<NodeId, std::string> busy = engine.nodes_in_use();
    for (const NodeId& node : execs.nodes()) busy.try_emplace(node, kOpen);
    return busy;
  };
  hooks.leaves = [&](const NodeId& node) { return engine.leaves(node); };
  hooks.is_drained = [&](const NodeId& node) { return engine.is_drained(node); };
  hooks.drain = [&](const NodeId& node, bool undo) {
    engine.drain(node, undo, [](const nlohmann::json&) {});
  };
  hooks.remove = [&, presence](const NodeId& node, const std::string& why) {
    const Engine::Answer told = [node](const nlohmann::json& answer) {
      if (answer.contains("error")) {
        log::warn("a node stays", {{"node", node.str()}, {"why", wire::dump(answer["error"])}});
      }
    };
    if (presence(node) == Engine::Presence::unseen) {
      joins.revoke(node, told);
    } else {
      engine.remove_node(node, true, told, why);
    }
  };
  hooks.explain = [&](const NodeId& node, const std::string& why, bool taken_back) {
    engine.explain(node, why, taken_back);
  };
  hooks.expect_machines = [&](const MachinesToCome& machines) {
    return engine.expect_machines(machines);
  };
  hooks.capacity = [&](const NodeId& node) { return engine.capacity(node); };
  hooks.broken = [&](const NodeId& node) { return engine.broken(node); };
  hooks.is_prepared = [&](const NodeId& node) { return engine.is_prepared(node); };
  return hooks;
}

IdleWatch::Hooks idle_hooks(asio::steady_timer& timer, ConfigFile& config, Engine& engine,
                            const Sessions& sessions, const ExecHub& execs,
                            MachineKeeper& machines) {
  IdleWatch::Hooks hooks;
  hooks.timer = on_timer(timer);
  hooks.busy = [&]() -> std::string {
    if (const auto job = engine.open_job()) return job->str() + " has not ended";
    if (const std::set<NodeId> nodes = execs.nodes(); !nodes.empty()) {
      return nodes.begin()->str() + ": " + kOpen;
    }
    if (const auto search = engine.open_search()) return search->str() + " has not ended";
    if (engine.has_jobs()) return "a job is being submitted";
    return sessions.open() > 0 ? "a transfer or a request is under way" : "";
  };
  hooks.write = [&config](const std::string& text) {
    config.work([file = config.root().idle(),
                 text] { text.empty() ? void(fs::remove(file)) : write_file_atomic(file, text); },
                [](const std::optional<Error>& failed) {
                  if (failed) log::warn("an idle time is not kept", {{"why", failed->what()}});
                });
  };
  hooks.go_down = [&](const std::string& why, bool terminate) {
    engine.take_no_jobs(why);
    machines.go_down(why, terminate);
  };
  hooks.stay = [&] { engine.take_no_jobs(""); };
  return hooks;
}

// When the turn of one that moves is over so is its allocation.
std::unique_ptr<HeadHold> take_hold(const paths::HeadRoot& root) {
  try {
    return std::make_unique<HeadHold>(root, read_head_config(root).moves, turn_holder());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::conflict) ::kill(::getppid(), SIGTERM);
    throw;
  }
}

}  // namespace

int head_main(const paths::HeadRoot& root, bool leaves) {
  log::open("head", root.log().string());
  ::signal(SIGPIPE, SIG_IGN);
  // Its end is the last of all: nothing is written after it.
  const auto hold = take_hold(root);
  const HeadConfig config = read_head_config(root);  // the one before may have written it
  const SystemClock clock;
  asio::io_context greeting(1);
  asio::io_context context(1);
  ConfigFile config_file(context, root, config);
  NodeDoor door(context, greeting, config_file);
  door.listen();
  if (config.moves) write_place(root, config_file->port);
  NodeConnections nodes(context, config_file, door);

  asio::steady_timer timer(context);
  LogServer* logs = nullptr;
  Engine::Hooks hooks;
  hooks.post = [&](std::function<void()> work) { asio::post(context, std::move(work)); };
  hooks.timer = on_timer(timer);
  hooks.news = [&](const JobNews& news) {
    if (logs != nullptr) logs->news(news);
  };
  // As if it was killed: nobody is told anything that may not be found again. Whoever keeps the
  // head starts it anew, and that one restores what can be.
  hooks.damaged = [](const std::string&) { ::_exit(1); };
  MachineKeeper* keeper = nullptr;
  hooks.needs = [&] {
    if (keeper != nullptr) keeper->needs();
  };
  EngineOptions options;
  options.cluster = config.cluster;
  options.cluster_name = config.name;
  options.provider = config.provider;
  options.root = root;
  options.expected_nodes = config.expected_nodes;
  options.machine = nodes.machine();
  options.storage = config.storage;
  options.ranks_on_head = config.ranks_on_head;
  options.shared_storage = config.moves;
  Engine engine(options, clock, nodes, hooks);
  engine.set_node_types(config.node_types);

  LogServer log_server(context, engine);
  logs = &log_server;
  FileServer files(context, engine);
  LogCopies copies(context, root, engine, nodes);
  Turns turns(context, [&](const NodeId& node) { return engine.address_of(node); });
  CheckpointTransfers transfers(context, engine, nodes, turns);
  nodes.use(transfers);
  ExecHub execs(context, nodes);
  ContentServer contents(context, engine, turns, root.content());
  nodes.on_content([&](const wire::CallerPtr& caller) { contents.serve_node(caller); },
                   [&](const NodeId& node) { contents.end(node); },
                   [&](const NodeId& node) { turns.forbid(node); });
  Joins joins(context, contents.thread(), config_file, engine, clock);
  nodes.use(joins);
  Preparations preparations(
      config_file, contents, engine,
      [&](const NodeId& node, const wire::HeadMessage& message) { nodes.tell(node, message); });
  nodes.use(preparations);
  contents.use(preparations);
  SetupAsks setups(context, nodes);
  asio::steady_timer next_look(context);
  std::optional<Succession> succession;
  const char* slurm_job = std::getenv("SLURM_JOB_ID");
  if (config.moves && slurm_job != nullptr && !leaves) {
    succession.emplace(config.name, config.cluster, slurm_job);
  }
  MachineKeeper::Hooks machine_hooks =
      keeper_hooks(context, next_look, root.asked_for(), config_file, engine, joins, execs);
  IdleWatch* idle = nullptr;
  machine_hooks.wants = [&](const wire::WantedMachines& wanted) {
    if (succession) succession->want(wanted);
    if (idle != nullptr) idle->want(wanted.down_when_idle);
  };
  MachineKeeper machines(config.cluster, root.machines(), root.costs(), clock, machine_hooks);
  keeper = &machines;
  asio::steady_timer idle_look(context);
  Sessions sessions(context);
  IdleWatch idle_watch(clock, boot_id(), read_file_if_there(root.idle()),
                       idle_hooks(idle_look, config_file, engine, sessions, execs, machines));
  idle = &idle_watch;
  sessions.on_end([&] { idle_watch.touch(); });
  execs.on_end([&] { machines.needs(); });  // a node may be idle from now on
  idle_watch.resume(machines.wanted().down_when_idle);
  if (succession && machines.wanted().head) succession->want(machines.wanted());
  joins.on_early([&] { machines.look(); });
  nodes.on_change([&](const NodeId& node) { machines.changed(node); });
  Prunes prunes(context, engine, nodes, contents, preparations, root);
  Doctor doctor(context, {engine, config_file, door, nodes, contents, preparations});
  Api api(
      context, paths::head_socket(root.root),
      {engine, config_file, door, nodes, log_server, files, execs, contents, setups, prunes, doctor,
       joins, preparations, machines, sessions, idle_watch, succession ? &*succession : nullptr},
      [&] { context.stop(); });
  asio::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](error_code failed, int) {
    if (!failed) context.stop();
  });
  nodes.serve(engine);
  api.serve();
  prunes.serve();
  machines.look();
  log::info("the head is up",
            {{"port", std::to_string(door.port())}, {"root", root.root.string()}});
  wire::run_loop(context);
  // What the log thread still asked of this one is answered here, while both exist.
  log_server.stop();
  files.stop();
  contents.stop();
  transfers.stop();
  turns.stop();
  context.restart();
  context.poll();
  log::info("the head ends");
  return 0;
}

}  // namespace dtrain::head
