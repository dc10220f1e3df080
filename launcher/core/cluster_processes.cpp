#include "launcher/core/cluster_processes.hpp"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain {
namespace {

constexpr std::chrono::seconds kWatchEnd{2};
constexpr std::chrono::seconds kKilled{5};
constexpr std::chrono::seconds kVersionLimit{10};
constexpr std::size_t kProgramLimit = std::size_t{1} << 30;

fs::path executable_of(const FoundProcess& process) {
  return "/proc/" + std::to_string(process.pid) + "/exe";
}

// True for `folder` itself and all below it.
bool below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string basename_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::vector<std::string> words_of(std::string text) {
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return text.empty() ? std::vector<std::string>() : split(text, '\0');
}

// Role and root of an agent of the cluster.
std::optional<std::pair<std::string, std::string>> role_in(const std::vector<std::string>& argv,
                                                           const std::string& folder) {
  if (argv.size() < 3 || basename_of(argv[0]) != "dtrain-agent") return std::nullopt;
  for (std::size_t i = 1; i < argv.size(); ++i) {
    const std::size_t equals = argv[i].find('=');
    const std::string value = argv[i].starts_with("--") && equals != std::string::npos
                                  ? argv[i].substr(equals + 1)
                                  : argv[i];
    if (below(value, folder)) return std::pair{argv[1], value};
  }
  return std::nullopt;
}

// The folder of its attempt; empty: it is of none. Of a supervisor that did not set the mark yet,
// ATTEMPT/errors/R.json is a rank's error file, which programs may set anew for what they start.
std::string attempt_of(const std::vector<std::string>& env, const std::string& folder) {
  bool token = false;
  std::string file;
  static constexpr std::string_view kRoot = "DTRAIN_ATTEMPT_ROOT=";
  static constexpr std::string_view kFile = "TORCHELASTIC_ERROR_FILE=";
  for (const std::string& entry : env) {
    if (entry.starts_with(kRoot) && below(entry.substr(kRoot.size()), folder)) {
      return entry.substr(kRoot.size());
    }
    if (entry.starts_with("DTRAIN_ATTEMPT_TOKEN=")) token = true;
    if (entry.starts_with(kFile)) file = entry.substr(kFile.size());
  }
  if (!token || !below(file, folder)) return {};
  return fs::path(file).parent_path().parent_path().string();
}

// The same of a supervisor, by its arguments.
std::string supervised(const std::vector<std::string>& argv, const std::string& root) {
  const auto after = [&](const char* option) {
    const auto found = std::find(argv.begin(), argv.end(), option);
    return found == argv.end() || found + 1 == argv.end() ? std::string() : *(found + 1);
  };
  return (paths::NodeRoot{root}.jobs() / after("--job") / ("attempt-" + after("--attempt")))
      .string();
}

// By a mark in its environment, whose value is the root of its node.
bool marked(const std::vector<std::string>& env, const std::string& mark,
            const std::string& folder) {
  return std::any_of(env.begin(), env.end(), [&](const std::string& entry) {
    return entry.starts_with(mark) && below(entry.substr(mark.size()), folder);
  });
}

// With what it is and, of an agent, its root; without where it is nothing of the cluster.
FoundProcess what_is(const std::vector<std::string>& argv, const std::vector<std::string>& env,
                     const std::string& folder) {
  FoundProcess process;
  if (const auto role = role_in(argv, folder)) {
    std::tie(process.what, process.root) = *role;
    if (process.what == "supervise") process.attempt = supervised(argv, process.root);
  } else if (process.attempt = attempt_of(env, folder); !process.attempt.empty()) {
    process.what = "rank";
  } else if (marked(env, "DTRAIN_EXEC_ROOT=", folder)) {  // agent/node/exec.hpp
    process.what = "exec";
  } else if (marked(env, std::string(kSetupMark) + "=", folder)) {
    process.what = "command";
  }
  return process;
}

// What the attempt's supervisor wrote down; empty when there is none, or it was of another boot or
// cannot be this attempt's.
fs::path recorded_cgroup(const fs::path& attempt, const std::string& boot) {
  const auto text = read_file_if_there(paths::AttemptRoot{attempt}.supervisor());
  const auto json = nlohmann::json::parse(text.value_or(""), nullptr, false);
  if (!json.is_object() || json.value("boot_id", "") != boot) return {};
  const fs::path group = json.value("cgroup", "");
  const std::string number = attempt.filename().string().substr(std::string("attempt-").size());
  const std::string end = "-" + attempt.parent_path().filename().string() + "." + number;
  const std::string name = group.filename().string();
  return name.starts_with("dtrain-") && name.ends_with(end) ? group : fs::path();
}

}  // namespace

bool is_mark(std::string_view entry) {
  const std::string_view name = entry.substr(0, entry.find('='));
  return name == "DTRAIN_ATTEMPT_TOKEN" || name == "DTRAIN_ATTEMPT_ROOT" ||
         name == "DTRAIN_EXEC_ROOT" || name == kSetupMark;
}

bool is_role(const FoundProcess& process) {
  return process.what == "head" || process.what == "node";
}

std::vector<FoundProcess> cluster_processes(const fs::path& below_it) {
  const std::string folder = below_it.string();
  const auto until = std::chrono::steady_clock::now() + kExecLimit;
  std::vector<FoundProcess> found;
  std::vector<pid_t> unknown = other_pids();
  while (true) {
    std::erase_if(unknown, [&](pid_t pid) {
      struct stat owner {};
      if (::stat(("/proc/" + std::to_string(pid)).c_str(), &owner) != 0 ||
          owner.st_uid != ::geteuid()) {
        return true;
      }
      const std::optional<std::string> env = environment_of(pid);
      if (!env) return false;
      const std::string arguments = arguments_of(pid);
      FoundProcess process = what_is(words_of(arguments), words_of(*env), folder);
      if (process.what.empty() && arguments.empty() && !env->empty()) return false;  // exec began
      const auto started = start_time(pid);
      if (process.what.empty() || !started) return true;
      process.pid = pid;
      process.start_time = *started;
      found.push_back(std::move(process));
      return true;
    });
    if (unknown.empty() || std::chrono::steady_clock::now() >= until) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::optional<FoundProcess> living_watch(const fs::path& folder) {
  const paths::WatchRoot watch{folder};
  try {
    const std::optional<std::string> text = read_file_if_there(watch.pid(), 65536);
    if (!text) return std::nullopt;
    const nlohmann::json json = nlohmann::json::parse(*text);
    FoundProcess process;
    process.pid = json.at("pid").get<pid_t>();
    process.start_time = json.at("start_time").get<std::uint64_t>();
    process.what = "watch";
    process.root = folder.string();
    if (const auto limit = json.find("end_within_ms"); limit != json.end()) {
      process.contained = std::chrono::milliseconds(limit->get<std::int64_t>());
    }
    if (process.pid < 1 || json.at("boot_id").get<std::string>() != boot_id()) return std::nullopt;
    if (start_time(process.pid) != process.start_time) return std::nullopt;
    return process;
  } catch (const std::exception&) {
    return std::nullopt;  // half written or damaged: as good as none
  }
}

void forget_watch(const paths::WatchRoot& watch) {
  std::error_code ignored;
  fs::remove(watch.pid(), ignored);
}

void refuse_contained(const paths::WatchRoot& watch) {
  const auto living = living_watch(watch.root);
  if (!living || !living->contained) return;
  throw Error(ErrorCode::conflict, "the agents of " + watch.root.string() +
                                       " run under dtrain-agent watch --contained (" +
                                       std::to_string(living->pid) + "), and end with it")
      .with_hint("restart its container");
}

void end_watch(const paths::WatchRoot& watch) {
  std::vector<FoundProcess> watches;
  const auto living = living_watch(watch.root);
  if (!living) forget_watch(watch);  // whose it was is dead: none is to be started in its place
  if (living) watches.push_back(*living);
  for (const FoundProcess& process : cluster_processes(watch.root)) {
    if (process.what == "watch") watches.push_back(process);
  }
  for (const FoundProcess& process : watches) {
    signal_process(process, SIGTERM);
    wait_gone(process, process.contained.value_or(kWatchEnd));
    forget_watch(watch);
    signal_process(process, SIGKILL);
    wait_gone(process, kWatchEnd);
  }
}

void end_processes(const std::vector<FoundProcess>& processes, std::chrono::milliseconds limit) {
  for (const FoundProcess& process : processes) signal_process(process, SIGTERM);
  for (const FoundProcess& process : processes) {
    if (wait_gone(process, limit)) continue;
    signal_process(process, SIGKILL);
    wait_gone(process, kKilled);
  }
}

bool runs_program(const FoundProcess& process, const fs::path& program) {
  const fs::path running = executable_of(process);
  struct stat ours {};
  struct stat theirs {};
  if (::stat(running.c_str(), &theirs) != 0 || ::stat(program.c_str(), &ours) != 0) return false;
  if (ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino) return true;
  return ours.st_size == theirs.st_size &&
         read_file(running, kProgramLimit) == read_file(program, kProgramLimit);
}

std::string version_of(const fs::path& program) {
  SpawnOptions options;
  options.argv = {program.string(), "--version"};
  try {
    const Captured said = capture(std::move(options), {}, kVersionLimit);
    return said.exit.ok() ? said.out.substr(0, said.out.find('\n')) : std::string();
  } catch (const Error&) {
    return {};
  }
}

std::string version_of(const FoundProcess& process) {
  return version_of(executable_of(process));
}

std::string version_of(const paths::WatchRoot& watch) {
  try {
    const std::optional<std::string> text = read_file_if_there(watch.config());
    return text ? nlohmann::json::parse(*text).value("version", std::string()) : std::string();
  } catch (const std::exception&) {
    return {};  // damaged: whoever reads it next will say so
  }
}

std::vector<std::string> programs_of(const paths::WatchRoot& watch) {
  std::vector<std::string> programs;
  const std::optional<std::string> text = read_file_if_there(watch.config());
  if (!text) return programs;
  try {
    const nlohmann::json json = nlohmann::json::parse(*text);
    for (const nlohmann::json& child : json.at("children")) {
      programs.push_back(child.at("argv").at(0).get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid, watch.config().string() + ": " + error.what());
  }
  return programs;
}

void signal_process(const FoundProcess& process, int signal) {
  if (start_time(process.pid) == process.start_time) ::kill(process.pid, signal);
}

bool wait_gone(const FoundProcess& process, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (start_time(process.pid) == process.start_time) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool port_open(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd &&
         ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void clear_cgroups(const paths::NodeRoot& node) {
  constexpr std::chrono::seconds kLimit{1};
  const std::string boot = boot_id();
  std::error_code none;
  for (const auto& job : fs::directory_iterator(node.jobs(), none)) {
    for (const auto& attempt : fs::directory_iterator(job.path(), none)) {
      if (!attempt.path().filename().string().starts_with("attempt-")) continue;
      try {
        const fs::path group = recorded_cgroup(attempt.path(), boot);
        if (!group.empty() && fs::exists(group, none)) cgroup::clear(group, kLimit);
      } catch (const std::exception& error) {
        log::warn("an attempt's cgroup cannot be cleaned",
                  {{"attempt", attempt.path().string()}, {"error", error.what()}});
      }
    }
  }
}

}  // namespace dtrain
