#include "agent/supervise/client.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "agent/supervise/group.hpp"
#include "agent/supervise/record.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::chrono::seconds kKillLimit{1};

// What its supervisor wrote down of its control group, if that was in this boot.
std::vector<pid_t> clean_group_of(const paths::AttemptRoot& root, const wire::AttemptSpec& spec) {
  try {
    const auto record = read_supervisor(root);
    if (!record || record->cgroup.empty() || record->boot_id != boot_id()) return {};
    return clean_group(record->cgroup, spec, kKillLimit);
  } catch (const Error& error) {
    log::warn("an attempt's cgroup cannot be cleaned", {{"error", error.what()}});
    return {};
  }
}

}  // namespace

pid_t start_supervisor(const std::string& agent, const paths::NodeRoot& node, const JobId& job,
                       int attempt, const AttemptLock& lock) {
  SpawnOptions options;
  options.argv = {agent,       "supervise",
                  "--root",    node.root.string(),
                  "--job",     job.str(),
                  "--attempt", std::to_string(attempt),
                  "--lock",    std::to_string(AttemptLock::kInherited)};
  options.workdir = "/";
  options.new_session = true;
  options.inherit = {{lock.fd(), AttemptLock::kInherited}};
  return spawn(options);
}

std::optional<FinishedRecord> read_exit(const paths::AttemptRoot& root) {
  const auto text = read_file_if_there(root.exit());
  if (!text) return std::nullopt;
  return while_doing("reading " + root.exit().string(), [&] {
    const nlohmann::json json = wire::parse_json(*text, "the file", std::size_t{64} << 20);
    const nlohmann::json& events = wire::member(json, "events");
    FinishedRecord record;
    for (const nlohmann::json& event : events) {
      record.events.push_back(wire::attempt_event_from_json(event));
    }
    const auto* last = record.events.empty()
                           ? nullptr
                           : std::get_if<wire::NodeFinished>(&record.events.back().body);
    if (last == nullptr) throw Error(ErrorCode::invalid, "its last event is not \"finished\"");
    record.finished = *last;
    return std::optional(std::move(record));
  });
}

std::vector<pid_t> clean_after(const paths::AttemptRoot& root, const AttemptLock&) {
  ::unlink(root.secrets().c_str());  // it was killed before it took them
  const auto text = read_file_if_there(root.spec());
  if (!text) return {};
  const wire::AttemptSpec spec = while_doing("reading " + root.spec().string(), [&] {
    return wire::attempt_spec_from_json(wire::parse_json(*text, "the file"));
  });
  std::vector<pid_t> left = clean_group_of(root, spec);
  for (const pid_t pid : sweep("DTRAIN_ATTEMPT_TOKEN", spec.token, kKillLimit)) {
    if (std::find(left.begin(), left.end(), pid) == left.end()) left.push_back(pid);
  }
  // NODE_ROOT/jobs/JOB/attempt-N, as paths.hpp draws it.
  const fs::path node = root.root.parent_path().parent_path().parent_path();
  ::unlink(paths::supervisor_socket(node, spec.job, spec.attempt).c_str());
  for (int local = 0; local < spec.nproc; ++local) {
    const int rank = spec.first_rank + local;
    ::unlink(paths::report_socket(node, spec.job, spec.attempt, rank).c_str());
  }
  return left;
}

}  // namespace dtrain::supervise
