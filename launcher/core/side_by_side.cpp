#include "launcher/core/side_by_side.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace dtrain {

void side_by_side(std::size_t count, std::size_t at_once,
                  const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  const std::size_t size = std::min(count, std::max<std::size_t>(at_once, 1));
  for (std::size_t i = 0; i < size; ++i) {
    threads.emplace_back([&] {
      for (std::size_t mine = next++; mine < count; mine = next++) work(mine);
    });
  }
}

}  // namespace dtrain
