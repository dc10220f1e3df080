#include "cli/pulled_logs.hpp"

#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {

PulledLogs::PulledLogs(fs::path folder, std::string job)
    : folder_(std::move(folder)), job_(std::move(job)) {
  const auto text = read_file_if_there(folder_ / kName);
  if (!text) return;
  const nlohmann::json noted = nlohmann::json::parse(*text, nullptr, false);
  if (!noted.is_object() || noted.value("job", nlohmann::json()) != job_) return;
  is_ours_ = true;
  for (const nlohmann::json& path : noted.value("files", nlohmann::json::array())) {
    if (path.is_string()) paths_.insert(path.get<std::string>());
  }
}

void PulledLogs::begin() {
  if (is_ours_) return;
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) throw errno_error("cannot make " + folder_.string(), failed.value());
  save();
  is_ours_ = true;
}

void PulledLogs::add(const std::set<std::string>& paths) {
  const std::size_t before = paths_.size();
  paths_.insert(paths.begin(), paths.end());
  if (paths_.size() > before) save();
}

void PulledLogs::save() const {
  const nlohmann::json noted = {{"job", job_}, {"files", paths_}};
  write_file_atomic(folder_ / kName, wire::dump(noted) + "\n", 0644);
}

}  // namespace dtrain::cli
