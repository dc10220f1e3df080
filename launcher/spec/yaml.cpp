#include "launcher/spec/yaml.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "launcher/spec/readers.hpp"

namespace dtrain {
namespace spec {

// The file's text, one byte more than the limit at most: the parser then says that it is too large.
std::string read_text(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) throw errno_error("cannot open " + path, errno);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat status {};
  if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    throw Error(ErrorCode::invalid, path + " is a folder, not a YAML file");
  }
  std::string text;
  std::array<char, 65536> buffer{};
  while (text.size() <= kMaxText) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path, errno);
    if (got == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

void report_problems(const std::vector<Problem>& problems, const Document& document, Report& report,
                     const std::function<Path(const Path&)>& moved) {
  for (const Problem& problem : problems) {
    const Path path = moved ? moved(problem.path) : problem.path;
    if (!report.open()) return;
    if (!report.knows(path)) {
      report.problem(path, document.place(path), problem.message, problem.hint);
    }
  }
}

void report_repeated(const Document& document, Report& report, bool of_ray) {
  for (const Repeated& repeated : document.repeated()) {
    const std::string first = std::to_string(repeated.first.line);
    if (of_ray) {
      report.warning(
          repeated.path, repeated.last,
          "is there twice: this one counts, as in Ray, and line " + first + " has no effect");
    } else {
      report.problem(repeated.path, repeated.last,
                     "is there twice in this mapping, first in line " + first);
    }
  }
}

}  // namespace spec

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

Read<ClusterSpec> read_cluster_yaml(const std::string& path, const Environment& environment) {
  return parse_cluster_yaml(spec::read_text(path), path, environment);
}

Read<JobSpec> read_job_yaml(const std::string& path, const Environment& environment) {
  return parse_job_yaml(spec::read_text(path), path, environment);
}

bool looks_like_cluster_yaml(const std::string& path) {
  const std::string text = spec::read_text(path);
  spec::Report report(path);
  try {
    return spec::parse_document(text, report).root().find("provider") != nullptr;
  } catch (const SpecError&) {
    return false;
  }
}

}  // namespace dtrain
