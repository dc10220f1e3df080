#pragma once

namespace CLI {
class App;
}

namespace dtrain::cli {

// Flags of Ray's cluster launcher that mean nothing here: taken, not shown.
void add_ray_flags(CLI::App& app);

}  // namespace dtrain::cli
