#include "launcher/core/failpoint.hpp"

namespace dtrain {

constinit ReachedFailpoint reached_failpoint = nullptr;

}  // namespace dtrain
