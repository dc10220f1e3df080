#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// torchrun's flags that are none of a job: its users have them in their scripts.
struct TorchrunFlags {
  std::vector<std::string> without_effect;  // as given, "--rdzv-backend"
  std::optional<int> node_rank;
  std::optional<std::string> module;
};

void add_torchrun_flags(CLI::App& app, TorchrunFlags& flags);

// Says what dtrain does by itself. Throws Error(usage) for what would not be what torchrun does.
void heed_torchrun_flags(const Context& context, const TorchrunFlags& flags);

}  // namespace dtrain::cli
