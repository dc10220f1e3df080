#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <thread>

#include "agent/head/head.hpp"
#include "agent/head/setup.hpp"
#include "agent/node/config.hpp"
#include "agent/node/node.hpp"
#include "agent/session/bridge.hpp"
#include "agent/session/join.hpp"
#include "agent/session/prepare.hpp"
#include "agent/session/session.hpp"
#include "agent/session/setup_run.hpp"
#include "agent/supervise/supervise.hpp"
#include "agent/supervise/task.hpp"
#include "agent/watch/contained.hpp"
#include "agent/watch/keeper.hpp"
#include "agent/watch/watch.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/files/sync.hpp"

// dtrain-agent: what runs on every node. People do not type these commands; `dtrain up` does.
namespace {

using namespace dtrain;

// Hosts that share a home are given the same agent at the same time: then ours may have been
// replaced by its like, and Linux calls it deleted.
std::string own_path() {
  std::string path = fs::read_symlink("/proc/self/exe").string();
  constexpr std::string_view kReplaced = " (deleted)";
  if (path.ends_with(kReplaced)) path.resize(path.size() - kReplaced.size());
  return path;
}

std::string read_stdin() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

// When we are told to go, our stdio ends: then a transfer that is under way cleans up after itself.
// To be called before any other thread is there.
void end_stdio_on_hangup() {
  ::signal(SIGUSR1, [](int) {});  // only to wake the main thread up
  sigset_t told{};
  ::sigemptyset(&told);
  ::sigaddset(&told, SIGHUP);
  ::sigaddset(&told, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &told, nullptr);
  std::thread([told, main = ::pthread_self()] {
    int number = 0;
    ::sigwait(&told, &number);
    const UniqueFd nothing = open_file("/dev/null", O_RDWR);
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(nothing.get(), STDOUT_FILENO);
    // It may just be about to wait for what is no longer there.
    while (true) {
      ::pthread_kill(main, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }).detach();
}

// The other end of `dtrain sync`, over stdio.
int sync_here(FramedStream& stream, const fs::path& state, const std::string& name,
              const fs::path& parcels = {}) {
  const char* home = std::getenv("HOME");
  ReceiveOptions options;
  options.home = home != nullptr && *home == '/' ? home : "/";
  options.state = state;
  options.name = name;
  options.parcels = parcels;
  return serve_sync(stream, options);
}

int sync_main(const std::string& state, const std::string& name) {
  ::signal(SIGPIPE, SIG_IGN);
  end_stdio_on_hangup();
  FramedStream stream(STDIN_FILENO, STDOUT_FILENO);
  return sync_here(stream, state, name);
}

struct Arguments {
  std::string root;
  std::string cluster;
  std::string name;
  std::string provider = "local";
  std::string node;
  std::string job;
  std::string list;
  int nodes = 1;
  int port = 0;
  int attempt = 1;
  int lock = -1;
  std::string credential;
  std::vector<std::string> addresses;
  std::string place;
  bool contained = false;
  int end_within = 28;
  bool fresh = false;
};

// The foreground form of what keeps agents.
void add_contained(CLI::App* verb, Arguments& args) {
  CLI::Option* contained = verb->add_flag(
      "--contained", args.contained,
      "In the foreground, as PID 1 of a container or a task of srun: reaps everything; SIGTERM "
      "stops the ranks by their grace, tells the head why, and ends all that runs below");
  verb->add_option("--end-within", args.end_within,
                   "Seconds from SIGTERM until all has ended; ranks get at most three quarters of "
                   "them. Less than whoever sends SIGKILL waits: 30 s by default in Kubernetes and "
                   "Slurm (KillWait), 10 s in Docker")
      ->needs(contained)
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  raise_open_files();
  CLI::App app("The program that dtrain puts on every node.", "dtrain-agent");
  app.set_version_flag("--version", std::string(DTRAIN_VERSION));
  app.require_subcommand(1);
  Arguments args;
  int status = 0;
  const auto command = [&](const char* verb, const char* what, auto run) {
    CLI::App* sub = app.add_subcommand(verb, what);
    sub->add_option("--root", args.root, "The folder that it keeps its files in")->required();
    sub->callback([&args, &status, run] { status = run(args); });
    return sub;
  };

  command("head", "Role: the head of a cluster", [](Arguments& a) {
    watch::keep_watch(own_path());
    const auto contained = watch::from_environment();
    return head::head_main({a.root}, contained && contained->told != 0);
  });
  command("node", "Role: the agent of a node", [](Arguments& a) {
    watch::keep_watch(own_path());
    node::NodeOptions options{{a.root}, own_path(), std::nullopt};
    if (const auto contained = watch::from_environment()) {
      options.contained = {contained->limit, contained->told,
                           [why = contained->why] { return watch::read_why(why); }};
    }
    return node::node_main(options);
  });
  CLI::App* watch = command("watch", "Role: starts head and node agents again", [](Arguments& a) {
    if (!a.contained) return watch::watch_main({a.root});
    return watch::watch_main({a.root}, std::chrono::seconds(a.end_within));
  });
  add_contained(watch, args);
  CLI::App* supervise =
      command("supervise", "Role: one attempt's ranks on this node", [](Arguments& a) {
        supervise::SuperviseOptions options{a.root, JobId(a.job), a.attempt, a.lock};
        options.program = own_path();
        return supervise::supervise_main(options);
      });
  supervise->add_option("--job", args.job)->required();
  supervise->add_option("--attempt", args.attempt)->required();
  supervise->add_option("--lock", args.lock, "The descriptor that is the attempt's lock");

  app.add_subcommand("task", "Role: stands for a rank in a step of Slurm's; srun starts it")
      ->callback([&status] { status = supervise::task_main(); });

  CLI::App* init_head =
      command("init-head", "Make a cluster's CA and the head's identity", [](Arguments& a) {
        head::init_head({a.root}, {ClusterId(a.cluster), a.name, a.provider, a.nodes, a.port, 0});
        return 0;
      });
  init_head->add_option("--cluster", args.cluster)->required();
  init_head->add_option("--name", args.name)->required();
  init_head->add_option("--provider", args.provider);
  init_head->add_option("--nodes", args.nodes);
  init_head->add_option("--port", args.port);

  CLI::App* init_node =
      command("init-node", "Make a node's key; prints a certificate request", [](Arguments& a) {
        std::cout << node::init_node({a.root}, ClusterId(a.cluster), NodeId(a.node));
        return 0;
      });
  init_node->add_option("--cluster", args.cluster)->required();
  init_node->add_option("--node", args.node)->required();

  CLI::App* sign = command("sign", "On the head: sign the request on stdin; prints certificates",
                           [](Arguments& a) {
                             std::cout << head::sign_node({a.root}, NodeId(a.node), read_stdin());
                             return 0;
                           });
  sign->add_option("--node", args.node)->required();

  command("install-identity", "Keep the certificates on stdin", [](Arguments& a) {
    node::install_identity({a.root}, read_stdin());
    return 0;
  });
  command("capture-env", "Keep the login shell's environment for ranks", [](Arguments& a) {
    const std::string warning = node::capture_environment({a.root});
    if (!warning.empty()) std::cerr << warning << "\n";
    return 0;
  });

  CLI::App* setup = command("setup", "Run a list of setup commands; a session starts it",
                            [](Arguments& a) { return session::setup_main({a.root}, a.list); });
  setup->add_option("--list", args.list)->required();
  command("prepare", "Do what the head wants of this node's machine; its agent starts it",
          [](Arguments& a) { return session::prepare_main({a.root}, own_path()); });
  command("leave", "End and remove a node that joined by itself",
          [](Arguments& a) { return session::leave_main({a.root}, own_path()); });
  CLI::App* join = app.add_subcommand("join", "Make this machine a node; a join script starts it");
  join->add_option("--credential", args.credential, "A folder")->required();
  join->add_option("--address", args.addresses, "Of the head; several: each is tried")->required();
  join->add_option("--port", args.port)->required();
  join->add_option("--place", args.place, "A file that says where the head is by now");
  add_contained(join, args);
  join->callback([&args, &status] {
    session::JoinOptions options{own_path(), args.credential, args.addresses,
                                 args.port,  args.place,      {}};
    if (args.contained) {
      options.contained = [&args](const paths::WatchRoot& root) {
        return watch::watch_main(root, std::chrono::seconds(args.end_within));
      };
    }
    status = session::join_main(options);
  });
  command("bridge", "Join stdin and stdout to the head's socket",
          [](Arguments& a) { return session::bridge_main({a.root}); });
  CLI::App* session =
      app.add_subcommand("session", "What up and down do here, over stdin and stdout");
  session->add_flag("--fresh", args.fresh, "The program has just been put here");
  session->callback([&args, &status] {
    session::SessionOptions options;
    options.program = own_path();
    options.fresh = args.fresh;
    options.streams["sync"] = [](const session::NodePlace& place, const nlohmann::json&,
                                 FramedStream& stream, const wire::HostFacts&) {
      sync_here(stream, place.sync_records(), place.node.str(), place.root().root);
    };
    status = session::session_main(options);
  });
  std::string sync_state;
  std::string sync_name;
  CLI::App* sync = app.add_subcommand("sync", "The other end of dtrain sync, over stdio");
  sync->add_option("--state", sync_state, "Where it keeps what it knows")->required();
  sync->add_option("--name", sync_name, "The node's name, for messages");
  sync->callback([&] { status = sync_main(sync_state, sync_name); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    log::error(error.what(), {{"hint", error.hint()}});
    if (::isatty(STDERR_FILENO) == 0) std::cerr << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    log::error(error.what());
    return 1;
  }
  std::cout.flush();
  return status;
}
