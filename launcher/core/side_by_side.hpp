#pragma once

#include <cstddef>
#include <functional>

namespace dtrain {

// work(0) … work(count - 1), at most `at_once` of them under way at a time, begun in this order on
// threads of their own; returns when all have ended. Work catches what it throws.
void side_by_side(std::size_t count, std::size_t at_once,
                  const std::function<void(std::size_t)>& work);

}  // namespace dtrain
