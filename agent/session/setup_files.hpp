#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/paths.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/session.hpp"

// What a session and the process that runs a setup list say to each other: files below setup/.
namespace dtrain::session {

// The environment's name of a run, by which its processes are found.
inline constexpr const char* kSetupToken = "DTRAIN_SETUP_TOKEN";
// The lock that a session hands to the process it starts.
inline constexpr int kLockFd = 3;

// setup/LIST.plan.json
struct SetupOrder {
  std::string token;
  std::map<std::string, std::string> env;
};
void write_order(const paths::NodeRoot& root, const std::string& list, const SetupOrder& order);
SetupOrder read_order(const paths::NodeRoot& root, const std::string& list);

// setup/LIST.json as it stands; absent where there is none, or a damaged one.
std::optional<wire::SetupStatus> read_status(const paths::NodeRoot& root, const std::string& list);
void write_status(const paths::NodeRoot& root, const wire::SetupStatus& status);

// Holds setup/LIST.lock; nothing when another process does.
std::optional<UniqueFd> try_lock_list(const paths::NodeRoot& root, const std::string& list);
bool list_is_locked(const paths::NodeRoot& root, const std::string& list);

}  // namespace dtrain::session
