#include "agent/supervise/setup_mark.hpp"

#include <cerrno>
#include <optional>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

fs::path mark_of(const paths::NodeRoot& root, const JobId& job) {
  return root.jobs() / job.str() / "setup.json";
}

// The attempt in whose folder it has run since the machine's last start.
std::optional<int> marked(const paths::NodeRoot& root, const JobId& job) {
  const fs::path file = mark_of(root, job);
  try {
    const auto text = read_file_if_there(file);
    if (!text) return std::nullopt;
    const nlohmann::json mark = wire::parse_json(*text, file.string());
    if (wire::get_string(mark, "boot_id") != boot_id()) return std::nullopt;
    return static_cast<int>(wire::get_int(mark, "attempt", 1, 1'000'000'000));
  } catch (const Error& error) {
    log::warn("setup runs again: its mark cannot be read", {{"why", error.what()}});
    return std::nullopt;
  }
}

}  // namespace

bool setup_has_run(const paths::NodeRoot& root, const JobId& job, int attempt, bool in_place) {
  const auto in = marked(root, job);
  return in && (in_place || *in == attempt);
}

void mark_setup(const paths::NodeRoot& root, const JobId& job, int attempt) {
  const nlohmann::json mark = {{"attempt", attempt}, {"boot_id", boot_id()}};
  write_file_atomic(mark_of(root, job), wire::dump(mark));
}

void hand_on_workdir(const paths::NodeRoot& root, const JobId& job, int attempt) {
  const auto in = marked(root, job);
  if (!in || *in >= attempt) return;
  const fs::path from = root.workdir(job, *in);
  const fs::path to = root.workdir(job, attempt);
  std::error_code failed;
  if (!fs::is_directory(from, failed) || fs::exists(to, failed)) return;
  failpoint("workdir.rename.before");
  fs::rename(from, to, failed);
  failpoint("workdir.rename.after");
  if (failed) throw errno_error("cannot rename " + from.string(), failed.value());
  mark_setup(root, job, attempt);
}

}  // namespace dtrain::supervise
