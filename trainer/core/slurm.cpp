#include "trainer/core/slurm.hpp"

#include <charconv>
#include <cstdio>
#include <string_view>

#include "trainer/core/error.hpp"
#include "trainer/core/mix.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostHosts = 65536;

[[noreturn]] void refuse(const std::string& list) {
  throw Error("environment: '" + list.substr(0, 200) + "' is not a list that Slurm writes");
}

std::uint64_t number(std::string_view text, const std::string& list) {
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || rest != text.data() + text.size() ||
      value > 1000000000) {
    refuse(list);
  }
  return value;
}

// Parts between commas, but for those inside of brackets.
std::vector<std::string_view> parts_of(const std::string& list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && !inside)) {
      parts.push_back(std::string_view(list).substr(begin, i - begin));
      begin = i + 1;
    } else if (list[i] == '[' || list[i] == ']') {
      if (inside == (list[i] == '[')) refuse(list);
      inside = !inside;
    }
  }
  if (inside) refuse(list);
  return parts;
}

// One bracket at a time, from the left: "r[1-2]n[1-2]" has two.
void expand(const std::string& before, std::string_view rest, const std::string& list,
            std::vector<std::string>& hosts) {
  const auto open = rest.find('[');
  if (open == std::string_view::npos) {
    std::string host = before + std::string(rest);
    if (host.empty() || hosts.size() >= kMostHosts) refuse(list);
    hosts.push_back(std::move(host));
    return;
  }
  const auto close = rest.find(']', open);
  const std::string prefix = before + std::string(rest.substr(0, open));
  std::string_view ranges = rest.substr(open + 1, close - open - 1);
  for (bool more = true; more;) {
    const auto comma = ranges.find(',');
    more = comma != std::string_view::npos;
    const std::string_view range = ranges.substr(0, comma);
    if (more) ranges.remove_prefix(comma + 1);
    const auto dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::uint64_t from = number(first, list);
    const std::uint64_t to =
        dash == std::string_view::npos ? from : number(range.substr(dash + 1), list);
    if (to < from || to - from >= kMostHosts) refuse(list);
    for (std::uint64_t i = from; i <= to; ++i) {
      char digits[24];
      std::snprintf(digits, sizeof digits, "%0*llu",
                    static_cast<int>(std::min<std::size_t>(first.size(), 20)),
                    static_cast<unsigned long long>(i));
      expand(prefix + digits, rest.substr(close + 1), list, hosts);
    }
  }
}

}  // namespace

std::vector<std::string> slurm_hosts(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string_view part : parts_of(list)) expand("", part, list, hosts);
  return hosts;
}

std::vector<int> slurm_tasks_by_node(const std::string& list) {
  std::vector<int> tasks;
  for (std::string_view part : parts_of(list)) {
    std::uint64_t times = 1;
    if (const auto open = part.find("(x"); open != std::string_view::npos) {
      if (part.back() != ')') refuse(list);
      times = number(part.substr(open + 2, part.size() - open - 3), list);
      part = part.substr(0, open);
    }
    const std::uint64_t count = number(part, list);
    if (times > kMostHosts - std::min(kMostHosts, tasks.size())) refuse(list);
    tasks.insert(tasks.end(), times, static_cast<int>(count));
  }
  return tasks;
}

std::uint16_t slurm_port(const std::string& job, const std::string& step) {
  std::uint64_t mixed = 0;
  for (const char c : job + "." + step) mixed = mix(mixed, static_cast<unsigned char>(c));
  return static_cast<std::uint16_t>(20000 + mixed % 10000);  // below the ephemeral ports
}

}  // namespace dtrain::train
