#include "agent/node/facts.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "launcher/core/process_table.hpp"
#include "tests/support/variable_is.hpp"

using namespace dtrain;

TEST_CASE("in a step of Slurm a node has what that has") {
  const testing::VariableIs step("SLURM_STEP_ID", "0");
  const testing::VariableIs cpus("SLURM_CPUS_ON_NODE", "1");
  const testing::VariableIs memory("SLURM_MEM_PER_NODE", "100");
  {
    const testing::VariableIs gpus("CUDA_VISIBLE_DEVICES", "2,3");
    const node::Facts facts = node::gather_facts();
    CHECK(facts.cpus == 1);
    CHECK(facts.memory == std::uint64_t{100} << 20);
    CHECK(facts.gpus == 2);
    CHECK_FALSE(facts.slurm.has_value());
  }
  const testing::VariableIs job("SLURM_JOB_ID", "4711");
  const testing::VariableIs name("SLURMD_NODENAME", "n1");
  CHECK(node::gather_facts().slurm == wire::SlurmPlace{"4711", "n1"});
  const testing::VariableIs gpus("CUDA_VISIBLE_DEVICES", "NoDevFiles");
  CHECK(node::gather_facts().gpus == 0);
}

TEST_CASE("a node's facts are this machine's") {
  const node::Facts facts = node::gather_facts();
  CHECK(facts.cpus >= 1);
  CHECK(facts.cpus <= ::sysconf(_SC_NPROCESSORS_CONF));
  CHECK(facts.memory > (std::uint64_t{64} << 20));
  CHECK(facts.memory <= static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  CHECK(facts.boot_id == boot_id() + " " + std::to_string(start_time(1).value()));
  CHECK(facts.machine.find(boot_id()) == 0);
  CHECK(facts.machine == node::gather_facts().machine);
}
