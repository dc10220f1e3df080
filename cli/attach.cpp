#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cli/bring_up.hpp"
#include "cli/context.hpp"
#include "cli/forward.hpp"
#include "cli/multiplexer.hpp"
#include "cli/ray.hpp"
#include "cli/remote_command.hpp"
#include "launcher/core/error.hpp"

namespace dtrain::cli {
namespace {

struct AttachFlags {
  std::string file;
  std::string node;
  Multiplexer multiplexer;
  std::vector<int> ports;
  bool start = false;
};

int run_attach(Context& context, const AttachFlags& options) {
  if (!options.file.empty()) choose_and_start(context, options.file, options.start);
  if (::isatty(STDIN_FILENO) != 1) {
    throw Error(ErrorCode::usage, "attach needs a terminal").with_hint("dtrain exec -- COMMAND");
  }
  RemoteCommand command;
  command.tty = true;
  if (options.multiplexer.wanted()) command.command = options.multiplexer.attach();
  if (!options.node.empty()) command.nodes.push_back(options.node);
  const auto forwarding = forward_ports(context, options.ports);
  return run_remote(context, command).code;
}

}  // namespace

Verb add_attach(CLI::App& root) {
  auto options = std::make_shared<AttachFlags>();
  CLI::App* app =
      add_verb(root, "attach", "A login shell on a node (default: the head's)",
               "  dtrain attach\n"
               "  dtrain attach --node node-1\n"
               "  dtrain attach --tmux           what runs there goes on without you\n");
  app->add_option("file", options->file, "The cluster YAML, in place of -c")
      ->type_name("CLUSTER.yaml");
  app->add_option("--node", options->node, "On this node")->type_name("NODE");
  options->multiplexer.add_flags(*app);
  app->add_flag("--start", options->start, "Bring the YAML's cluster up first if it is not");
  add_port_forward(*app, options->ports);
  add_ray_flags(*app);
  return {app, [options](Context& context) { return run_attach(context, *options); }, kOwnTrouble,
          false};
}

}  // namespace dtrain::cli
