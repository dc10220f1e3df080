#include "agent/node/setup_logs.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace dtrain::node {
namespace {

std::string end_of(const fs::path& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::string text(std::min<std::uint64_t>(size, most), '\0');
  const ssize_t got =
      ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace

wire::SetupLogs read_setup_logs(const paths::NodeRoot& root, const std::string& request) {
  constexpr std::size_t kMostLogs = 16;
  wire::SetupLogs answer;
  answer.request = request;
  std::vector<fs::path> paths;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root.setup(), none)) {
    if (entry.path().extension() == ".log") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  if (paths.size() > kMostLogs) paths.resize(kMostLogs);
  for (const fs::path& path : paths) {
    answer.logs.push_back({path.stem().string(), end_of(path, wire::kSetupText)});
  }
  return answer;
}

}  // namespace dtrain::node
