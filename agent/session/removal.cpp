#include "agent/session/removal.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "agent/session/agents.hpp"
#include "agent/session/host.hpp"
#include "agent/session/systemd.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "launcher/files/sync.hpp"

namespace dtrain::session {
namespace {

// Another `up` may have sent an agent that it has not started yet.
constexpr std::chrono::hours kAgentGrace{1};

std::vector<fs::path> roots_of(const NodePlace& place, bool head) {
  std::vector<fs::path> roots{place.root().root};
  if (head) roots.push_back(place.head().root);
  return roots;
}

void count_checkpoints(const NodePlace& place, wire::SurveyReport& report) {
  try {
    for (const StoredCheckpoints& job : unpulled_checkpoints(place.head().storage())) {
      report.checkpoints += job.count;
      report.checkpoint_bytes += static_cast<std::int64_t>(job.bytes);
      report.checkpoint_jobs.push_back(job.job);
    }
  } catch (const Error& error) {  // the rest of the survey serves whoever removes it all the same
    report.checkpoints_unknown = error.what();
  }
  std::error_code none;
  for (const auto& job : fs::directory_iterator(place.head().storage(), none)) {
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(job.path() / "shards", none)) {
      ++report.uncommitted;
    }
  }
}

// Removes `path`, and says what it could not.
void remove(const fs::path& path, wire::RemoveReport& report) {
  try {
    remove_tree(path);
  } catch (const Error& error) {
    report.left.push_back(path.string() + ": " + error.message());
  }
}

void remove_if_empty(const fs::path& folder) {
  ::rmdir(folder.c_str());
}

void keep(const fs::path& root, const fs::path& kept, wire::RemoveReport& report) {
  std::error_code failed;
  if (!fs::exists(root, failed)) return;
  // Keys are of no use to a cluster that is gone, and to nobody else either.
  for (const char* secret : {"identity", "ca", "secrets"}) remove(root / secret, report);
  make_folders(kept);
  fs::path to = kept / root.filename();
  for (int i = 1; fs::exists(to, failed); ++i) {
    to = kept / (root.filename().string() + "." + std::to_string(i));
  }
  fs::rename(root, to, failed);
  if (failed) report.left.push_back(root.string() + ": " + failed.message());
}

// The programs that this user's processes run, this one aside.
std::set<std::string> programs_in_use() {
  std::set<std::string> programs;
  for (const pid_t pid : other_pids()) {
    const fs::path entry = "/proc/" + std::to_string(pid);
    std::error_code none;
    const std::string program = fs::read_symlink(entry / "exe", none).string();
    if (!none) programs.insert(program);
  }
  return programs;
}

// A home that several machines have is cleaned by the head's alone: the others may go earlier, and
// what lies there is used on machines that this one cannot look at.
bool cleans_home(const wire::RemoveFiles& request, const wire::HostFacts& host) {
  return !host.home_on_network || request.head;
}

// What file sync brought goes, unless somebody has changed it since.
void remove_synced_files(const NodePlace& place, const wire::RemoveFiles& request,
                         const wire::HostFacts& host, wire::RemoveReport& report) {
  if (!cleans_home(request, host)) return;
  std::error_code none;
  const fs::path records = place.sync_records();
  if (!fs::exists(records, none)) return;
  try {
    if (!request.keep_files) {
      for (const fs::path& path : remove_synced(records)) report.changed.push_back(path.string());
    }
    remove(records, report);
  } catch (const Error& error) {
    report.left.push_back(records.string() + ": " + error.message());
  }
  remove_if_empty(records.parent_path());
}

// What the base holds beside folders of clusters: binaries, what `down` kept.
bool has_clusters(const fs::path& base) {
  static const std::set<std::string> kOthers{"agents", "kept"};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(base, none)) {
    const std::string name = entry.path().filename().string();
    if (!kOthers.contains(name) && entry.is_directory(none)) return true;
  }
  return false;
}

std::set<fs::path> all_bases(const NodePlace& place) {
  return known_bases(place.base, home_folder());
}

// Where programs come to, wherever clusters are: a `provider.root` may hold a folder of anybody's
// that is called as theirs is.
std::set<fs::path> agent_folders(bool with_home) {
  const fs::path in_home = home_folder() / ".dtrain";
  std::set<fs::path> folders;
  for (const fs::path& base : known_bases(in_home, home_folder())) {
    if (!with_home && base == in_home) continue;
    std::error_code none;
    const fs::path folder = base / "agents";
    if (fs::is_directory(fs::symlink_status(folder, none))) folders.insert(folder);
  }
  return folders;
}

// Those of the folders' programs that no process runs.
std::vector<fs::path> idle_agents(const std::set<fs::path>& folders) {
  const std::set<std::string> used = programs_in_use();
  std::vector<fs::path> idle;
  for (const fs::path& folder : folders) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const auto runs = [&](const char* name) {
        return used.contains((entry.path() / name).string());
      };
      if (!runs("dtrain-agent") && !runs("dtrain-scaler")) idle.push_back(entry.path());
    }
  }
  return idle;
}

// Those that a cluster of this user starts when it is up again.
std::set<std::string> programs_of_clusters(const NodePlace& place) {
  std::set<std::string> programs;
  for (const fs::path& base : all_bases(place)) {
    std::error_code none;
    for (const auto& cluster : fs::directory_iterator(base, none)) {
      for (const auto& node : fs::directory_iterator(cluster.path(), none)) {
        if (!node.is_directory(none)) continue;
        for (std::string& program : programs_of({node.path()})) programs.insert(std::move(program));
      }
    }
  }
  return programs;
}

void remove_agents(const NodePlace& place, bool with_home, wire::RemoveReport& report) {
  const std::set<fs::path> bases = all_bases(place);
  if (std::any_of(bases.begin(), bases.end(), has_clusters)) return;
  const std::set<fs::path> folders = agent_folders(with_home);
  for (const fs::path& agent : idle_agents(folders)) remove(agent, report);
  for (const fs::path& folder : folders) remove_if_empty(folder);
  for (const fs::path& base : bases) remove_if_empty(base);
}

}  // namespace

wire::SurveyReport survey(const NodePlace& place, const wire::Survey& request) {
  wire::SurveyReport report;
  report.processes = running_agents(place, request.head);
  std::error_code none;
  for (const fs::path& root : roots_of(place, request.head)) {
    for (const auto& entry : fs::directory_iterator(paths::socket_folder_name(root), none)) {
      if (entry.is_socket(none)) ++report.sockets;
    }
    if (!fs::exists(root, none)) continue;
    report.paths.push_back(root.string());
    const FileCount count = count_files(root);
    report.files += static_cast<std::int64_t>(count.files);
    report.bytes += static_cast<std::int64_t>(count.bytes);
  }
  report.unit = unit_installed(place);
  if (request.head) {
    count_checkpoints(place, report);
    try {
      report.port = describe_head(place.head()).port;
      report.port_open = report.port > 0 && port_open(report.port);
    } catch (const Error&) {
      report.port = 0;
    }
  }
  return report;
}

std::string remove_old_agents(const NodePlace& place, const wire::HostFacts& host) {
  // Other machines may run what lies in a home that they share.
  if (host.home_on_network) return {};
  try {
    const std::set<std::string> wanted = programs_of_clusters(place);
    const auto grace = fs::file_time_type::clock::now() - kAgentGrace;
    for (const fs::path& folder : idle_agents(agent_folders(true))) {
      const fs::path agent = folder / "dtrain-agent";
      std::error_code none;
      if (wanted.contains(agent.string()) || fs::last_write_time(folder, none) > grace) continue;
      if (fs::exists(folder / "dtrain-scaler", none)) continue;  // a head may start it any time
      remove_tree(folder);
    }
    return {};
  } catch (const Error& error) {
    return std::string("agents of earlier versions stay: ") + error.what();
  }
}

wire::RemoveReport remove_files(const NodePlace& place, const wire::RemoveFiles& request,
                                const wire::HostFacts& host) {
  const std::vector<wire::AgentProcess> alive = running_agents(place, request.head);
  if (!alive.empty()) {
    std::vector<std::string> names;
    for (const wire::AgentProcess& process : alive) {
      names.push_back(process.what + " " + std::to_string(process.pid));
    }
    throw Error(ErrorCode::conflict, "its processes run: " + join(names, ", "));
  }
  wire::RemoveReport report;
  remove_unit(place);
  const fs::path kept = place.base / "kept" / place.cluster.str();
  clear_cgroups(place.root());
  for (const fs::path& root : roots_of(place, request.head)) {
    const fs::path sockets = paths::socket_folder_name(root);
    remove(sockets, report);
    remove_if_empty(sockets.parent_path());
    if (request.keep_files) {
      keep(root, kept, report);
    } else {
      remove(root, report);
    }
  }
  if (request.keep_files) report.kept = kept.string();
  // What all nodes of the cluster on this machine share goes with the last of them.
  std::error_code none;
  bool last = true;
  for (const auto& entry : fs::directory_iterator(place.folder(), none)) {
    const bool a_root = fs::exists(paths::NodeRoot{entry.path()}.config(), none) ||
                        fs::exists(paths::HeadRoot{entry.path()}.config(), none);
    last = last && !a_root;
  }
  if (last) {
    remove_synced_files(place, request, host, report);
    remove(place.folder(), report);
    remove_agents(place, cleans_home(request, host), report);
  }
  return report;
}

}  // namespace dtrain::session
