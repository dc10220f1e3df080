#include "trainer/report/metrics_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

FileDescriptor open_to_append(const std::filesystem::path& path) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  return open_file(path, O_WRONLY | O_CREAT | O_APPEND);
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path)
    : path_(path), file_(open_to_append(path)) {}

void MetricsFile::write(std::int64_t step, const Metrics& metrics) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const nlohmann::json line = {
      {"step", step}, {"time", now.count()}, {"metrics", metrics_to_json(metrics)}};
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // One write: a reader that follows the file never sees half a line of a local file system.
  if (::write(file_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw errno_error("cannot write " + path_.string(), errno);
  }
}

}  // namespace dtrain::train
