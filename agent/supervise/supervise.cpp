#include "agent/supervise/supervise.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "agent/supervise/lock.hpp"
#include "agent/supervise/record.hpp"
#include "agent/supervise/supervisor.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

AttemptLock lock_attempt(const paths::AttemptRoot& root, int inherited) {
  if (inherited >= 0) return AttemptLock::inherit(root, inherited);
  if (auto lock = AttemptLock::take(root)) return std::move(*lock);
  throw Error(ErrorCode::conflict, "another supervisor has " + root.root.string());
}

wire::AttemptSpec read_spec(const paths::AttemptRoot& root, const SuperviseOptions& options) {
  return while_doing("reading " + root.spec().string(), [&] {
    auto spec = wire::attempt_spec_from_json(wire::parse_json(read_file(root.spec()), "the file"));
    if (spec.job != options.job || spec.attempt != options.attempt) {
      throw Error(ErrorCode::invalid, "it is of another attempt");
    }
    return spec;
  });
}

// Reads the secrets and removes their file: from here on they are in the ranks' memory alone.
Environment take_secrets(const paths::AttemptRoot& root) {
  const auto text = read_file_if_there(root.secrets());
  if (!text) return {};
  ::unlink(root.secrets().c_str());
  return while_doing("reading " + root.secrets().string(), [&] {
    const nlohmann::json json = wire::parse_json(*text, "the file");
    if (!json.is_object()) throw Error(ErrorCode::invalid, "it must be an object of strings");
    Environment secrets;
    for (const auto& [name, value] : json.items()) {
      secrets[name] = wire::get_string(json, name.c_str());
    }
    return secrets;
  });
}

Environment login_environment(const fs::path& node_root) {
  const auto text = read_file_if_there(paths::NodeRoot{node_root}.login_env());
  return text ? parse_environment(*text) : own_environment();
}

void prepare_process() {
  // What the ranks leave behind comes to us, whatever its session.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  // Errors of write(2) are to be seen as such; SIGHUP is no reason to end.
  for (const int number : {SIGPIPE, SIGXFSZ, SIGHUP}) ::signal(number, SIG_IGN);
}

// The attempt could not even begin: says so where the node agent looks.
void record_failure(const paths::AttemptRoot& root, const SuperviseOptions& options,
                    const std::string& reason) {
  wire::NodeFinished finished;
  finished.outcome = wire::NodeFinished::Outcome::failed;
  finished.reason = reason;
  try {
    write_exit(root, options.job, options.attempt,
               {wire::dump(wire::to_json(wire::AttemptEvent{1, finished}))});
  } catch (const Error& error) {
    log::error("the failure could not be recorded", {{"error", error.what()}});
  }
}

int supervise_locked(const SuperviseOptions& options, const paths::AttemptRoot& root) {
  try {
    wire::AttemptSpec spec = read_spec(root, options);
    Surroundings surroundings;
    surroundings.secrets = take_secrets(root);
    surroundings.base = login_environment(options.root);
    const pid_t pid = ::getpid();
    // On disk before it is made, so that whoever comes after us finds it.
    AttemptGroup group(options.places, spec);
    if (group.folder().empty()) log::info("no cgroup for the attempt", {{"why", group.why()}});
    write_supervisor(root, {pid, start_time(pid).value_or(0), boot_id(), group.folder().string()});
    Supervisor supervisor(options, std::move(spec), std::move(surroundings), std::move(group));
    supervisor.run();
    return 0;
  } catch (const std::exception& error) {
    log::error("the attempt cannot be supervised", {{"error", error.what()}});
    if (!fs::exists(root.exit())) record_failure(root, options, error.what());
    return 1;
  }
}

}  // namespace

int supervise_main(const SuperviseOptions& given) {
  SuperviseOptions options = given;
  try {
    options.root = fs::absolute(given.root);
    const paths::AttemptRoot root = paths::attempt({options.root}, options.job, options.attempt);
    log::open("supervise", root.log().string());
    prepare_process();
    const AttemptLock lock = lock_attempt(root, options.lock);
    if (fs::exists(root.exit())) {
      throw Error(ErrorCode::conflict, "the attempt has ended: " + root.exit().string());
    }
    return supervise_locked(options, root);
  } catch (const std::exception& error) {
    log::error("the supervisor cannot start", {{"error", error.what()}});
    return 1;
  }
}

}  // namespace dtrain::supervise
