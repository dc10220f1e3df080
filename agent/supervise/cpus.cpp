#include "agent/supervise/cpus.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::chrono::milliseconds kTurnAgain{1};

std::vector<int> list_in(const fs::path& file) {
  try {
    return cpus_of_list(trimmed(read_file_if_there(file, 65536).value_or("")));
  } catch (const Error&) {
    return {};  // it tells nothing
  }
}

// NUMA nodes by CPU.
std::map<int, int> numa_nodes(const fs::path& system) {
  std::map<int, int> nodes;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(system / "node", none)) {
    const std::string name = entry.path().filename().string();
    const auto number = name.starts_with("node") ? number_from<int>(name.substr(4)) : std::nullopt;
    if (!number) continue;
    for (const int cpu : list_in(entry.path() / "cpulist")) nodes[cpu] = *number;
  }
  return nodes;
}

// Free CPUs by core.
using Cores = std::map<int, std::vector<int>>;

struct Choice {
  std::vector<int> cpus;
  int shared = 0;  // of cores of which others may have a part
};

// As long as a whole core is wanted, whole ones; of the rest what is least of use to others.
Choice choose_of(Cores cores, const std::map<int, std::size_t>& sizes, int each) {
  Choice choice;
  while (static_cast<int>(choice.cpus.size()) < each && !cores.empty()) {
    const std::size_t wanted = static_cast<std::size_t>(each) - choice.cpus.size();
    const auto is_whole = [&](const auto& core) {
      return core.second.size() == sizes.at(core.first);
    };
    const auto best =
        std::min_element(cores.begin(), cores.end(), [&](const auto& a, const auto& b) {
          const auto cost = [&](const auto& core) {
            const bool is_taken_whole = is_whole(core) && core.second.size() <= wanted;
            // Who breaks a core leaves the whole ones to others.
            return std::tuple(!is_taken_whole, is_whole(core),
                              is_taken_whole ? 0 : core.second.size(), core.first);
          };
          return cost(a) < cost(b);
        });
    const bool is_taken_whole = is_whole(*best) && best->second.size() <= wanted;
    const std::size_t count = std::min(wanted, best->second.size());
    choice.cpus.insert(choice.cpus.end(), best->second.begin(),
                       best->second.begin() + static_cast<std::ptrdiff_t>(count));
    if (!is_taken_whole) choice.shared += static_cast<int>(count);
    cores.erase(best);
  }
  std::sort(choice.cpus.begin(), choice.cpus.end());
  return choice;
}

std::size_t count_of(const Cores& cores) {
  std::size_t count = 0;
  for (const auto& [core, cpus] : cores) count += cpus.size();
  return count;
}

// One rank's, of what is free by NUMA node. There are enough.
std::vector<int> choose_for_rank(const std::map<int, Cores>& free,
                                 const std::map<int, std::size_t>& sizes, int each) {
  std::optional<Choice> best;
  std::size_t left = 0;
  for (const auto& [numa, cores] : free) {
    const std::size_t count = count_of(cores);
    if (count < static_cast<std::size_t>(each)) continue;
    Choice choice = choose_of(cores, sizes, each);
    if (best && std::tuple(choice.shared, count) >= std::tuple(best->shared, left)) continue;
    best = std::move(choice);
    left = count;
  }
  if (best) return best->cpus;
  // Of as few nodes as do.
  std::vector<const Cores*> most;
  for (const auto& [numa, cores] : free) most.push_back(&cores);
  std::stable_sort(most.begin(), most.end(),
                   [](const Cores* a, const Cores* b) { return count_of(*a) > count_of(*b); });
  std::vector<int> cpus;
  for (const Cores* cores : most) {
    const Choice part = choose_of(*cores, sizes, each - static_cast<int>(cpus.size()));
    cpus.insert(cpus.end(), part.cpus.begin(), part.cpus.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

std::vector<Cpu> usable_cpus(const fs::path& system) {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) {
    throw errno_error("cannot see which CPUs there are", errno);
  }
  const std::map<int, int> numa = numa_nodes(system);
  std::vector<Cpu> cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(static_cast<std::size_t>(number), &set)) continue;
    const std::vector<int> core = list_in(system / "cpu" / ("cpu" + std::to_string(number)) /
                                          "topology" / "thread_siblings_list");
    const auto node = numa.find(number);
    cpus.push_back(
        {number, core.empty() ? number : core.front(), node == numa.end() ? 0 : node->second});
  }
  return cpus;
}

std::optional<std::vector<std::vector<int>>> choose_cpus(const std::vector<Cpu>& cpus,
                                                         std::set<int> free, int ranks, int each) {
  std::map<int, std::size_t> sizes;  // of cores
  for (const Cpu& cpu : cpus) ++sizes[cpu.core];
  if (free.size() < static_cast<std::size_t>(ranks) * static_cast<std::size_t>(each)) {
    return std::nullopt;
  }
  std::vector<std::vector<int>> chosen;
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<int, Cores> here;
    for (const Cpu& cpu : cpus) {
      if (free.contains(cpu.number)) here[cpu.numa][cpu.core].push_back(cpu.number);
    }
    chosen.push_back(choose_for_rank(here, sizes, each));
    for (const int cpu : chosen.back()) free.erase(cpu);
  }
  return chosen;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < cpus.size();) {
    std::size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    words.push_back(std::to_string(cpus[begin]) +
                    (end - begin == 1 ? "" : "-" + std::to_string(cpus[end - 1])));
    begin = end;
  }
  return join(words, ",");
}

std::vector<int> cpus_of_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string& word : split(text, ',')) {
    const std::size_t dash = word.find('-');
    const auto first = number_from<int>(std::string_view(word).substr(0, dash));
    const auto last = dash == std::string::npos
                          ? first
                          : number_from<int>(std::string_view(word).substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= 1 << 20) continue;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// Whoever looks for free ones does so alone: it takes each for a moment.
UniqueFd BoundCpus::wait_turn() const {
  const StartWait waits;
  const auto until = std::chrono::steady_clock::now() + kTurnLimit;
  while (true) {
    try {
      return listen_abstract(name_ + "s");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::conflict) throw;
      if (std::chrono::steady_clock::now() >= until) {
        throw Error(ErrorCode::conflict, "others have been taking theirs on this machine for " +
                                             human_duration(kTurnLimit));
      }
    }
    std::this_thread::sleep_for(kTurnAgain);
  }
}

void BoundCpus::take(const fs::path& system, int ranks, int each) {
  release();
  const std::vector<Cpu> cpus = usable_cpus(system);
  const UniqueFd turn = wait_turn();
  const auto hold = [this](int cpu) -> UniqueFd {
    try {
      return listen_abstract(name_ + "-" + std::to_string(cpu));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::conflict) throw;
      return {};
    }
  };
  std::set<int> free;
  for (const Cpu& cpu : cpus) {
    if (hold(cpu.number)) free.insert(cpu.number);
  }
  auto chosen = choose_cpus(cpus, free, ranks, each);
  if (!chosen) {
    throw Error(ErrorCode::conflict, "they need " + std::to_string(std::int64_t{ranks} * each) +
                                         ", and other bound ranks have " +
                                         std::to_string(cpus.size() - free.size()) + " of the " +
                                         std::to_string(cpus.size()) + " that there are here");
  }
  std::map<int, UniqueFd> held;
  for (const std::vector<int>& of_rank : *chosen) {
    for (const int cpu : of_rank) {
      if (!(held[cpu] = hold(cpu))) {
        throw Error(ErrorCode::conflict, "CPU " + std::to_string(cpu) + " was taken meanwhile");
      }
    }
  }
  held_ = std::move(held);
  ranks_ = std::move(*chosen);
}

const std::vector<int>& BoundCpus::of(int local_rank) const {
  static const std::vector<int> none;
  const auto rank = static_cast<std::size_t>(local_rank);
  return rank < ranks_.size() ? ranks_[rank] : none;
}

void BoundCpus::release() {
  held_.clear();
  ranks_.clear();
}

}  // namespace dtrain::supervise
