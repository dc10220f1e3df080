#include "cli/pull_mark.hpp"

#include <set>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/stored_checkpoints.hpp"

namespace dtrain::cli {

std::string tell_pulled(const wire::ApiClient& client, const std::string& job,
                        const std::vector<RemoteFile>& files) {
  // Of a checkpoint all files are pulled or none; the manifest lists them.
  std::set<int> numbers;
  for (const RemoteFile& file : files) {
    const std::vector<std::string> parts = split(file.path, '/');
    if (parts.size() != 3 || parts[0] != "checkpoints" || parts[2] != "manifest.json") continue;
    if (const auto number = checkpoint_number(parts[1])) numbers.insert(*number);
  }
  if (numbers.empty()) return {};
  try {
    client.post(job_target(job, "/pulled"), {{"checkpoints", numbers}});
    return {};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return {};  // an older head, or the job is gone
    return "the head could not note that they were pulled: " + error.message();
  }
}

}  // namespace dtrain::cli
