#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down_parts.hpp"
#include "launcher/cluster/node_down.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"

// `down` of machines that are there: all of them side by side, each looked at afterwards.
namespace dtrain {
namespace {

std::string files_in_words(std::int64_t files, std::int64_t bytes) {
  return std::to_string(files) + (files == 1 ? " file, " : " files, ") +
         human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
}

// All of them, so that those which cannot be reached take their time together; what became of it is
// the provider's to remember.
void reach_all(Provider& provider, const ClusterState& state, const DownOptions& options) {
  side_by_side(state.nodes.size(), static_cast<std::size_t>(options.max_parallel),
               [&](std::size_t i) {
                 try {
                   provider.reach(state.nodes[i]);
                 } catch (const std::exception&) {  // told by whoever needs it
                 }
               });
}

// Stops the jobs and the nodes in order, through the head. Empty when that went well.
std::string end_in_order(const ClusterState& state, Provider& provider,
                         const DownOptions& options) {
  std::string trouble;
  try {
    const HeadDoor door = HeadDoor::open(state, provider);
    const wire::ApiClient client(door.socket(), state.name);
    if (!options.workers_only) {
      client.post("/v1/shutdown", nlohmann::json::object(), options.stop_limit);
      return {};
    }
    for (std::size_t i = 1; i < state.nodes.size(); ++i) {
      const std::string route = "/v1/nodes/" + wire::percent_encode(state.nodes[i].node.str());
      // The jobs on it end: whoever asked for this has been told.
      try {
        client.post(route + "/remove", {{"force", true}}, options.stop_limit);
      } catch (const Error& error) {  // the others are asked all the same
        trouble = error.what();
      }
    }
    return trouble;
  } catch (const Error& error) {
    return error.what();
  }
}

void add_rows(const NodeDown& node, DownReport& report) {
  DownRow row;
  row.node = node.node.str();
  if (node.error) {
    row.what = "not reached";
    row.had = "?";
    row.now = "?";
    row.note = node.error->message() + "; what it had stays on it";
    row.gone = false;
    report.rows.push_back(row);
    return;
  }
  report.rows.push_back({row.node, "processes", std::to_string(node.processes),
                         std::to_string(node.processes_now), node.note, node.processes_now == 0});
  row.what = "files";
  row.had = files_in_words(node.files, node.bytes);
  row.now = node.kept.empty() ? std::to_string(node.files_now) : "kept";
  row.note = node.kept;
  row.gone = node.files_now == 0 || !node.kept.empty();
  report.rows.push_back(row);
  if (!node.changed.empty()) {
    row.what = "synced files";
    row.had = std::to_string(node.changed.size()) + " changed since";
    row.now = "kept";
    row.gone = true;
    row.note = node.changed.front() + (node.changed.size() > 1 ? ", …" : "");
    report.rows.push_back(row);
  }
  for (const std::string& left : node.left) {
    report.rows.push_back({row.node, "left", "", "there", left, false});
  }
}

}  // namespace

DownSurvey survey_hosts(const ClusterState& state, const DownOptions& options) {
  DownSurvey survey;
  survey.there = true;
  try {
    survey.provider = provider_of(state, options.access);
    Provider* const provider = survey.provider.get();
    reach_all(*provider, state, options);
    const HeadDoor door = HeadDoor::open(state, *provider);
    if (const auto status = ask_head(door.socket(), state.name)) {
      survey.head_answers = true;
      survey.running = running_jobs(*status);
    }
    const std::unique_ptr<Transport> transport = provider->reach(state.nodes.front());
    AgentSession session = AgentSession::open(*transport, AgentBinary::load(options.agent));
    session.open_node({state.id, state.nodes.front().node, base_of(state), false, true, {}});
    const wire::SurveyReport found = session.survey({true});
    survey.checkpoints = found.checkpoints;
    survey.checkpoint_bytes = static_cast<std::uint64_t>(found.checkpoint_bytes);
    survey.checkpoint_jobs = found.checkpoint_jobs;
  } catch (const Error&) {  // `down` itself will say which machine cannot be reached
  }
  return survey;
}

DownReport down_hosts(const ClusterState& state, const DownOptions& options) {
  DownReport report;
  report.name = state.name;
  report.was_there = true;
  const std::shared_ptr<Provider> provider =
      options.provider ? options.provider : provider_of(state, options.access);
  reach_all(*provider, state, options);
  options.say("stopping jobs and nodes");
  const std::string trouble = end_in_order(state, *provider, options);
  if (!trouble.empty()) options.say("not in order, so by force: " + trouble);

  const auto binary = AgentBinary::load(options.agent);
  const std::size_t first = options.workers_only ? 1 : 0;
  std::vector<NodeDown> nodes(state.nodes.size());
  side_by_side(nodes.size() - first, static_cast<std::size_t>(options.max_parallel),
               [&](std::size_t number) {
                 const std::size_t i = first + number;
                 NodeDownTask task;
                 task.machine = state.nodes[i];
                 task.cluster = state.id;
                 task.base = base_of(state);
                 task.head = i == 0;
                 task.keep_files = options.keep_files;
                 nodes[i] = take_node_down(*provider, binary, task, options.progress);
               });

  ClusterState left = state;
  left.nodes.clear();
  for (std::size_t i = 0; i < state.nodes.size(); ++i) {
    if (i < first) {
      left.nodes.push_back(state.nodes[i]);
      continue;
    }
    add_rows(nodes[i], report);
    if (!nodes[i].complete()) left.nodes.push_back(state.nodes[i]);
    if (i == 0 && !nodes[i].kept.empty()) report.kept = nodes[i].kept;
  }
  // The first is the head's, also when only others are left: to take it down again harms nothing.
  if (!left.nodes.empty() && left.nodes.front().node != state.nodes.front().node) {
    left.nodes.insert(left.nodes.begin(), state.nodes.front());
  }
  for (const DownRow& row : report.rows) report.complete = report.complete && row.gone;
  if (left.nodes.empty()) {
    const fs::path folder = paths::cluster_state(state.name);
    std::error_code failed;
    for (const auto& entry : fs::directory_iterator(folder, failed)) {
      if (entry.path().filename() != "lock") remove_tree(entry.path());
    }
    remove_tree(folder);
    clear_current_cluster(state.name);
  } else {
    save_cluster(left);  // what is left can be taken down later
  }
  return report;
}

}  // namespace dtrain
