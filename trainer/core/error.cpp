#include "trainer/core/error.hpp"

#include <system_error>

namespace dtrain::train {

Error errno_error(const std::string& what, int error_number) {
  return Error(what + ": " + std::generic_category().message(error_number));
}

}  // namespace dtrain::train
