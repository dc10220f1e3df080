#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cli/bring_up.hpp"
#include "cli/command_words.hpp"
#include "cli/context.hpp"
#include "cli/forward.hpp"
#include "cli/multiplexer.hpp"
#include "cli/ray.hpp"
#include "cli/remote_command.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain::cli {
namespace {

struct ExecFlags {
  std::vector<std::string> words;
  std::vector<std::string> nodes;
  bool all = false;
  bool tty = false;
  bool start = false;
  bool stop = false;
  Multiplexer multiplexer;
  std::vector<int> ports;
  std::string workdir;
};

int run_exec(Context& context, ExecFlags options) {
  if (options.all && !options.nodes.empty()) {
    throw Error(ErrorCode::usage, "--all and --node exclude each other");
  }
  if (!options.words.empty() && names_cluster_yaml(options.words.front())) {
    choose_and_start(context, options.words.front(), options.start);
    options.words.erase(options.words.begin());
  }
  RemoteCommand command;
  command.nodes = options.nodes;
  command.all = options.all;
  command.tty = options.tty;
  command.workdir = options.workdir;
  const auto given = command_words(context.tail, options.words);
  if (!given) {
    throw Error(ErrorCode::usage, "a command is wanted")
        .with_hint("dtrain exec -- hostname; for a shell: dtrain attach");
  }
  command.command = given->words;
  command.shell = given->shell;
  if (options.multiplexer.wanted()) {
    if (options.stop || options.tty || !options.ports.empty()) {
      throw Error(ErrorCode::usage, "a command in tmux or screen is not waited for")
          .with_hint("without --stop, --tty and --port-forward");
    }
    const std::string session = "dtrain-" + random_hex(2);
    command.command = options.multiplexer.run(session, command.command, command.shell);
    command.shell = false;
    const int code = run_remote(context, command).code;
    if (code == 0) {
      context.note("it runs in session " + session + "; dtrain attach " +
                   (options.multiplexer.tmux ? "--tmux" : "--screen"));
    }
    return code;
  }
  const std::string name = context.cluster();
  const std::string stays = "cluster " + name + " is not given back: dtrain down -c " + name;
  RemoteEnd end;
  try {
    const auto forwarding = forward_ports(context, options.ports);
    end = run_remote(context, command);
  } catch (const Error&) {
    if (options.stop) context.warn(stays);
    throw;
  }
  if (!options.stop) return end.code;
  if (!end.ended) {
    context.warn(stays);
    return end.code;
  }
  const int down = take_down(context, true);
  return end.code != 0 ? end.code : down;
}

}  // namespace

Verb add_exec(CLI::App& root) {
  auto options = std::make_shared<ExecFlags>();
  CLI::App* app = add_verb(root, "exec", "Run a command on nodes (default: the head's)",
                           "  dtrain exec -- nvidia-smi -L\n"
                           "  dtrain exec --all -- df -h /\n"
                           "  dtrain exec 'ls ~ | wc -l'     one argument goes to the shell\n"
                           "  dtrain exec --tmux -- ./long   goes on when this machine sleeps\n"
                           "Exit code: the command's, the largest of all nodes; 255 for dtrain's "
                           "own trouble.\n");
  app->add_option("command", options->words, "The command, or after --")->type_name("CMD...");
  app->add_option("--node", options->nodes, "On this node; again for more")
      ->type_name("NODE")
      ->allow_extra_args(false);
  app->add_flag("--all", options->all, "On all nodes");
  app->add_flag("-t,--tty", options->tty, "With a terminal");
  options->multiplexer.add_flags(*app);
  app->add_flag("--start", options->start, "Bring the YAML's cluster up first if it is not");
  app->add_flag("--stop", options->stop, "Take the cluster down when the command has ended");
  add_port_forward(*app, options->ports);
  add_ray_flags(*app);
  app->add_option("--workdir", options->workdir, "Where it runs")->type_name("DIR");
  return {app, [options](Context& context) { return run_exec(context, *options); }, kOwnTrouble};
}

}  // namespace dtrain::cli
