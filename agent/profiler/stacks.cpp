#include "agent/profiler/stacks.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "agent/profiler/snapshot.hpp"
#include "agent/profiler/unwinder.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::profiler {
namespace {

std::optional<std::string> variable(const std::string& environment, const std::string& name) {
  for (const std::string& entry : split(environment, '\0')) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// Those in which programs wait; any other goes by its number.
std::string name_of_call(long number) {
  static const std::map<long, std::string> names = {{SYS_read, "read"},
                                                    {SYS_write, "write"},
                                                    {SYS_poll, "poll"},
                                                    {SYS_ppoll, "ppoll"},
                                                    {SYS_select, "select"},
                                                    {SYS_pselect6, "pselect6"},
                                                    {SYS_epoll_wait, "epoll_wait"},
                                                    {SYS_epoll_pwait, "epoll_pwait"},
                                                    {SYS_futex, "futex"},
                                                    {SYS_nanosleep, "nanosleep"},
                                                    {SYS_clock_nanosleep, "clock_nanosleep"},
                                                    {SYS_restart_syscall, "restart_syscall"},
                                                    {SYS_wait4, "wait4"},
                                                    {SYS_waitid, "waitid"},
                                                    {SYS_recvfrom, "recvfrom"},
                                                    {SYS_recvmsg, "recvmsg"},
                                                    {SYS_sendto, "sendto"},
                                                    {SYS_sendmsg, "sendmsg"},
                                                    {SYS_accept, "accept"},
                                                    {SYS_accept4, "accept4"},
                                                    {SYS_connect, "connect"},
                                                    {SYS_ioctl, "ioctl"},
                                                    {SYS_openat, "openat"},
                                                    {SYS_fsync, "fsync"},
                                                    {SYS_fdatasync, "fdatasync"},
                                                    {SYS_pread64, "pread64"},
                                                    {SYS_pwrite64, "pwrite64"},
                                                    {SYS_sched_yield, "sched_yield"},
                                                    {SYS_pause, "pause"},
                                                    {SYS_flock, "flock"},
                                                    {SYS_rt_sigtimedwait, "rt_sigtimedwait"},
                                                    {SYS_munmap, "munmap"},
                                                    {SYS_mmap, "mmap"},
                                                    {SYS_madvise, "madvise"}};
  const auto found = names.find(number);
  return found != names.end() ? found->second : std::to_string(number);
}

nlohmann::json frame_json(const Frame& frame) {
  nlohmann::json json = nlohmann::json::object();
  if (!frame.function.empty()) json["function"] = frame.function;
  if (!frame.library.empty()) json["library"] = frame.library;
  if (!frame.file.empty()) json["file"] = frame.file;
  if (frame.line > 0) json["line"] = frame.line;
  return json;
}

nlohmann::json thread_json(const ThreadSnapshot& thread, Unwinder* unwinder) {
  nlohmann::json json = {{"tid", thread.tid},
                         {"name", thread.name},
                         {"state", std::string(1, thread.state)},
                         {"cpu_ms", thread.cpu.count()}};
  if (thread.system_call) json["system_call"] = name_of_call(*thread.system_call);
  if (!thread.why_not.empty()) json["error"] = thread.why_not;
  if (!thread.why_not.empty() || unwinder == nullptr) return json;
  std::string cut;
  json["frames"] = nlohmann::json::array();
  for (const Frame& frame : unwinder->frames(thread, cut))
    json["frames"].push_back(frame_json(frame));
  if (!cut.empty()) json["cut"] = cut;
  return json;
}

std::string program_of(pid_t pid) {
  const std::string arguments = arguments_of(pid);
  const std::string first = arguments.substr(0, arguments.find('\0'));
  return printable(fs::path(first).filename().string(), false);
}

}  // namespace

std::vector<Target> processes_of(const std::string& job, int attempt, const std::set<int>& ranks) {
  std::map<pid_t, Target> found;
  std::map<pid_t, pid_t> parents;
  for (const pid_t pid : find_by_environment("DTRAIN_JOB_ID", job)) {
    const std::string environment = environment_of(pid).value_or("");
    const auto rank = number_from<int>(variable(environment, "RANK").value_or(""));
    const auto number = number_from<int>(variable(environment, "DTRAIN_ATTEMPT").value_or(""));
    const auto stat = process_stat(pid);
    if (!rank || number != attempt || !stat || stat->ended()) continue;
    found.emplace(pid, Target{.pid = pid, .rank = rank, .attempt = attempt});
    parents[pid] = stat->parent;
  }
  std::vector<Target> targets;
  for (auto& [pid, target] : found) {
    pid_t top = pid;
    for (std::size_t i = 0; i < found.size() && found.contains(parents[top]); ++i)
      top = parents[top];
    target.is_first = top == pid;
    target.rank = found.at(top).rank;
    if (ranks.empty() || ranks.contains(*target.rank)) targets.push_back(target);
  }
  std::stable_sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return std::pair(a.rank, !a.is_first) < std::pair(b.rank, !b.is_first);
  });
  return targets;
}

std::vector<nlohmann::json> stacks_of(const std::vector<Target>& targets) {
  std::vector<nlohmann::json> answers;
  std::vector<ProcessSnapshot> snapshots;
  for (const Target& target : targets) {
    nlohmann::json answer = {
        {"pid", target.pid}, {"first", target.is_first}, {"program", program_of(target.pid)}};
    if (target.rank) answer["rank"] = *target.rank;
    if (target.attempt > 0) answer["attempt"] = target.attempt;
    ProcessSnapshot snapshot;
    try {
      snapshot = take_snapshot(target.pid);
      answer["stopped_us"] = snapshot.stopped.count();
    } catch (const Error& error) {
      // What a rank has started may have ended meanwhile.
      if (error.code() == ErrorCode::not_found && !target.is_first) continue;
      answer["error"] = wire::error_to_json(error)["error"];
    }
    answers.push_back(std::move(answer));
    snapshots.push_back(std::move(snapshot));
  }
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    if (snapshots[i].pid == 0) continue;
    std::optional<Unwinder> unwinder;
    try {
      unwinder.emplace(snapshots[i].pid);
    } catch (const Error& error) {
      answers[i]["error"] = wire::error_to_json(error)["error"];
    }
    answers[i]["threads"] = nlohmann::json::array();
    for (const ThreadSnapshot& thread : snapshots[i].threads) {
      answers[i]["threads"].push_back(thread_json(thread, unwinder ? &*unwinder : nullptr));
    }
  }
  return answers;
}

}  // namespace dtrain::profiler
