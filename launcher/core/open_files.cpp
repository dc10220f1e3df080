#include "launcher/core/open_files.hpp"

#include <sys/resource.h>

#include <optional>

namespace dtrain {
namespace {

std::optional<rlimit> former;  // the limits before they were raised

rlimit limits() {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

void raise_open_files() {
  struct rlimit limit = limits();
  if (limit.rlim_cur >= limit.rlim_max) return;
  former = limit;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void restore_open_files() {
  if (former) ::setrlimit(RLIMIT_NOFILE, &*former);
}

std::size_t most_open_files() {
  return limits().rlim_max;
}

}  // namespace dtrain
