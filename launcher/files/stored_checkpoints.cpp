#include "launcher/files/stored_checkpoints.hpp"

#include <sys/stat.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/number.hpp"

namespace dtrain {
namespace {

constexpr std::string_view kCommitted = "checkpoint_";
constexpr std::size_t kListLimit = std::size_t{16} << 20;  // bytes of .pulled

fs::path pulled_list(const fs::path& checkpoints) {
  return checkpoints / ".pulled";
}

// Each regular file below it, links not followed, with its size without holes.
template <typename Use>
void for_each_file(const fs::path& folder, Use use) {
  std::error_code failed;
  for (fs::recursive_directory_iterator
           it(folder, fs::directory_options::skip_permission_denied, failed),
       end;
       !failed && it != end; it.increment(failed)) {
    struct stat status {};
    if (::lstat(it->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    use(status, std::min(static_cast<std::uint64_t>(status.st_size),
                         static_cast<std::uint64_t>(status.st_blocks) * 512));
  }
}

}  // namespace

std::uint64_t folder_bytes(const fs::path& folder) {
  std::uint64_t total = 0;
  for_each_file(folder, [&](const struct stat& status, std::uint64_t bytes) {
    total += bytes / std::max<nlink_t>(status.st_nlink, 1);
  });
  return total;
}

FileCount count_files(const fs::path& folder) {
  FileCount count;
  for_each_file(folder, [&](const struct stat& /*status*/, std::uint64_t bytes) {
    ++count.files;
    count.bytes += bytes;
  });
  return count;
}

std::optional<int> checkpoint_number(const std::string& folder) {
  if (!folder.starts_with(kCommitted)) return std::nullopt;
  const std::string digits = folder.substr(kCommitted.size());
  const auto number = number_from<int>(digits);
  return number && *number >= 0 && digits.size() >= 6 ? number : std::nullopt;
}

std::set<int> pulled_checkpoints(const fs::path& checkpoints) {
  const fs::path path = pulled_list(checkpoints);
  const auto text = read_file_if_there(path, kListLimit);
  if (!text) return {};
  try {
    return nlohmann::json::parse(*text).at("numbers").get<std::set<int>>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid, path.string() + " is damaged: " + error.what());
  }
}

void mark_pulled(const fs::path& checkpoints, const std::set<int>& numbers) {
  std::set<int> all;
  try {
    all = pulled_checkpoints(checkpoints);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid) throw;
    log::warn("a list of pulled checkpoints is begun anew", {{"why", error.what()}});
  }
  all.insert(numbers.begin(), numbers.end());
  write_file_atomic(pulled_list(checkpoints), nlohmann::json{{"numbers", all}}.dump() + "\n");
}

std::vector<StoredCheckpoints> unpulled_checkpoints(const fs::path& storage) {
  std::vector<StoredCheckpoints> jobs;
  for (const fs::path& job : entries_of(storage)) {
    std::error_code unseen;
    if (!fs::is_directory(job, unseen) && !unseen) continue;
    const fs::path folder = job / "checkpoints";
    std::set<int> pulled;
    try {
      pulled = pulled_checkpoints(folder);
    } catch (const Error& error) {
      log::debug("which checkpoints were pulled is not known", {{"why", error.what()}});
    }
    StoredCheckpoints stored{job.filename().string()};
    for (const fs::path& entry : entries_of(folder)) {
      const auto number = checkpoint_number(entry.filename().string());
      if (!number || pulled.contains(*number)) continue;
      ++stored.count;
      stored.bytes += folder_bytes(entry);
    }
    if (stored.count > 0) jobs.push_back(std::move(stored));
  }
  return jobs;
}

}  // namespace dtrain
