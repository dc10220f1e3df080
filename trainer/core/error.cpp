#include "trainer/core/error.hpp"

#include <cstdio>
#include <system_error>

namespace dtrain::train {

Error errno_error(const std::string& what, int error_number) {
  return Error(what + ": " + std::generic_category().message(error_number), error_number);
}

void warn_on_stderr(const std::string& message) {
  std::fprintf(stderr, "warning: %s\n", message.c_str());
}

}  // namespace dtrain::train
