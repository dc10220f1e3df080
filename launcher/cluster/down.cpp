#include "launcher/cluster/down.hpp"

#include <nlohmann/json.hpp>

#include "launcher/cluster/down_way.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

bool is_there(const std::string& name) {
  const fs::path state = paths::cluster_state(name);
  std::error_code failed;
  const bool there = fs::exists(state, failed);
  if (failed) throw errno_error("cannot look at " + state.string(), failed.value());
  return there;
}

// What cannot be read is taken for a cluster of this machine, whose own traces tell of it.
std::unique_ptr<DownWay> way_of(const std::string& name, const DownOptions& options) {
  std::optional<ClusterState> state;
  try {
    state = load_cluster(name);
  } catch (Error& error) {
    // Only of machines elsewhere are there host keys: they would be forgotten, and go on.
    const fs::path keys = paths::cluster_state(name) / "known_hosts";
    if (read_file_if_there(keys)) {
      throw error.with_hint(
          "it is of machines elsewhere: with that file removed, dtrain down CLUSTER.yaml finds "
          "them");
    }
    return local_down(name, options);
  }
  if (state && !is_here(state->provider)) return hosts_down(*state, options);
  return local_down(name, options);
}

}  // namespace

std::optional<nlohmann::json> ask_head(const fs::path& socket, const std::string& name,
                                       const std::string& target) {
  try {
    const wire::ApiClient client(socket, name);
    if (!client.answers()) return std::nullopt;
    return client.get(target, std::chrono::seconds(10));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void survey_jobs(const fs::path& socket, const std::string& name, DownSurvey& survey) {
  const auto answer = ask_head(socket, name, "/v1/jobs");  // those of trials too
  if (!answer) return;
  survey.head_answers = true;
  for (const nlohmann::json& job : wire::member(*answer, "jobs")) {
    const std::string state = wire::get_string(job, "state");
    if (state != "succeeded" && state != "failed" && state != "stopped") {
      survey.running.push_back(wire::get_string(job, "job"));
    }
  }
}

nlohmann::json shut_down(const fs::path& socket, const std::string& name,
                         std::chrono::milliseconds limit) {
  return wire::ApiClient(socket, name).post("/v1/shutdown", nlohmann::json::object(), limit);
}

void empty_folder(const fs::path& folder) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().filename() != "lock") remove_tree(entry.path());
  }
}

void remove_folder(const fs::path& folder) {
  empty_folder(folder);
  remove_tree(folder);
}

DownSurvey survey_down(const std::string& name, const DownOptions& options) {
  DownSurvey survey;
  survey.there = is_there(name);
  if (survey.there) way_of(name, options)->survey(survey);
  return survey;
}

DownReport down(const std::string& name, const DownOptions& options) {
  DownReport report;
  report.name = name;
  if (!is_there(name)) {
    clear_current_cluster(name);
    return report;
  }
  bool waited = false;
  const auto say_so = [&] {
    waited = true;
    options.say("another up or down of " + name + " is at work: waiting for it");
  };
  const ClusterLock lock = ClusterLock::take(name, say_so, options.access.stop);
  report.was_there = true;
  // What was at work meanwhile may have begun on machines since they were searched.
  if (!options.searched || waited) refuse_unnoted(name);
  const std::unique_ptr<DownWay> way = way_of(name, options);
  const bool gone = way->clear(way->end_in_order(), report);
  for (const DownRow& row : report.rows) report.complete = report.complete && row.gone;
  if (gone) clear_current_cluster(name);
  return report;
}

}  // namespace dtrain
