#include "agent/supervise/scope.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "launcher/core/capture.hpp"
#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::supervise {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kAnswerLimit{5};
constexpr std::chrono::seconds kMoveLimit{5};

// Whether the user's own manager is still there when this login has ended.
bool manager_stays(const fs::path& group, const fs::path& root) {
  const std::string manager = "/user@" + std::to_string(::geteuid()) + ".service/";
  if ((group.string() + "/").find(manager) != std::string::npos) return true;
  for (const char* name : {"USER", "LOGNAME"}) {
    const char* user = std::getenv(name);
    if (user == nullptr || !valid_name(user)) continue;
    std::error_code none;
    if (fs::exists(root / "var/lib/systemd/linger" / user, none)) return true;
  }
  return false;
}

// Empty: the manager has taken the order.
std::string ask(bool system, const std::string& name, const std::string& description) {
  SpawnOptions options;
  options.argv = {"busctl"};
  if (!system) options.argv.emplace_back("--user");
  const std::vector<std::string> call{
      "--timeout=" + std::to_string(kAnswerLimit.count()), "call", "org.freedesktop.systemd1",
      "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartTransientUnit",
      // name, mode, properties of the unit, other units
      "ssa(sv)a(sa(sv))", name + ".scope", "fail", "5", "PIDs", "au", "1",
      std::to_string(::getpid()), "Delegate", "b", "true", "Description", "s", description, "Slice",
      "s", "dtrain.slice", "CollectMode", "s", "inactive-or-failed", "0"};
  options.argv.insert(options.argv.end(), call.begin(), call.end());
  options.env = manager_environment();
  const Captured said = capture(options, "", kAnswerLimit + std::chrono::seconds(1));
  if (said.timed_out) return "systemd did not answer";
  if (said.exit.ok()) return {};
  const std::vector<std::string> lines = split(said.err, '\n');
  return "systemd refused a scope: " + printable(lines.front(), false);
}

}  // namespace

std::string enter_scope(const std::string& name, const std::string& description,
                        const fs::path& group, const fs::path& proc, const fs::path& root) {
  std::error_code none;
  if (!fs::is_directory(root / "run/systemd/system", none)) return "there is no systemd";
  const bool system = ::geteuid() == 0;
  if (!system && !manager_stays(group, root)) {
    return "its service manager ends with the last login (loginctl enable-linger)";
  }
  try {
    if (std::string why = ask(system, name, description); !why.empty()) return why;
    // The order is carried out after the answer.
    const auto until = Clock::now() + kMoveLimit;
    while (cgroup::own(proc) == group) {
      if (Clock::now() >= until) return "systemd did not start the scope that it promised";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  } catch (const Error& error) {
    return std::string("systemd cannot be asked: ") + error.what();
  }
}

}  // namespace dtrain::supervise
