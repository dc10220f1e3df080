#include "cli/torchrun_flags.hpp"

#include <CLI/CLI.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {

void add_torchrun_flags(CLI::App& app, TorchrunFlags& flags) {
  // How the ranks meet, how processes are started and watched, where output goes.
  for (const std::string name :
       {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr",
        "--master-port", "--local-addr", "--monitor-interval", "--start-method", "--role",
        "--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--signals-to-handle"}) {
    app.add_option_function<std::string>(
           name, [&flags, name](const std::string&) { flags.without_effect.push_back(name); })
        ->group("");
  }
  for (const std::string name : {"--standalone", "--no-python"}) {
    app.add_flag_function(name,
                          [&flags, name](std::int64_t) { flags.without_effect.push_back(name); })
        ->group("");
  }
  app.add_option("--node-rank", flags.node_rank)->group("");
  app.add_option("-m,--module", flags.module)->group("");
}

void heed_torchrun_flags(const Context& context, const TorchrunFlags& flags) {
  if (flags.module) {
    throw Error(ErrorCode::usage, "--module: dtrain starts programs, not Python's modules")
        .with_hint("dtrain submit -- python3 -m " + shell_quote(*flags.module));
  }
  if (flags.node_rank && *flags.node_rank != 0) {
    throw Error(ErrorCode::usage,
                "--node-rank: one submit starts the ranks of all nodes, and numbers them")
        .with_hint("run it once, with --nnodes, and without --node-rank");
  }
  std::vector<std::string> names = flags.without_effect;
  if (flags.node_rank) names.emplace_back("--node-rank");
  if (names.empty()) return;
  context.note(join(names, ", ") + (names.size() == 1 ? " has" : " have") +
               " no effect: dtrain does that by itself (dtrain submit --help)");
}

}  // namespace dtrain::cli
