#include "agent/supervise/cpus.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::supervise;

namespace {

using Cpus = std::vector<int>;
using Ranks = std::vector<Cpus>;

// Two NUMA nodes of so many cores of two CPUs, as Linux numbers them: 0 to 2N - 1, and their
// siblings after them.
std::vector<Cpu> machine(int cores) {
  std::vector<Cpu> cpus;
  for (int number = 0; number < 4 * cores; ++number) {
    const int core = number % (2 * cores);
    cpus.push_back({number, core, core / cores});
  }
  return cpus;
}

std::set<int> all_of(const std::vector<Cpu>& cpus) {
  std::set<int> all;
  for (const Cpu& cpu : cpus) all.insert(cpu.number);
  return all;
}

std::set<int> without(std::set<int> from, const Cpus& taken) {
  for (const int cpu : taken) from.erase(cpu);
  return from;
}

std::string own_name() {
  return "dtrain-test-cpu-" + std::to_string(::getpid());
}

}  // namespace

TEST_CASE("CPUs: whole cores of one NUMA node") {
  const std::vector<Cpu> cpus = machine(4);  // node 0: 0-3 and 8-11, node 1: 4-7 and 12-15
  const std::set<int> all = all_of(cpus);
  CHECK(choose_cpus(cpus, all, 1, 2) == Ranks{{0, 8}});
  CHECK(choose_cpus(cpus, all, 3, 4) == Ranks{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}});
  // On the other node where only that has so many.
  CHECK(choose_cpus(cpus, without(all, {0}), 1, 8) == Ranks{{4, 5, 6, 7, 12, 13, 14, 15}});
  // The one with the fewest left, so that the other keeps room.
  CHECK(choose_cpus(cpus, without(all, {4, 12}), 1, 2) == Ranks{{5, 13}});
  // Whole cores come before that.
  CHECK(choose_cpus(cpus, without(all, {4, 5, 6, 7}), 1, 2) == Ranks{{0, 8}});
}

TEST_CASE("CPUs: what is no whole core is left over first") {
  const std::vector<Cpu> cpus = machine(2);  // node 0: 0, 1, 4, 5; node 1: 2, 3, 6, 7
  const std::set<int> all = all_of(cpus);
  CHECK(choose_cpus(cpus, all, 4, 1) == Ranks{{0}, {4}, {1}, {5}});
  CHECK(choose_cpus(cpus, without(all, {0}), 1, 3) == Ranks{{1, 4, 5}});
  CHECK(choose_cpus(cpus, all, 2, 3) == Ranks{{0, 1, 4}, {2, 3, 6}});
  CHECK(choose_cpus(cpus, all, 1, 6) == Ranks{{0, 1, 2, 4, 5, 6}});  // of both nodes
  CHECK(choose_cpus(cpus, all, 1, 8) == Ranks{{0, 1, 2, 3, 4, 5, 6, 7}});
  CHECK_FALSE(choose_cpus(cpus, all, 3, 3).has_value());
  CHECK_FALSE(choose_cpus(cpus, {}, 1, 1).has_value());
  CHECK_FALSE(choose_cpus({}, {}, 4096, 1000000).has_value());
  // Of a core of which this process has a half alone, that is the whole.
  CHECK(choose_cpus({{0, 0, 0}, {1, 1, 0}}, {0, 1}, 1, 2) == Ranks{{0, 1}});
}

TEST_CASE("CPUs: lists of the kernel's") {
  CHECK(cpus_of_list("0-2,8,10-11") == Cpus{0, 1, 2, 8, 10, 11});
  CHECK(cpu_list({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11");
  CHECK(cpus_of_list("").empty());
  CHECK(cpus_of_list("a,-1,3-,2-1,4,99999999999,0-99999999").empty() == false);
  CHECK(cpus_of_list("a,-1,3-,2-1,4,99999999999,0-99999999") == Cpus{4});
  CHECK(cpu_list({}).empty());
}

TEST_CASE("CPUs: what the machine says of itself") {
  testing::TemporaryFolder folder;
  const fs::path system = folder.path();
  const std::vector<Cpu> bare = usable_cpus(system);
  REQUIRE_FALSE(bare.empty());
  const int first = bare.front().number;
  CHECK(bare.front() == Cpu{first, first, 0});
  const fs::path topology = system / "cpu" / ("cpu" + std::to_string(first)) / "topology";
  make_folders(topology);
  make_folders(system / "node/node3");
  write_file_atomic(topology / "thread_siblings_list", "77," + std::to_string(first) + "\n");
  write_file_atomic(system / "node/node3/cpulist", std::to_string(first) + "\n");
  CHECK(usable_cpus(system).front() == Cpu{first, 77, 3});
  // The real one.
  CHECK(usable_cpus("/sys/devices/system").size() == bare.size());
}

TEST_CASE("CPUs: each belongs to one, as long as that lives") {
  const auto cpus = static_cast<int>(usable_cpus("/sys/devices/system").size());
  BoundCpus one(own_name());
  BoundCpus other(own_name());
  one.take("/sys/devices/system", 1, 1);
  REQUIRE(one.of(0).size() == 1);
  CHECK(one.of(1).empty());
  CHECK(other.of(0).empty());
  std::string why;
  try {
    other.take("/sys/devices/system", 1, cpus);
  } catch (const Error& error) {
    why = error.what();
  }
  CHECK(why == "they need " + std::to_string(cpus) + ", and other bound ranks have 1 of the " +
                   std::to_string(cpus) + " that there are here");
  CHECK(other.of(0).empty());
  if (cpus > 1) {
    other.take("/sys/devices/system", 1, 1);
    CHECK(other.of(0) != one.of(0));
  }
  other.release();
  one.release();
  other.take("/sys/devices/system", 1, cpus);
  CHECK(static_cast<int>(other.of(0).size()) == cpus);
}

TEST_CASE("CPUs: who cannot hold all has none") {
  const auto cpus = static_cast<int>(usable_cpus("/sys/devices/system").size());
  if (cpus < 2) return;
  BoundCpus one(own_name());
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  // Enough to look at each, and not to hold two.
  const int next = UniqueFd(::dup(0)).get();
  REQUIRE(next >= 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 2;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  try {
    one.take("/sys/devices/system", 2, 1);
  } catch (const Error&) {
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(one.of(0).empty());
  CHECK(one.of(1).empty());
  one.take("/sys/devices/system", 1, cpus);  // nobody holds any
  CHECK(static_cast<int>(one.of(0).size()) == cpus);
}
