// Jobs whose ranks are tasks of srun.

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using Outcome = wire::NodeFinished::Outcome;

namespace {

class InSlurm : public head::testing::World {
 public:
  explicit InSlurm(int nodes) : World(nodes) {}

  void join_in(const std::string& node, const std::string& slurm_job, const std::string& name) {
    NodeInfo info;
    info.node = NodeId(node);
    info.address = "10.0.0." + node.substr(node.size() - 1);
    info.boot_id = "boot";
    info.machine = node;
    info.features = wire::kNodeFeatures;
    info.cpus = 4;
    info.memory = std::uint64_t{8} << 30;
    info.slurm = wire::SlurmPlace{slurm_job, name};
    engine->joined(info);
  }

  static JobSpec mpi(int nnodes) {
    JobSpec job = spec("mpi");
    job.nnodes = {nnodes, nnodes};
    job.nproc_per_node.number = 2;
    job.launcher = Launcher::srun;
    return job;
  }
};

}  // namespace

TEST_CASE("launcher srun: its nodes are told of one step") {
  InSlurm world(2);
  world.join_in("node-0", "7", "n4");
  world.join_in("node-1", "7", "n2");
  const JobId id = world.submit(InSlurm::mpi(2));
  const wire::AttemptSpec first = world.started("node-0", id, 1);
  REQUIRE(first.srun.has_value());
  CHECK(first.srun->job == "7");
  REQUIRE(first.srun->nodes.size() == 2);
  CHECK(first.srun->nodes[0].name == "n4");
  CHECK(first.srun->nodes[1].name == "n2");
  CHECK(first.srun->nodes[1].nproc == 2);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  const wire::AttemptSpec second = world.started("node-1", id, 1);
  REQUIRE(second.srun.has_value());
  CHECK(second.srun->secret == first.srun->secret);
  CHECK_FALSE(second.srun->secret.empty());
  // Any other job is nobody's step.
  const JobId plain = world.submit(head::testing::World::spec("plain"));
  CHECK_FALSE(world.started("node-0", plain, 1).srun.has_value());
}

TEST_CASE("launcher srun: where no node is in an allocation it is refused") {
  InSlurm world(1);
  world.join("node-0");
  CHECK_THROWS_WITH_AS(
      world.submit(InSlurm::mpi(1)),
      "launcher: srun starts ranks by Slurm's srun, and no node of this cluster, whose provider is "
      "local, is in a Slurm allocation",
      Error);
  // With one that is, it waits for more of its allocation.
  world.join_in("node-1", "7", "n1");
  world.join_in("node-2", "8", "n2");
  const JobId id = world.submit(InSlurm::mpi(2));
  world.settle();
  CHECK(world.state(id) == "queued");
  CHECK(world.engine->job(id).at("reason").get<std::string>().find("of one Slurm allocation") !=
        std::string::npos);
  world.join_in("node-3", "8", "n3");
  CHECK(world.started("node-2", id, 1).srun->job == "8");
}

TEST_CASE("launcher srun: a node that comes back in another allocation") {
  InSlurm world(2);
  world.join_in("node-0", "7", "n1");
  world.join_in("node-1", "7", "n2");
  const JobId id = world.submit(InSlurm::mpi(2));
  world.started("node-0", id, 1);
  world.join_in("node-1", "8", "n2");
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.finish("node-0", id, 1, Outcome::stopped);
  world.settle();
  CHECK(world.state(id) == "failed");
  CHECK(world.engine->job(id).at("reason").get<std::string>().find(
            "node-0 is in Slurm job 7, node-1 is in Slurm job 8") != std::string::npos);
}
