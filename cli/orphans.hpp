#pragma once

#include <string>

#include "cli/context.hpp"

namespace dtrain::cli {

// `down --all-orphans`: shows what of dtrain's has no living head in a region, asks (but for
// `yes`), and gives it back. Gives the exit code.
int take_orphans_away(Context& context, const std::string& region, bool yes);

}  // namespace dtrain::cli
