#include "launcher/core/side_by_side.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace dtrain {

void side_by_side(std::size_t count, std::size_t at_once,
                  const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  const std::size_t size = std::min(count, std::max<std::size_t>(at_once, 1));
  const auto work_on = [&] {
    for (std::size_t mine = next++; mine < count; mine = next++) work(mine);
  };
  try {
    while (threads.size() < size) threads.emplace_back(work_on);
  } catch (const std::system_error&) {
    work_on();  // there may be no more of them: this one, and those that there are
  }
}

}  // namespace dtrain
