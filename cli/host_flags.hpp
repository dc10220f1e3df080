#pragma once

#include <chrono>
#include <optional>

#include <CLI/CLI.hpp>

#include "launcher/cluster/progress.hpp"
#include "launcher/remote/ssh/options.hpp"

namespace dtrain::cli {

// What `up` and `down` are told of many hosts alike.
struct HostFlags {
  std::optional<double> timeout_s;
  int max_parallel = kMaxParallel;

  void add(CLI::App& app) {
    app.add_option("--timeout", timeout_s, "How long a host that lets nobody in is tried")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 86400.0));
    app.add_option("--max-parallel", max_parallel, "How many hosts are worked on at once (64)")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
  }

  // Into UpOptions or DownOptions, whose access is there.
  template <typename Options>
  void apply(Options& options) const {
    options.max_parallel = max_parallel;
    if (options.access.ssh) options.access.ssh->gate().allow_together(max_parallel);
    if (!timeout_s) return;
    options.access.reach_limit =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(*timeout_s));
  }
};

}  // namespace dtrain::cli
