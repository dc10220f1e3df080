#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"

// CPUs of a rank's own (cpu_bind: cores). Which a supervisor has for its ranks is told by names in
// the abstract namespace of unix sockets, one for each CPU, that it holds as long as they live and
// that the kernel gives back at its death. So nobody keeps a list of them that could be wrong after
// a restart, and whoever shares the machine takes others: nodes and clusters of any user, and
// containers, as far as they share its network namespace.
namespace dtrain::supervise {

struct Cpu {
  int number = 0;
  int core = 0;  // the first CPU of its core
  int numa = 0;

  bool operator==(const Cpu&) const = default;
};

// Those that this process may use (affinity, cpuset), by number. What is not told of a CPU's place
// is: a core of its own on NUMA node 0. `system`: /sys/devices/system.
std::vector<Cpu> usable_cpus(const fs::path& system);

// For each of so many ranks as many CPUs as it wants, each sorted: whole cores that are free before
// others, of one NUMA node where one has enough, of several such the one with the fewest CPUs left.
// Absent: fewer are free.
std::optional<std::vector<std::vector<int>>> choose_cpus(const std::vector<Cpu>& cpus,
                                                         std::set<int> free, int ranks, int each);

// "0-3,8". Of a list of numbers in such a text, those; what is none is passed over.
std::string cpu_list(const std::vector<int>& cpus);
std::vector<int> cpus_of_list(const std::string& text);

class BoundCpus {
 public:
  static constexpr std::chrono::seconds kTurnLimit{5};

  // `name` begins the sockets' names.
  explicit BoundCpus(std::string name = "dtrain-cpu") : name_(std::move(name)) {}

  // Takes so many for so many ranks, all or none. Throws Error that says why there are none.
  void take(const fs::path& system, int ranks, int each);
  // Of a rank on this node; empty: it is not bound.
  const std::vector<int>& of(int local_rank) const;
  void release();

 private:
  UniqueFd wait_turn() const;

  std::string name_;
  std::map<int, UniqueFd> held_;
  std::vector<std::vector<int>> ranks_;
};

}  // namespace dtrain::supervise
