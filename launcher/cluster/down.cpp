#include "launcher/cluster/down.hpp"

#include <nlohmann/json.hpp>

#include "launcher/cluster/down_parts.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

// The state of a cluster of hosts; absent for one of this machine, and for what cannot be read,
// which only this machine's own traces can tell of.
std::optional<ClusterState> hosts_of(const std::string& name) {
  try {
    std::optional<ClusterState> state = load_cluster(name);
    if (state && !state->nodes.empty() && state->nodes.front().host) return state;
  } catch (const Error&) {
  }
  return std::nullopt;
}

}  // namespace

std::optional<nlohmann::json> ask_head(const fs::path& socket, const std::string& name) {
  try {
    const wire::ApiClient client(socket, name);
    if (!client.answers()) return std::nullopt;
    return client.get("/v1/status", std::chrono::seconds(10));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> running_jobs(const nlohmann::json& status) {
  std::vector<std::string> running;
  for (const nlohmann::json& job : wire::member(status, "jobs")) {
    const std::string state = wire::get_string(job, "state");
    if (state != "succeeded" && state != "failed" && state != "stopped") {
      running.push_back(wire::get_string(job, "job"));
    }
  }
  return running;
}

DownSurvey survey_down(const std::string& name, const DownOptions& options) {
  const auto hosts = hosts_of(name);
  return hosts ? survey_hosts(*hosts, options) : survey_local(name);
}

DownReport down(const std::string& name, const DownOptions& options) {
  DownReport report;
  report.name = name;
  std::error_code failed;
  if (!fs::exists(paths::cluster_state(name), failed)) {
    clear_current_cluster(name);
    return report;
  }
  const ClusterLock lock = ClusterLock::take(
      name, [&] { options.say("another up or down of " + name + " is at work: waiting for it"); });
  const auto hosts = hosts_of(name);
  return hosts ? down_hosts(*hosts, options) : down_local(name, options);
}

}  // namespace dtrain
