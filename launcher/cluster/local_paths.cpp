#include "launcher/cluster/local_paths.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain {
namespace {

// errno of a look at it; 0: it is there.
int look(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? 0 : errno;
}

const char* hint_of(LocalPath::What what) {
  switch (what) {
    case LocalPath::What::mount:
      return "it is path there: path here; a relative one is below the YAML's folder";
    case LocalPath::What::key:
      return "without this key, ssh itself chooses one";
    case LocalPath::What::public_key:
      return "ssh-keygen -y -f KEY writes the public half of a key";
  }
  return "";
}

std::optional<Error> missing(const LocalPath& local) {
  const int failed = look(local.path);
  if (failed == 0) return std::nullopt;
  const bool absent = failed == ENOENT || failed == ENOTDIR;
  if (absent && local.what == LocalPath::What::key && look(local.path + ".pub") == 0) {
    return std::nullopt;
  }
  const std::string path = printable(local.path, false);
  if (!absent) {
    return Error(ErrorCode::invalid,
                 errno_error(local.key + ": cannot look at " + path, failed).message())
        .at(local.location);
  }
  return Error(ErrorCode::invalid, local.key + ": there is no " + path)
      .with_hint(hint_of(local.what))
      .at(local.location);
}

}  // namespace

std::vector<Error> missing_local_paths(const ClusterSpec& spec) {
  std::vector<Error> errors;
  if (traits_of(spec.provider.kind).here) return errors;
  for (const LocalPath& local : spec.local_paths) {
    if (auto error = missing(local)) errors.push_back(std::move(*error));
  }
  return errors;
}

}  // namespace dtrain
