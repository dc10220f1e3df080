#include "launcher/cluster/processes.hpp"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <thread>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

// True for `folder` itself and all below it.
bool below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string basename_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::vector<std::string> read_words(const std::string& file) {
  try {
    std::string text = read_file(file, std::size_t{4} << 20);
    if (!text.empty() && text.back() == '\0') text.pop_back();
    if (text.empty()) return {};
    return split(text, '\0');
  } catch (const Error&) {
    return {};  // gone, or another user's
  }
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

bool rank_of(const std::vector<std::string>& env, const std::string& folder) {
  bool token = false;
  bool here = false;
  static constexpr std::string_view kFile = "TORCHELASTIC_ERROR_FILE=";
  for (const std::string& entry : env) {
    if (entry.starts_with("DTRAIN_ATTEMPT_TOKEN=")) token = true;
    if (entry.starts_with(kFile)) here = below(entry.substr(kFile.size()), folder);
  }
  return token && here;
}

// A command of `exec` or `attach`, by the mark that the node agent gives it (agent/node/exec.hpp).
bool exec_of(const std::vector<std::string>& env, const std::string& folder) {
  static constexpr std::string_view kMark = "DTRAIN_EXEC_ROOT=";
  return std::any_of(env.begin(), env.end(), [&](const std::string& entry) {
    return entry.starts_with(kMark) && below(entry.substr(kMark.size()), folder);
  });
}

}  // namespace

fs::path find_agent() {
  const char* variable = std::getenv("DTRAIN_AGENT");
  if (variable != nullptr && *variable != '\0') {
    const fs::path agent = fs::absolute(variable);
    if (::access(agent.c_str(), X_OK) == 0) return agent;
    throw Error(ErrorCode::not_found, "DTRAIN_AGENT names " + agent.string() +
                                          ", which is no program that can be started");
  }
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  const fs::path folder = self.parent_path();
  std::vector<std::string> tried;
  for (const char* place :
       {"dtrain-agent", "../libexec/dtrain/dtrain-agent", "../libexec/dtrain-agent",
        "../lib/dtrain/dtrain-agent", "../agent/dtrain-agent"}) {
    const fs::path candidate = (folder / place).lexically_normal();
    struct stat status {};
    if (::stat(candidate.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    tried.push_back(candidate.string());
  }
  throw Error(ErrorCode::not_found, "there is no dtrain-agent at " + join(tried, ", "))
      .with_hint("install both programs together, or set DTRAIN_AGENT to its path");
}

std::vector<FoundProcess> cluster_processes(const fs::path& state) {
  const std::string folder = state.string();
  std::vector<FoundProcess> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size() || pid == ::getpid()) continue;
    struct stat owner {};
    if (::stat(entry.path().c_str(), &owner) != 0 || owner.st_uid != ::geteuid()) continue;
    FoundProcess process;
    process.pid = pid;
    if (const auto role = role_in(read_words(entry.path().string() + "/cmdline"), folder)) {
      std::tie(process.what, process.root) = *role;
    } else {
      const std::vector<std::string> env = read_words(entry.path().string() + "/environ");
      if (rank_of(env, folder)) {
        process.what = "rank";
      } else if (exec_of(env, folder)) {
        process.what = "exec";
      } else {
        continue;
      }
    }
    if (const auto started = start_time(pid)) {
      process.start_time = *started;
      found.push_back(std::move(process));
    }
  }
  return found;
}

std::optional<FoundProcess> living_watch(const fs::path& state) {
  const paths::WatchRoot watch{state};
  try {
    const std::optional<std::string> text = read_file_if_there(watch.pid(), 65536);
    if (!text) return std::nullopt;
    const nlohmann::json json = wire::parse_json(*text, watch.pid().string());
    FoundProcess process;
    process.pid = static_cast<pid_t>(wire::get_int(json, "pid", 1, INT32_MAX));
    process.start_time =
        static_cast<std::uint64_t>(wire::get_int(json, "start_time", 0, INT64_MAX));
    process.what = "watch";
    if (wire::get_string(json, "boot_id") != boot_id()) return std::nullopt;
    if (start_time(process.pid) != process.start_time) return std::nullopt;
    return process;
  } catch (const Error&) {
    return std::nullopt;  // half written or damaged: as good as none
  }
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

}  // namespace dtrain
