#include "launcher/cluster/agents_local.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/paths.hpp"

namespace dtrain {
namespace {

constexpr std::chrono::seconds kWatchStart{10};
constexpr int kWatchTries = 3;
constexpr std::chrono::seconds kAgentEnd{5};

// Of those that run the same file one: they are many, and a file is large.
std::vector<FoundProcess> one_of_each_file(const std::vector<FoundProcess>& processes) {
  std::set<std::pair<dev_t, ino_t>> seen;
  std::vector<FoundProcess> each;
  for (const FoundProcess& process : processes) {
    struct stat file {};
    const std::string running = "/proc/" + std::to_string(process.pid) + "/exe";
    if (::stat(running.c_str(), &file) == 0 && !seen.insert({file.st_dev, file.st_ino}).second) {
      continue;
    }
    each.push_back(process);
  }
  return each;
}

}  // namespace

std::vector<FoundProcess> running_agents(const fs::path& folder) {
  std::vector<FoundProcess> agents = cluster_processes(folder);
  std::erase_if(agents, [](const FoundProcess& process) {
    return !is_role(process) && process.what != "watch";
  });
  return agents;
}

std::string why_replace(const std::vector<FoundProcess>& running, const UpOptions& options) {
  if (running.empty() || options.no_restart) return {};
  if (options.force) return "told to do everything again";
  const std::vector<FoundProcess> each = one_of_each_file(running);
  const bool ours = std::all_of(each.begin(), each.end(), [&](const FoundProcess& process) {
    return runs_program(process, options.agent);
  });
  return ours ? "" : "its agents run another build of dtrain";
}

void check_versions(const fs::path& folder, const std::vector<FoundProcess>& running,
                    const UpOptions& options) {
  if (options.downgrade || (options.no_restart && !running.empty())) return;
  const std::string wanted = version_of(options.agent);
  refuse_downgrade(version_of(paths::WatchRoot{folder}), wanted);
  for (const FoundProcess& process : one_of_each_file(running)) {
    if (!runs_program(process, options.agent)) refuse_downgrade(version_of(process), wanted);
  }
}

void replace_agents(const fs::path& folder, const fs::path& agent,
                    const std::function<void()>& start_watch) {
  refuse_contained({folder});
  std::vector<FoundProcess> old = running_agents(folder);
  std::optional<FoundProcess> watch;
  // Head and node agents start one of theirs too when it dies, and one may be under way.
  for (int tries = 0; tries < kWatchTries && !(watch && runs_program(*watch, agent)); ++tries) {
    end_watch({folder});
    start_watch();
    const auto until = std::chrono::steady_clock::now() + kWatchStart;
    watch.reset();
    while (!watch && std::chrono::steady_clock::now() < until) {
      watch = living_watch(folder);
      if (!watch) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  std::erase_if(old, [](const FoundProcess& process) { return !is_role(process); });
  end_processes(old, kAgentEnd);
}

void write_watch(const ClusterState& state, const fs::path& folder, Transport& head) {
  nlohmann::json children = nlohmann::json::array();
  children.push_back(
      {{"name", "head"}, {"argv", {state.agent, "head", "--root", state.head_root.string()}}});
  for (const Machine& machine : state.nodes) {
    children.push_back({{"name", machine.node.str()},
                        {"argv", {state.agent, "node", "--root", machine.root.string()}}});
  }
  const nlohmann::json config = {{"version", version_of(fs::path(state.agent))},
                                 {"children", children}};
  head.put(config.dump(2) + "\n", paths::WatchRoot{folder}.config(), 0600);
}

}  // namespace dtrain
