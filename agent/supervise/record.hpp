#pragma once

#include <sys/types.h>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/paths.hpp"

// What a supervisor leaves in the attempt's folder for those who come after it.
namespace dtrain::supervise {

inline constexpr int kRecordVersion = 1;

// supervise.json: who supervises, for people and for older agents; ours go by the lock. Within one
// boot a pid with its start time names one process.
struct SupervisorRecord {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::string boot_id;
  std::string cgroup;  // the attempt's control group; empty: none, or an older supervisor
};
// Renamed into place, but not fsynced: after a crash of the machine another boot id says it all.
void write_supervisor(const paths::AttemptRoot& root, const SupervisorRecord& record);
// Absent when there is none. Throws Error(invalid) for one that is not ours.
std::optional<SupervisorRecord> read_supervisor(const paths::AttemptRoot& root);

// exit.json: the last event and all before it that may not have been heard, each a line as it
// would be sent. Written whole and fsynced.
void write_exit(const paths::AttemptRoot& root, const JobId& job, int attempt,
                const std::vector<std::string>& events);

}  // namespace dtrain::supervise
