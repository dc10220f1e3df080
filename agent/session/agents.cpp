#include "agent/session/agents.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "agent/session/removal.hpp"
#include "agent/session/shell.hpp"
#include "agent/session/systemd.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::session {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kWatchStart{5000};  // it waits 2 s for the lock
constexpr milliseconds kKeptStart{60000};  // who keeps it looks once in a second
constexpr int kWatchTries = 3;
constexpr milliseconds kRolesStart{10000};
constexpr milliseconds kAgentEnd{5000};
constexpr milliseconds kKillLimit{5000};

std::vector<FoundProcess> processes_of(const NodePlace& place, bool head) {
  std::vector<FoundProcess> all = cluster_processes(place.root().root);
  if (head) {
    for (FoundProcess& process : cluster_processes(place.head().root)) {
      const bool known = std::any_of(all.begin(), all.end(), [&](const FoundProcess& each) {
        return each.pid == process.pid;
      });
      if (!known) all.push_back(std::move(process));
    }
  }
  return all;
}

std::string program_of(pid_t pid) {
  std::error_code failed;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", failed).string();
}

wire::AgentProcess describe(const FoundProcess& process) {
  return {process.what, process.pid, program_of(process.pid)};
}

std::vector<wire::AgentProcess> describe_all(const std::vector<FoundProcess>& processes) {
  std::vector<wire::AgentProcess> all;
  for (const FoundProcess& process : processes) all.push_back(describe(process));
  return all;
}

std::string wanted_watch(const NodePlace& place, bool head) {
  nlohmann::json children = nlohmann::json::array();
  const std::string program = place.program.string();
  if (head) {
    children.push_back(
        {{"name", "head"}, {"argv", {program, "head", "--root", place.head().root.string()}}});
  }
  children.push_back({{"name", place.node.str()},
                      {"argv", {program, "node", "--root", place.root().root.string()}}});
  return nlohmann::json{{"version", DTRAIN_VERSION}, {"children", children}}.dump(2) + "\n";
}

// Outside of the login's own processes, where logind would end those with it.
std::string launch_watch(const NodePlace& place, const wire::HostFacts& host,
                         std::string& warning) {
  forget_watch(place.watch());
  if (unit_installed(place)) {
    start_unit(place);
    return "unit";
  }
  SpawnOptions options;
  options.argv = {place.program.string(), "watch", "--root", place.watch().root.string()};
  options.workdir = "/";
  options.new_session = true;
  if (host.kills_user_processes) {
    if (host.lingers || enable_linger()) {
      try {
        options.argv = in_scope(place, options.argv);
        options.env = manager_environment();
        spawn(options);
        return "scope";
      } catch (const Error& error) {
        warning = error.message();
        options.argv.erase(options.argv.begin(), options.argv.end() - 4);
      }
    }
    warning =
        "logind ends what a login leaves behind on this machine (KillUserProcesses=yes), and "
        "this user may not linger: the agents end with this login" +
        (warning.empty() ? "" : " (" + warning + ")");
  }
  spawn(options);
  return "session";
}

std::vector<std::string> tail_of(const fs::path& file, std::size_t lines) {
  try {
    const auto text = read_file_if_there(file);
    if (text) return last_lines(*text, lines);
  } catch (const Error&) {
    // Too large to be shown, or not ours to read.
  }
  return {};
}

// False after `limit`.
bool wait_for_watch(const NodePlace& place, milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (!living_watch(place.watch().root)) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// Each role that the watch is to keep has a process; what hinders that is in the logs.
void wait_for_roles(const NodePlace& place, bool head) {
  const auto until = Clock::now() + kRolesStart;
  while (Clock::now() < until) {
    std::set<std::string> there;
    for (const FoundProcess& process : processes_of(place, head)) there.insert(process.what);
    if (there.contains("node") && (!head || there.contains("head"))) return;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

// A new watch, which takes over the agents that were there before it, and the end of those: it
// starts new ones in their place.
std::string replace(const NodePlace& place, bool head, const wire::HostFacts& host,
                    std::string& warning) {
  refuse_contained(place.watch());
  std::vector<FoundProcess> old = processes_of(place, true);
  std::string how;
  bool lives = false;
  // Head and node agent start a watch too when theirs dies: one that they were about to start holds
  // the lock, and the new one ends.
  for (int tries = 0; tries < kWatchTries && !lives; ++tries) {
    // The unit would start its watch again at once.
    stop_unit(place);
    end_watch(place.watch());
    write_file_atomic(place.watch().config(), wanted_watch(place, head));
    how = launch_watch(place, host, warning);
    lives = wait_for_watch(place, kWatchStart);
  }
  if (!lives) {
    throw Error(ErrorCode::failed, "the watch of " + place.node.str() + " did not start: " +
                                       join(tail_of(place.watch().log(), 5), " | "))
        .with_hint("its log is " + place.watch().log().string());
  }
  std::erase_if(old, [](const FoundProcess& process) { return !is_role(process); });
  end_processes(old, kAgentEnd);
  wait_for_roles(place, head);
  return how;
}

// What the program that keeps these agents is to run, in its place.
std::string wanted_start(const NodePlace& place) {
  const std::vector<std::string> argv{place.program.string(), "watch", "--root",
                                      place.watch().root.string(), "--contained"};
  return "exec " + shell_join(argv) + "\n";
}

// The end of those that run, and new ones, which who keeps them starts: with the same ranks and
// jobs.
void keep(const NodePlace& place, bool head) {
  write_file_atomic(place.root().held(), "");
  end_watch(place.watch());
  write_file_atomic(place.watch().config(), wanted_watch(place, head));
  write_file_atomic(place.root().start(), wanted_start(place));
  // Its being there says that none of this was a shutdown: who keeps them may look late, and takes
  // it away.
  write_file_atomic(place.root().held(), "go on\n");
  if (!wait_for_watch(place, kKeptStart)) {
    throw Error(ErrorCode::failed,
                "the agents of " + place.node.str() + " were not started: " +
                    join(tail_of(place.root().root / "allocation.log", 5), " | "));
  }
  std::error_code none;
  fs::remove(place.root().held(), none);  // where nobody looked for it
  wait_for_roles(place, head);
}

}  // namespace

std::vector<wire::AgentProcess> running_agents(const NodePlace& place, bool head) {
  return describe_all(processes_of(place, head));
}

bool agents_current(const NodePlace& place, bool head) {
  const auto watch = living_watch(place.watch().root);
  // The kernel tells it without links, of which a home may have some.
  std::error_code none;
  const std::string program = fs::weakly_canonical(place.program, none).string();
  if (!watch || program_of(watch->pid) != program) return false;
  if (read_file_if_there(place.watch().config()).value_or("") != wanted_watch(place, head)) {
    return false;
  }
  std::multiset<std::string> roles;
  for (const FoundProcess& process : processes_of(place, head)) {
    if (!is_role(process)) continue;
    if (program_of(process.pid) != program) return false;
    roles.insert(process.what);
  }
  // A second one of a role is one that waits for the first to end: whatever led to that, order it.
  return roles.count("node") == 1 && roles.count("head") == (head ? 1 : 0);
}

void write_watch(const NodePlace& place) {
  write_file_atomic(place.watch().config(), wanted_watch(place, false));
}

wire::AgentsStarted start_agents(const NodePlace& place, const wire::StartAgents& request,
                                 const wire::HostFacts& host) {
  std::error_code none;
  if (!fs::exists(place.root().config(), none)) {
    throw Error(ErrorCode::conflict, "the node has not been configured");
  }
  wire::AgentsStarted started;
  if (request.kept) {
    started.how = "kept";
    started.changed = request.restart || !agents_current(place, request.head);
    if (started.changed) keep(place, request.head);
    started.agents = running_agents(place, request.head);
    return started;
  }
  // With a unit that was written for another binary, its start would bring that one back.
  const bool unit_changed = unit_installed(place) && !unit_current(place);
  if (unit_changed) started.warning = install_unit(place);
  if (request.restart || unit_changed || !agents_current(place, request.head)) {
    started.changed = true;
    std::string warning;
    started.how = replace(place, request.head, host, warning);
    if (!warning.empty()) started.warning = warning;
    const std::string stay = remove_old_agents(place, host);
    if (started.warning.empty()) started.warning = stay;
  } else {
    started.how = unit_installed(place) ? "unit" : "session";
  }
  started.agents = running_agents(place, request.head);
  return started;
}

wire::StopReport stop_agents(const NodePlace& place, const wire::StopAgents& request) {
  wire::StopReport report;
  report.found = running_agents(place, request.head);
  std::error_code none;
  if (request.kept && fs::exists(place.root().root, none)) {
    write_file_atomic(place.root().held(), "");
  }
  stop_unit(place);
  end_watch(place.watch());
  std::vector<FoundProcess> left = processes_of(place, request.head);
  // Ranks are their supervisor's to end, within the job's own grace.
  for (const FoundProcess& process : left) {
    if (process.what != "rank" && process.what != "watch") signal_process(process, SIGTERM);
  }
  const auto until = Clock::now() + milliseconds(request.grace_ms);
  while (!left.empty() && Clock::now() < until) {
    wait_gone(left.front(),
              std::min<milliseconds>(milliseconds(50),
                                     std::chrono::ceil<milliseconds>(until - Clock::now())));
    left = processes_of(place, request.head);
    const bool orphans_only = std::all_of(
        left.begin(), left.end(), [](const FoundProcess& each) { return each.what == "rank"; });
    if (orphans_only) break;  // nobody is there any more who would end them
  }
  report.killed = describe_all(left);
  const auto killed_by = Clock::now() + kKillLimit;
  while (!left.empty() && Clock::now() < killed_by) {
    for (const FoundProcess& process : left) signal_process(process, SIGKILL);
    for (const FoundProcess& process : left) wait_gone(process, milliseconds(100));
    left = processes_of(place, request.head);
  }
  report.left = describe_all(left);
  return report;
}

wire::PersistReport persist(const NodePlace& place, bool on, const wire::HostFacts& host) {
  wire::PersistReport report;
  const bool before = unit_installed(place);
  const bool running = living_watch(place.watch().root).has_value();
  const bool changed = on && !unit_current(place);
  if (changed) {
    report.warning = install_unit(place);
  } else if (!on && before) {
    remove_unit(place);
  }
  report.on = unit_installed(place);
  if (running && (changed || report.on != before)) {
    const std::string config = read_file_if_there(place.watch().config()).value_or("");
    std::string warning;
    replace(place, config == wanted_watch(place, true), host, warning);
    if (!warning.empty()) report.warning = warning;
  }
  return report;
}

wire::LogTails read_logs(const NodePlace& place, const wire::ReadLogs& request) {
  std::vector<fs::path> files{place.watch().log(), place.root().log()};
  if (request.head) files.push_back(place.head().log());
  wire::LogTails tails;
  for (const fs::path& file : files) {
    std::vector<std::string> lines = tail_of(file, static_cast<std::size_t>(request.lines));
    if (!lines.empty()) tails.logs.push_back({file.string(), std::move(lines)});
  }
  return tails;
}

}  // namespace dtrain::session
