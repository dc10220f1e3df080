#pragma once

#include <fstream>

#include "launcher/files/sha256.hpp"
#include "tests/agent/head/engine/world.hpp"

namespace dtrain::head::testing {

inline nlohmann::json row_of(const World& world, const std::string& node) {
  const nlohmann::json status = world.engine->status();
  for (const auto& each : status.at("nodes")) {
    if (each.at("node") == node) return each;
  }
  return nlohmann::json::object();
}

inline std::string state_of(const World& world, const std::string& node) {
  return row_of(world, node).value("state", "not listed");
}

// Nodes that are machines of their own, and none of them the head's.
struct Far : World {
  explicit Far(int nodes) : World(nodes) {
    options.machine = "machine-head";
    restart();
    for (int i = 0; i < nodes; ++i) join("node-" + std::to_string(i));
  }

  // Its one rank, on node-0, runs; the next event is the third.
  void begin(const JobId& id) {
    started("node-0", id, 1);
    say("node-0", id, 1, wire::MasterReady{29500});
    start_ranks("node-0", id, 1, 0, 1);
  }

  // A shard of one file comes.
  static void deliver(const Fetch& fetch) {
    fs::create_directories(fetch.folder);
    std::ofstream(fetch.folder / "model") << "weights";
    const FileSum sum = sum_file(fetch.folder / "model");
    fetch.done(std::nullopt, {{"model", sum.size, sum.sha256}});
  }
};

// A job over so many.
inline JobSpec over(int nodes) {
  JobSpec spec = World::spec();
  spec.nnodes = {nodes, nodes};
  return spec;
}

}  // namespace dtrain::head::testing
