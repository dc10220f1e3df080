#include <utility>

#include "agent/supervise/attempt_processes.hpp"
#include "agent/supervise/last_words.hpp"
#include "agent/supervise/setup_mark.hpp"
#include "agent/supervise/supervisor.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

// The job's setup, before its ranks.
namespace dtrain::supervise {

void Supervisor::start_setup_process() {
  const UniqueFd cgroup = enter("setup", setup_memory());
  Started started = start_setup(spec_, setup_environment(spec_, surroundings_), cgroup.get());
  setup_pid_ = started.pid;
  setup_stream_ = add_stream(std::move(started.out), root_.setup_log());
  log::info("setup started", {{"pid", std::to_string(setup_pid_)}});
  emit(wire::SetupStarted{});
}

void Supervisor::setup_ended(const ProcessExit& exit) {
  setup_pid_ = 0;
  setup_exit_ = exit;
  setup_drain_until_ = clock_.now() + kDrain;
  log::info("setup ended", {{"exit", exit.str()}});
}

// All that its node's ranks have together: none of them runs yet.
std::uint64_t Supervisor::setup_memory() const {
  return spec_.rank_memory * static_cast<std::uint64_t>(spec_.nproc);
}

bool Supervisor::setup_drained(Monotonic now) const {
  return !setup_stream_ || now >= setup_drain_until_;
}

void Supervisor::remember_setup() {
  // What it has left running ends with this attempt, so the next one needs it again.
  if (!processes_left().empty()) return;
  try {
    mark_setup({options_.root}, spec_.job, spec_.attempt);
  } catch (const Error& error) {
    log::warn("setup will run again", {{"why", error.what()}});
  }
}

void Supervisor::tell_setup_failure(Monotonic now) {
  if (ending_ || !setup_exit_ || !setup_drained(now)) return;
  const std::vector<std::string> lines = last_lines(root_.setup_log());
  const std::string cause = group_.memory_end("setup", setup_memory());
  end(Outcome::failed,
      "setup on " + spec_.node.str() + ": " + setup_exit_->str() +
          (cause.empty() ? "" : ", " + cause) + (lines.empty() ? "" : ": " + lines.back()),
      spec_.stop_grace);
}

}  // namespace dtrain::supervise
