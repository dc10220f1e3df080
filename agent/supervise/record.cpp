#include "agent/supervise/record.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {

void write_supervisor(const paths::AttemptRoot& root, const SupervisorRecord& record) {
  const nlohmann::json json = {{"version", kRecordVersion},
                               {"pid", record.pid},
                               {"start_time", record.start_time},
                               {"boot_id", record.boot_id}};
  const fs::path temporary = root.supervisor().string() + ".tmp";
  {
    const UniqueFd fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(fd.get(), wire::dump(json) + "\n");
  }
  if (std::rename(temporary.c_str(), root.supervisor().c_str()) != 0) {
    throw errno_error("cannot write " + root.supervisor().string(), errno);
  }
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
