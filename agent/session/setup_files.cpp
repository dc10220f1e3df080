#include "agent/session/setup_files.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::session {

void write_order(const paths::NodeRoot& root, const std::string& list, const SetupOrder& order) {
  const nlohmann::json json = {{"token", order.token}, {"env", order.env}};
  write_file_atomic(root.setup_plan(list), wire::dump(json) + "\n");
}

SetupOrder read_order(const paths::NodeRoot& root, const std::string& list) {
  const fs::path file = root.setup_plan(list);
  return while_doing("reading " + file.string(), [&] {
    const nlohmann::json json = wire::parse_json(read_file(file), "the file");
    SetupOrder order;
    order.token = wire::get_string(json, "token");
    const nlohmann::json& env = wire::member(json, "env");
    for (const auto& [name, value] : env.items()) {
      order.env[name] = wire::get_string(env, name.c_str());
    }
    return order;
  });
}

std::optional<wire::SetupStatus> read_status(const paths::NodeRoot& root, const std::string& list) {
  const auto text = read_file_if_there(root.setup_status(list));
  if (!text) return std::nullopt;
  try {
    return wire::session_from_json<wire::SetupStatus>(wire::parse_json(*text, "the status"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_status(const paths::NodeRoot& root, const wire::SetupStatus& status) {
  write_file_atomic(root.setup_status(status.list),
                    wire::dump(wire::session_to_json(status)) + "\n");
}

std::optional<UniqueFd> try_lock_list(const paths::NodeRoot& root, const std::string& list) {
  UniqueFd fd = open_file(root.setup_lock(list), O_RDWR | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK) return std::nullopt;
  throw errno_error("cannot lock " + root.setup_lock(list).string(), errno);
}

bool list_is_locked(const paths::NodeRoot& root, const std::string& list) {
  try {
    // Read only: closing it again is no news to who watches the folder.
    const UniqueFd fd = open_file(root.setup_lock(list), O_RDONLY);
    // Shared, so that two who look at once do not see each other.
    return ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return false;
    throw;
  }
}

}  // namespace dtrain::session
