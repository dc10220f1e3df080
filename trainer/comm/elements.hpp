#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "trainer/comm/kernels.hpp"

namespace dtrain::train::comm {

// LibTorch's types as ours; none for those that cannot be added up here.
std::optional<Element> element_of(c10::ScalarType type);

}  // namespace dtrain::train::comm
