#include "agent/supervise/record.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {

void write_supervisor(const paths::AttemptRoot& root, const SupervisorRecord& record) {
  nlohmann::json json = {{"version", kRecordVersion},
                         {"pid", record.pid},
                         {"start_time", record.start_time},
                         {"boot_id", record.boot_id}};
  if (!record.cgroup.empty()) json["cgroup"] = record.cgroup;
  const fs::path temporary = root.supervisor().string() + ".tmp";
  {
    const UniqueFd fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(fd.get(), wire::dump(json) + "\n");
  }
  failpoint("record.rename.before");
  if (std::rename(temporary.c_str(), root.supervisor().c_str()) != 0) {
    throw errno_error("cannot write " + root.supervisor().string(), errno);
  }
  failpoint("record.rename.after");
}

std::optional<SupervisorRecord> read_supervisor(const paths::AttemptRoot& root) {
  const auto text = read_file_if_there(root.supervisor());
  if (!text) return std::nullopt;
  return while_doing("reading " + root.supervisor().string(), [&] {
    const nlohmann::json json = wire::parse_json(*text, "the file");
    SupervisorRecord record;
    record.pid = static_cast<pid_t>(wire::get_int(json, "pid", 1, INT_MAX));
    record.start_time = static_cast<std::uint64_t>(wire::get_int(json, "start_time", 0, INT64_MAX));
    record.boot_id = wire::get_string(json, "boot_id");
    record.cgroup = wire::get_string(json, "cgroup", "");
    return std::optional(std::move(record));
  });
}

void write_exit(const paths::AttemptRoot& root, const JobId& job, int attempt,
                const std::vector<std::string>& events) {
  // The events are JSON already; to parse them for this would only cost.
  std::string text = R"({"version":)" + std::to_string(kRecordVersion) + R"(,"job":)" +
                     wire::dump(job.str()) + R"(,"attempt":)" + std::to_string(attempt) +
                     R"(,"events":[)" + "\n" + join(events, ",\n") + "\n]}\n";
  write_file_atomic(root.exit(), text);
}

}  // namespace dtrain::supervise
