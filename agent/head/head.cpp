#include "agent/head/head.hpp"

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/api.hpp"
#include "agent/head/server/checkpoint_transfers.hpp"
#include "agent/head/server/content_server.hpp"
#include "agent/head/server/exec_hub.hpp"
#include "agent/head/server/file_server.hpp"
#include "agent/head/server/joins.hpp"
#include "agent/head/server/log_copies.hpp"
#include "agent/head/server/log_server.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/prunes.hpp"
#include "agent/head/server/setup_asks.hpp"
#include "agent/head/setup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;

int head_main(const paths::HeadRoot& root) {
  log::open("head", root.log().string());
  ::signal(SIGPIPE, SIG_IGN);
  auto lock = FileLock::try_lock(root.lock());
  if (!lock) {
    log::info("another head holds this root; waiting for its end");
    lock = FileLock::wait(root.lock());
  }
  const HeadConfig config = read_head_config(root);
  const SystemClock clock;
  asio::io_context context(1);
  ConfigFile config_file(context, root, config);
  NodeDoor door(context, config_file);
  door.listen();
  NodeConnections nodes(context, config_file, door);

  asio::steady_timer timer(context);
  LogServer* logs = nullptr;
  Engine::Hooks hooks;
  hooks.post = [&](std::function<void()> work) { asio::post(context, std::move(work)); };
  hooks.timer = [&](std::chrono::milliseconds delay, std::function<void()> work) {
    timer.expires_after(delay);
    timer.async_wait([work = std::move(work)](error_code stopped) {
      if (!stopped) work();
    });
  };
  hooks.news = [&](const JobNews& news) {
    if (logs != nullptr) logs->news(news);
  };
  EngineOptions options;
  options.cluster = config.cluster;
  options.cluster_name = config.name;
  options.provider = config.provider;
  options.root = root;
  options.expected_nodes = config.expected_nodes;
  options.machine = nodes.machine();
  options.storage = config.storage;
  Engine engine(options, clock, nodes, hooks);

  LogServer log_server(context, engine);
  logs = &log_server;
  FileServer files(context, engine);
  LogCopies copies(context, root, engine, nodes);
  CheckpointTransfers transfers(context, engine, nodes);
  nodes.use(transfers);
  ExecHub execs(context, nodes);
  ContentServer contents(context, engine, root.content());
  nodes.on_content([&](const wire::CallerPtr& caller) { contents.serve_node(caller); },
                   [&](const NodeId& node) { contents.end(node); });
  Joins joins(context, contents.thread(), config_file, engine, clock);
  nodes.use(joins);
  Preparations preparations(
      config_file, contents, engine,
      [&](const NodeId& node, const wire::HeadMessage& message) { nodes.tell(node, message); });
  nodes.use(preparations);
  contents.use(preparations);
  SetupAsks setups(context, nodes);
  Prunes prunes(context, engine, nodes, contents, preparations, root);
  Api api(context, paths::head_socket(root.root),
          {engine, config_file, door, nodes, log_server, files, execs, contents, setups, prunes,
           joins, preparations},
          [&] { context.stop(); });
  asio::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](error_code failed, int) {
    if (!failed) context.stop();
  });
  nodes.serve(engine);
  api.serve();
  prunes.serve();
  log::info("the head is up",
            {{"port", std::to_string(door.port())}, {"root", root.root.string()}});
  wire::run_loop(context);
  // What the log thread still asked of this one is answered here, while both exist.
  log_server.stop();
  files.stop();
  contents.stop();
  transfers.stop();
  context.restart();
  context.poll();
  log::info("the head ends");
  return 0;
}

}  // namespace dtrain::head
