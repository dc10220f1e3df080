#include "agent/node/facts.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "launcher/core/process_table.hpp"

using namespace dtrain;

TEST_CASE("a node's facts are this machine's") {
  const node::Facts facts = node::gather_facts();
  CHECK(facts.cpus >= 1);
  CHECK(facts.cpus <= ::sysconf(_SC_NPROCESSORS_CONF));
  CHECK(facts.memory > (std::uint64_t{64} << 20));
  CHECK(facts.memory <= static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  CHECK(facts.boot_id == boot_id());
  CHECK(facts.machine.find(facts.boot_id) == 0);
  CHECK(facts.machine == node::gather_facts().machine);
}
