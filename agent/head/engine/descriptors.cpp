#include "agent/head/engine/descriptors.hpp"

namespace dtrain::head {

std::string too_few_descriptors(std::size_t hard_limit, int nodes) {
  const std::size_t needed = head_descriptors(nodes);
  if (hard_limit == 0 || hard_limit >= needed) return {};
  return "the head's machine lets it open " + std::to_string(hard_limit) +
         " files (ulimit -Hn), and with " + std::to_string(nodes) + " nodes it may need " +
         std::to_string(needed) + ": raise nofile in its /etc/security/limits.conf";
}

}  // namespace dtrain::head
