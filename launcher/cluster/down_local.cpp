#include "launcher/cluster/down_parts.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/processes.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kEndLimit = seconds(5);

std::string kinds(const std::vector<FoundProcess>& processes) {
  std::map<std::string, std::size_t> counts;
  for (const FoundProcess& process : processes) ++counts[process.what];
  std::vector<std::string> parts;
  for (const auto& [what, count] : counts) {
    parts.push_back(count == 1 ? what : std::to_string(count) + " × " + what);
  }
  return join(parts, ", ");
}

// SIGKILL to all until none is left; gives those that would not die.
std::vector<FoundProcess> kill_all(const fs::path& folder) {
  const auto until = std::chrono::steady_clock::now() + kEndLimit;
  forget_watch({folder});
  while (true) {
    std::vector<FoundProcess> left = cluster_processes(folder);
    // Watch first: it would start the others again.
    std::stable_sort(left.begin(), left.end(), [](const FoundProcess& a, const FoundProcess& b) {
      return (a.what == "watch") > (b.what == "watch");
    });
    for (const FoundProcess& process : left) signal_process(process, SIGKILL);
    for (const FoundProcess& process : left) wait_gone(process, milliseconds(200));
    if (left.empty() || std::chrono::steady_clock::now() >= until) return left;
  }
}

void empty_folder(const fs::path& folder) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().filename() != "lock") remove_tree(entry.path());
  }
}

// Roots that have a folder for sockets, whatever the state file says.
std::vector<fs::path> roots_below(const fs::path& folder) {
  std::vector<fs::path> roots{folder, folder / "head"};
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder / "nodes", failed)) {
    roots.push_back(entry.path());
  }
  return roots;
}

// Removes the roots' folders of sockets, and control groups that killed supervisors have left;
// gives how many sockets were there.
std::size_t remove_sockets(const fs::path& folder) {
  std::size_t count = 0;
  std::error_code failed;
  for (const fs::path& root : roots_below(folder)) {
    clear_cgroups({root});
    const fs::path sockets = paths::socket_folder(root);
    for (const auto& entry : fs::directory_iterator(sockets, failed)) {
      if (entry.is_socket(failed)) ++count;
    }
    remove_tree(sockets);
    ::rmdir(sockets.parent_path().c_str());  // the last one takes the user's folder along
  }
  return count;
}

std::size_t count_files(const fs::path& folder, std::uint64_t& bytes) {
  std::size_t count = 0;
  std::error_code failed;
  for (auto it = fs::recursive_directory_iterator(
           folder, fs::directory_options::skip_permission_denied, failed);
       it != fs::recursive_directory_iterator(); it.increment(failed)) {
    if (failed) break;
    if (!it->is_regular_file(failed) || it->is_symlink(failed)) continue;
    ++count;
    bytes += it->file_size(failed);
  }
  return count;
}

// The port of the head as it wrote it down; 0 when that cannot be read.
int port_of(const fs::path& folder) {
  try {
    const auto text = read_file_if_there(paths::HeadRoot{folder / "head"}.config());
    if (!text) return 0;
    return static_cast<int>(
        wire::get_int(wire::parse_json(*text, "head.json"), "port", 0, 65535, 0));
  } catch (const Error&) {
    return 0;
  }
}

std::optional<nlohmann::json> ask_status(const std::string& name) {
  return ask_head(paths::head_socket(paths::cluster_state(name) / "head"), name);
}

// After its watch was killed, a cluster has a second head and node agents, which wait for the
// first ones' end to take over. Now nobody shall.
void end_standbys(const fs::path& folder) {
  std::vector<FoundProcess> all = cluster_processes(folder);
  std::stable_sort(all.begin(), all.end(), [](const FoundProcess& a, const FoundProcess& b) {
    return a.start_time < b.start_time;
  });
  std::set<std::pair<std::string, std::string>> first;
  for (const FoundProcess& process : all) {
    if (!is_role(process)) continue;
    if (first.insert({process.what, process.root}).second) continue;
    signal_process(process, SIGKILL);
    wait_gone(process, seconds(1));
  }
}

}  // namespace

DownSurvey survey_local(const std::string& name) {
  DownSurvey survey;
  const fs::path folder = paths::cluster_state(name);
  std::error_code failed;
  if (!fs::exists(folder, failed)) return survey;
  survey.there = true;
  survey.head_answers = cluster_processes(folder).empty();  // nothing runs that it could tell of
  if (const auto status = ask_status(name)) {
    survey.head_answers = true;
    survey.running = running_jobs(*status);
  }
  for (const StoredCheckpoints& job :
       unpulled_checkpoints(paths::HeadRoot{folder / "head"}.storage())) {
    survey.checkpoints += job.count;
    survey.checkpoint_bytes += job.bytes;
    survey.checkpoint_jobs.push_back(job.job);
  }
  return survey;
}

DownReport down_local(const std::string& name, const DownOptions& options) {
  DownReport report;
  report.name = name;
  const fs::path folder = paths::cluster_state(name);
  std::error_code failed;
  if (!fs::exists(folder, failed)) {
    clear_current_cluster(name);
    return report;
  }
  report.was_there = true;
  const std::vector<FoundProcess> before = cluster_processes(folder);
  const auto status = ask_status(name);
  int port = port_of(folder);
  if (status) {
    const nlohmann::json cluster = status->value("cluster", nlohmann::json::object());
    if (cluster.contains("head") && cluster["head"].is_object()) {
      port = cluster["head"].value("port", port);
    }
  }

  options.say("ending the watch");
  end_watch({folder});
  end_standbys(folder);
  std::string how;
  if (status) {
    options.say("stopping jobs, nodes and head");
    try {
      const wire::ApiClient client(paths::head_socket(folder / "head"), name);
      client.post("/v1/shutdown", nlohmann::json::object(), options.stop_limit);
    } catch (const Error& error) {
      how = std::string("the head did not end in order: ") + error.message();
    }
  } else if (!before.empty()) {
    how = "the head did not answer";
  }
  const auto until = std::chrono::steady_clock::now() + (how.empty() ? kEndLimit : milliseconds(0));
  std::vector<FoundProcess> left = cluster_processes(folder);
  while (!left.empty() && std::chrono::steady_clock::now() < until) {
    wait_gone(left.front(), milliseconds(100));
    left = cluster_processes(folder);
  }
  DownRow processes{"", "processes", std::to_string(before.size()), "0", kinds(before), true};
  if (!left.empty()) {
    processes.note = "killed: " + kinds(left);
    if (!how.empty()) processes.note += " (" + how + ")";
    left = kill_all(folder);
    processes.now = std::to_string(left.size());
    processes.gone = left.empty();
    if (!left.empty()) processes.note = "will not die: " + kinds(left);
  }
  report.rows.push_back(processes);

  const std::size_t sockets = remove_sockets(folder);
  report.rows.push_back({"", "sockets", std::to_string(sockets), "0", "", true});
  if (port > 0) {
    const bool open = port_open(port);
    report.rows.push_back({"", "port " + std::to_string(port), status ? "open" : "?",
                           open && !processes.gone ? "open" : "closed",
                           // Ours is gone with its process: what listens there now is another's.
                           open && processes.gone ? "another process has taken it" : "",
                           !open || processes.gone});
  }
  std::uint64_t bytes = 0;
  const std::size_t files = count_files(folder, bytes);
  DownRow row{"",  "files",         counted(files, "file") + ", " + human_bytes(bytes),
              "0", folder.string(), true};
  // What will not die may still write: its files stay to be looked at.
  if (processes.gone) {
    if (options.keep_files) {
      const std::optional<ClusterState> state = [&]() -> std::optional<ClusterState> {
        try {
          return load_cluster(name);
        } catch (const Error&) {
          return std::nullopt;
        }
      }();
      const std::string kept_name = state ? state->id.str() : make_cluster_id(name).str();
      report.kept = paths::state_home() / "kept" / kept_name;
      make_folders(report.kept.parent_path());
      fs::rename(folder, report.kept, failed);
      if (failed) {
        throw errno_error("cannot move " + folder.string() + " to " + report.kept.string(),
                          failed.value());
      }
      row.now = "kept";
      row.note = report.kept.string();
    } else {
      empty_folder(folder);
      remove_tree(folder);
    }
  } else {
    row.now = "kept";
    row.gone = false;
  }
  report.rows.push_back(row);
  for (const DownRow& each : report.rows) report.complete = report.complete && each.gone;
  if (report.complete) clear_current_cluster(name);
  return report;
}

void clear_away(const fs::path& folder) {
  const std::vector<FoundProcess> left = kill_all(folder);
  if (!left.empty()) {
    throw Error(ErrorCode::conflict,
                "processes of an earlier life of the cluster will not end: " + kinds(left));
  }
  remove_sockets(folder);
  empty_folder(folder);
}

}  // namespace dtrain
