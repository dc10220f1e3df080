#include "launcher/provider/slurm/head_chain.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "launcher/remote/local.hpp"

using namespace dtrain;
using slurm::HeadChain;
using slurm::HeadJob;

namespace {

HeadJob job(const std::string& id, MachineState state) {
  HeadJob one;
  one.job.id = id;
  one.standing.state = state;
  return one;
}

std::string current(const std::vector<HeadJob>& jobs) {
  const auto found = HeadChain::current(jobs);
  return found ? found->job.id : "";
}

}  // namespace

TEST_CASE("the head is the job that runs, else the next that waits, else the one that ends") {
  using enum MachineState;
  CHECK(current({}).empty());
  CHECK(current({job("1", gone)}).empty());
  CHECK(current({job("1", running), job("2", pending)}) == "1");
  CHECK(current({job("1", gone), job("2", stopping), job("3", pending)}) == "3");
  CHECK(current({job("1", pending), job("2", pending)}) == "1");
  CHECK(current({job("1", stopping)}) == "1");
}

TEST_CASE("what the head's jobs are asked for with") {
  const HeadChain chain(slurm::Client(std::make_shared<LocalTransport>()), "pool");
  const HeadChain::Wanted wanted =
      chain.wanted(ClusterId("pool-abcdef"), {"--time=60"}, "/shared/it's 100%/head-node");
  const auto has = [&](const std::string& option) {
    return std::find(wanted.options.begin(), wanted.options.end(), option) != wanted.options.end();
  };
  CHECK(wanted.options.front() == "--time=60");
  CHECK(has("--job-name=dtrain-pool"));
  CHECK(has("--comment=dtrain-head cluster=pool cluster-id=pool-abcdef"));
  CHECK(has("--nodes=1"));
  CHECK(has("--no-requeue"));
  CHECK(has("--output=/shared/it's 100%%/head-node/allocation.log"));
  CHECK(wanted.script.find("root='/shared/it'\\''s 100%/head-node'\n") != std::string::npos);
  CHECK(wanted.script.find('@') == std::string::npos);
  HeadChain::Wanted other = wanted;
  CHECK(HeadChain::launch_of(other) == HeadChain::launch_of(wanted));
  other.options.front() = "--time=61";
  CHECK(HeadChain::launch_of(other) != HeadChain::launch_of(wanted));
  // Nothing else of ours is one of its jobs.
  CHECK_FALSE(slurm::allocation_of("dtrain-head cluster=pool cluster-id=pool-abcdef").has_value());
}
