#include "launcher/cluster/down_way.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/cluster_processes.hpp"
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

// After its watch was killed, a cluster has a second head and node agents, which wait for the first
// ones' end to take over. Now nobody shall.
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

class LocalDown final : public DownWay {
 public:
  LocalDown(std::string name, const DownOptions& options)
      : name_(std::move(name)), options_(options), folder_(paths::cluster_state(name_)) {}

  void survey(DownSurvey& survey) override {
    survey.head_answers = cluster_processes(folder_).empty();  // nothing runs that it could tell of
    survey_jobs(socket(), name_, survey);
    try {
      for (const StoredCheckpoints& job :
           unpulled_checkpoints(paths::HeadRoot{folder_ / "head"}.storage())) {
        survey.checkpoints += job.count;
        survey.checkpoint_bytes += job.bytes;
        survey.checkpoint_jobs.push_back(job.job);
      }
    } catch (const Error& error) {
      survey.checkpoints_unknown = error.what();
    }
  }

  std::string end_in_order() override {
    before_ = cluster_processes(folder_);
    port_ = port_of(folder_);
    const auto status = ask_head(socket(), name_);
    answered_ = status.has_value();
    if (status) {
      const nlohmann::json cluster = status->value("cluster", nlohmann::json::object());
      if (cluster.contains("head") && cluster["head"].is_object()) {
        port_ = cluster["head"].value("port", port_);
      }
    }
    options_.say("ending the watch");
    end_watch({folder_});
    end_standbys(folder_);
    if (!status) return before_.empty() ? "" : "the head did not answer";
    options_.say("stopping jobs, nodes and head");
    try {
      shut_down(socket(), name_, options_.stop_limit);
      return {};
    } catch (const Error& error) {
      return std::string("the head did not end in order: ") + error.message();
    }
  }

  bool clear(const std::string& trouble, DownReport& report) override {
    const bool ended = end_processes(trouble, report);
    const std::size_t sockets = remove_sockets(folder_);
    report.rows.push_back({"", "sockets", std::to_string(sockets), "0", "", true});
    if (port_ > 0) {
      const bool open = port_open(port_);
      report.rows.push_back({"", "port " + std::to_string(port_), answered_ ? "open" : "?",
                             open && !ended ? "open" : "closed",
                             // Ours is gone with its process: what listens there now is another's.
                             open && ended ? "another process has taken it" : "", !open || ended});
    }
    const FileCount count = count_files(folder_);
    DownRow row{
        "",  "files",          counted(count.files, "file") + ", " + human_bytes(count.bytes),
        "0", folder_.string(), true};
    if (!ended) {  // what will not die may still write: its files stay to be looked at
      row.now = "kept";
      row.gone = false;
    } else if (options_.keep_files) {
      keep_files(report);
      row.now = "kept";
      row.note = report.kept.string();
    } else {
      const std::unique_ptr<Provider> nodes = make_provider({}, folder_);
      nodes->release(nodes->list(), [](const MachineOutcome& outcome) {
        if (outcome.error) throw *outcome.error;
      });
      remove_folder(folder_);
    }
    report.rows.push_back(row);
    return ended;
  }

 private:
  fs::path socket() const { return paths::head_socket(folder_ / "head"); }

  // False when some will not die.
  bool end_processes(const std::string& trouble, DownReport& report) {
    const auto until =
        std::chrono::steady_clock::now() + (trouble.empty() ? kEndLimit : milliseconds(0));
    std::vector<FoundProcess> left = cluster_processes(folder_);
    while (!left.empty() && std::chrono::steady_clock::now() < until) {
      wait_gone(left.front(), milliseconds(100));
      left = cluster_processes(folder_);
    }
    DownRow row{"", "processes", std::to_string(before_.size()), "0", kinds(before_), true};
    if (!left.empty()) {
      row.note = "killed: " + kinds(left);
      if (!trouble.empty()) row.note += " (" + trouble + ")";
      left = kill_all(folder_);
      row.now = std::to_string(left.size());
      row.gone = left.empty();
      if (!left.empty()) row.note = "will not die: " + kinds(left);
    }
    report.rows.push_back(row);
    return row.gone;
  }

  void keep_files(DownReport& report) {
    std::string name;
    try {
      if (const std::optional<ClusterState> state = load_cluster(name_)) name = state->id.str();
    } catch (const Error&) {  // damaged: under another name
    }
    if (name.empty()) name = make_cluster_id(name_).str();
    report.kept = paths::state_home() / "kept" / name;
    make_folders(report.kept.parent_path());
    std::error_code failed;
    fs::rename(folder_, report.kept, failed);
    if (!failed) return;
    throw errno_error("cannot move " + folder_.string() + " to " + report.kept.string(),
                      failed.value());
  }

  std::string name_;
  const DownOptions& options_;
  fs::path folder_;
  std::vector<FoundProcess> before_;
  int port_ = 0;
  bool answered_ = false;  // the head, before it was told to end
};

}  // namespace

std::unique_ptr<DownWay> local_down(const std::string& name, const DownOptions& options) {
  return std::make_unique<LocalDown>(name, options);
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
