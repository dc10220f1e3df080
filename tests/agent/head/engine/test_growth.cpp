#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "agent/head/engine/growth.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;
using Gang = Growth::Gang;
using Gangs = std::vector<Gang>;

namespace {

NodeCapacity node_of(const std::string& name, double cpus = 4, bool is_full = false) {
  NodeCapacity capacity;
  capacity.node = NodeId(name);
  capacity.cpus = cpus;
  capacity.cpus_used = is_full ? cpus : 0;
  capacity.memory = std::uint64_t{16} << 30;
  return capacity;
}

MachineType type(const std::string& name, int most, double cpus = 4, int gpus = 0) {
  MachineType type;
  type.name = name;
  type.most = most;
  type.each = node_of("", cpus);
  type.each.gpus = gpus;
  type.known = true;
  return type;
}

MachineType unknown(const std::string& name, int most) {
  MachineType type;
  type.name = name;
  type.most = most;
  type.each = any_machine();
  return type;
}

MachinesToCome of(std::vector<MachineType> types, std::vector<ComingMachine> coming = {}) {
  MachinesToCome machines;
  machines.in_allocations = true;
  for (const MachineType& each : types) machines.most += each.most;
  for (const ComingMachine& each : coming) {
    for (MachineType& one : types) one.there += one.name == each.type ? 1 : 0;
  }
  machines.types = std::move(types);
  machines.coming = std::move(coming);
  return machines;
}

// As a cloud has them.
MachinesToCome one_by_one(MachinesToCome machines) {
  machines.in_allocations = false;
  return machines;
}

WaitingJob gang_of(const std::string& name, int nnodes, double cpus = 4, int gpus = 0) {
  WaitingJob job;
  job.job = JobId(name);
  job.order = name.back();
  job.demand.nnodes = {nnodes, nnodes};
  job.demand.cpus = cpus;
  job.demand.gpus = gpus;
  return job;
}

WaitingJob quarter(int number) {
  WaitingJob job = gang_of("job-" + std::to_string(number), 1, 0);
  job.order = number;
  job.demand.gpus.parts = GpuAmount::kOne / 4;
  return job;
}

WaitingJob held(WaitingJob job) {
  job.held = "waits for another to succeed";
  return job;
}

std::string reason(const Growth& growth, const std::string& of_job) {
  const auto found = growth.reasons.find(JobId(of_job));
  return found == growth.reasons.end() ? "" : found->second;
}

}  // namespace

TEST_CASE("growth: a gang is asked for whole, in turn, and only once") {
  const auto machines = of({type("gpu", 8)});
  const Growth first = decide_growth({}, {}, {gang_of("a", 4), gang_of("b", 2)}, machines);
  CHECK(first.gangs == Gangs{{JobId("a"), "gpu", 4}, {JobId("b"), "gpu", 2}});
  CHECK(reason(first, "a") == "asks for 4 machines of type gpu");
  CHECK(first.needed.empty());
  // What is coming is theirs.
  const auto asked = of({type("gpu", 8)}, {{NodeId("gpu-1"), "gpu", false, "waits: Priority"},
                                           {NodeId("gpu-2"), "gpu", false, "waits: Resources"}});
  const Growth then = decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 3)}, asked);
  CHECK(then.gangs == Gangs{{JobId("b"), "gpu", 3}});
  CHECK(reason(then, "a") == "waits for gpu-1, gpu-2: waits: Priority");
  CHECK(then.needed == std::set<NodeId>{NodeId("gpu-1"), NodeId("gpu-2")});
  // What is free is taken first, and a gang is not mixed with it.
  const Growth mixed = decide_growth({node_of("n-1"), node_of("n-2", 4, true)}, {},
                                     {gang_of("a", 2), gang_of("b", 1)}, machines);
  CHECK(mixed.gangs == Gangs{{JobId("a"), "gpu", 2}});
  CHECK(mixed.needed == std::set<NodeId>{NodeId("n-1")});
  CHECK(mixed.kept.empty());
}

TEST_CASE("growth: where machines come one by one it says how many, where and since when") {
  const auto coming = [](const std::string& name, bool runs, const std::string& zone) {
    return ComingMachine{NodeId(name), "gpu",        runs, "in a",     "",
                         false,        "p3.2xlarge", zone, "08:21:20Z"};
  };
  const auto both = one_by_one(of({type("gpu", 8)}, {coming("gpu-1", false, "us-west-2b"),
                                                     coming("gpu-2", true, "us-west-2b")}));
  CHECK(reason(decide_growth({node_of("n-1"), node_of("n-2")}, {}, {gang_of("a", 4)}, both), "a") ==
        "2 of 4 p3.2xlarge are coming (us-west-2b, since 08:21:20Z)");
  CHECK(reason(decide_growth({}, {}, {gang_of("a", 4)}, both), "a") ==
        "asks for 2 machines of type gpu; 2 of 4 p3.2xlarge are coming (us-west-2b, since "
        "08:21:20Z)");
  const auto one = one_by_one(of({type("gpu", 8)}, {coming("gpu-1", true, "us-west-2b")}));
  CHECK(reason(decide_growth({}, {}, {gang_of("a", 1)}, one), "a") ==
        "1 of 1 p3.2xlarge is coming (us-west-2b, since 08:21:20Z, it joins)");
  const auto two = one_by_one(of({type("gpu", 8)}, {coming("gpu-1", false, "us-west-2a"),
                                                    coming("gpu-2", false, "us-west-2b")}));
  CHECK(reason(decide_growth({}, {}, {gang_of("a", 2)}, two), "a") ==
        "2 of 2 p3.2xlarge are coming (us-west-2a, us-west-2b, since 08:21:20Z)");
}

TEST_CASE("growth: small jobs share a machine of which it is known what it has") {
  const std::vector<WaitingJob> jobs{gang_of("a", 1, 1), gang_of("b", 1, 1), gang_of("c", 1, 3)};
  CHECK(decide_growth({}, {}, jobs, of({type("cpu", 9)})).gangs ==
        Gangs{{JobId("a"), "cpu", 1}, {JobId("c"), "cpu", 1}});
  CHECK(decide_growth({}, {}, jobs, of({unknown("cpu", 9)})).gangs.size() == 3);
}

TEST_CASE("growth: a job gets machines of a type that has what it names") {
  std::vector<MachineType> types{type("plain", 4), unknown("tpu", 4)};
  types[1].each.custom = {{"tpu", 2}};
  types[1].each.labels = {{"tier", "gold"}};
  WaitingJob custom = gang_of("a", 2, 1);
  custom.demand.custom = {{"tpu", 1}};
  CHECK(decide_growth({}, {}, {custom}, of(types)).gangs == Gangs{{JobId("a"), "tpu", 2}});
  WaitingJob labelled = gang_of("a", 1, 1);
  labelled.demand.labels = {{"tier", {false, {"gold"}}}};
  CHECK(decide_growth({}, {}, {labelled}, of(types)).gangs == Gangs{{JobId("a"), "tpu", 1}});
  CHECK(never_fits({}, labelled.demand, of(types)).empty());
  custom.demand.custom = {{"tpu", 3}};
  CHECK(never_fits({}, custom.demand, of(types)) ==
        "needs 1 CPU, 3 tpu on a node; each plain has no tpu, each tpu has 2 of 2 tpu free");
}

TEST_CASE("growth: never more than there may be, of a type and of all") {
  auto machines = of({type("gpu", 3)});
  CHECK(decide_growth({}, {}, {gang_of("a", 4)}, machines).gangs.empty());
  CHECK(
      decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 2), gang_of("c", 1)}, machines).gangs ==
      Gangs{{JobId("a"), "gpu", 2}});  // b is to come before c
  CHECK(
      decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 4), gang_of("c", 1)}, machines).gangs ==
      Gangs{{JobId("a"), "gpu", 2}, {JobId("c"), "gpu", 1}});  // b can never come
  machines.types.front().there = 2;
  CHECK(decide_growth({}, {}, {gang_of("a", 2)}, machines).gangs.empty());
  machines.types.front().there = 0;
  machines.most = 1;
  CHECK(decide_growth({}, {}, {gang_of("a", 2)}, machines).gangs.empty());
  CHECK(decide_growth({}, {}, {gang_of("a", 1)}, {}).gangs.empty());
}

TEST_CASE("growth: the type that fits, by priority, then by order") {
  const auto asks = [](const WaitingJob& one, const MachinesToCome& machines) {
    const Growth growth = decide_growth({}, {}, {one}, machines);
    return growth.gangs.empty() ? "" : growth.gangs.front().type;
  };
  auto machines = of({type("cpu", 4, 8), type("small", 4, 4, 1), type("large", 4, 16, 8)});
  CHECK(asks(gang_of("a", 1, 4), machines) == "cpu");
  CHECK(asks(gang_of("a", 1, 0, 1), machines) == "small");
  CHECK(asks(gang_of("a", 1, 0, 4), machines) == "large");
  CHECK(asks(gang_of("a", 1, 99), machines).empty());
  machines.types[2].priority = 1;
  CHECK(asks(gang_of("a", 1, 4), machines) == "large");
  machines.types[2].trouble = "no such partition";
  CHECK(reason(decide_growth({}, {}, {gang_of("a", 1, 0, 4)}, machines), "a") ==
        "would ask for 1 machine of type large: no such partition");
  // Another that fits is asked instead, and smaller requests are not what was refused.
  machines.types[2].refused = 2;
  CHECK(asks(gang_of("a", 1, 4), machines) == "large");
  CHECK(asks(gang_of("a", 2, 4), machines) == "cpu");
}

TEST_CASE("growth: where there may not be so many, what is free is used too") {
  auto machines = of({type("gpu", 4)});
  machines.types.front().there = 1;
  machines.types.front().least = 1;
  const std::vector<NodeCapacity> here{node_of("gpu-1")};
  CHECK(never_fits(here, gang_of("a", 4).demand, machines).empty());
  CHECK(decide_growth(here, {}, {gang_of("a", 4)}, machines).gangs ==
        Gangs{{JobId("a"), "gpu", 3}});
  // A job that has lost one of four gets one.
  machines.types.front().there = 3;
  const Growth lost = decide_growth({node_of("gpu-1"), node_of("gpu-2"), node_of("gpu-3")}, {},
                                    {gang_of("a", 4)}, machines);
  CHECK(lost.gangs == Gangs{{JobId("a"), "gpu", 1}});
  CHECK(lost.needed.size() == 3);
  CHECK(lost.kept.empty());
}

TEST_CASE("growth: machines that come one by one are mixed with what is free") {
  const auto machines = one_by_one(of({type("gpu", 8)}));
  const Growth growth =
      decide_growth({node_of("n-1"), node_of("n-2", 4, true)}, {}, {gang_of("a", 3)}, machines);
  CHECK(growth.gangs == Gangs{{JobId("a"), "gpu", 2}});
  CHECK(growth.needed == std::set<NodeId>{NodeId("n-1")});
  CHECK(growth.half.empty());
}

TEST_CASE("growth: half a gang does not wait for ever for machines that cannot be had") {
  const std::set<NodeId> both{NodeId("gpu-1"), NodeId("gpu-2")};
  auto machines = one_by_one(of({type("gpu", 5)}, {{NodeId("gpu-3"), "gpu", true, "it joins"}}));
  MachineType& gpu = machines.types.front();
  gpu.there = 3;
  const auto decide = [&] {
    return decide_growth({node_of("gpu-1"), node_of("gpu-2")}, {}, {gang_of("a", 5)}, machines);
  };
  CHECK(decide().half.empty());
  CHECK(decide().needed.size() == 3);
  // It is asked for them again: while that is not answered nothing goes.
  gpu.failed = true;
  CHECK(decide().gangs == Gangs{{JobId("a"), "gpu", 2}});
  CHECK(decide().half == both);
  CHECK(decide().needed.size() == 3);
  // What is still coming is awaited.
  gpu.trouble = "no capacity";
  gpu.refused = 1;
  CHECK(reason(decide(), "a") ==
        "would ask for 2 machines of type gpu: no capacity; 1 of 5 gpu is coming (it joins)");
  CHECK(decide().half == both);
  CHECK(decide().needed == std::set<NodeId>{NodeId("gpu-3")});
}

TEST_CASE("growth: no more come at once than may") {
  auto machines = one_by_one(of({type("gpu", 20)}));
  machines.types.front().at_once = 5;
  const std::vector<WaitingJob> jobs{gang_of("a", 8), gang_of("b", 2), gang_of("c", 1)};
  const Growth growth = decide_growth({node_of("n-1", 4, true)}, {}, jobs, machines);
  CHECK(growth.gangs == Gangs{{JobId("a"), "gpu", 8}});  // the first as many as it takes
  for (const char* job : {"b", "c"}) {
    CHECK(reason(growth, job) ==
          "waits until others have come: 8 machines of type gpu are coming, and 5 may be at once");
  }
  CHECK_FALSE(growth.short_of_room);
  const Growth few =
      decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 3), gang_of("c", 1)}, machines);
  CHECK(few.gangs.size() == 2);
  // Nobody passes who waits.
  CHECK(decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 4), gang_of("c", 1)}, machines)
            .gangs.size() == 1);
}

TEST_CASE("growth: a large job is not passed by small ones for ever") {
  auto machines = of({type("gpu", 2)});
  machines.types.front().there = 2;
  const std::vector<WaitingJob> jobs{gang_of("a", 2), gang_of("b", 1), gang_of("c", 1)};
  const Growth growth =
      decide_growth({node_of("gpu-1"), node_of("gpu-2", 4, true)}, {}, jobs, machines);
  CHECK(growth.gangs.empty());
  CHECK(growth.short_of_room);
  CHECK(growth.kept.size() == 1);
  CHECK(growth.kept.contains(NodeId("gpu-1")));
  CHECK(reason(growth, "a") == "waits until others have ended: there may be 2 machines");
  // One that others of its kind cannot make room for waits for nothing.
  machines.types.push_back(type("cpu", 2));
  machines.types.back().least = 2;
  machines.types.back().there = 2;
  CHECK_FALSE(never_fits({}, gang_of("a", 2, 4, 1).demand, machines).empty());
}

TEST_CASE("growth: what is free goes before what will be") {
  std::vector<NodeCapacity> nodes{node_of("n-1"), node_of("n-2"), node_of("n-3")};
  nodes[1].usable = false;
  const Growth growth =
      decide_growth(nodes, {NodeId("n-2")}, {gang_of("a", 2)}, of({type("gpu", 2)}));
  CHECK(growth.needed == std::set<NodeId>{NodeId("n-1"), NodeId("n-3")});
  CHECK(growth.kept.empty());
}

TEST_CASE("growth: who is held gets nothing, and takes nothing from others") {
  const auto machines = of({type("gpu", 4)}, {{NodeId("gpu-1"), "gpu", true, "it joins"}});
  const std::vector<WaitingJob> jobs{held(gang_of("a", 1)), held(gang_of("b", 1)), gang_of("c", 1)};
  const Growth growth = decide_growth({}, {}, jobs, machines);
  CHECK(growth.gangs.empty());
  CHECK(reason(growth, "c") == "waits for gpu-1: it joins");
  CHECK(growth.reasons.size() == 1);
  // However many of them there are.
  std::vector<WaitingJob> many(kGrowthDepth + 1, held(gang_of("a", 1)));
  many.push_back(gang_of("z", 2));
  CHECK(decide_growth({}, {}, many, machines).gangs.size() == 1);
}

TEST_CASE("growth: nodes of a gang that is about to be whole are nobody else's") {
  const std::vector<NodeCapacity> here{node_of("gpu-1"), node_of("gpu-2")};
  const std::vector<WaitingJob> jobs{gang_of("a", 3), gang_of("b", 1)};
  auto machines = of({type("gpu", 3)}, {{NodeId("gpu-3"), "gpu", true, "it joins"}});
  const Growth growth = decide_growth(here, {}, jobs, machines);
  CHECK(growth.kept.size() == 2);
  CHECK(growth.kept.at(NodeId("gpu-2")).front().cpus == 4);
  // Not while the other may take days.
  machines.coming.front().runs = false;
  CHECK(decide_growth(here, {}, jobs, machines).kept.empty());
  // One that prepares itself comes too.
  std::vector<NodeCapacity> prepares = here;
  prepares[1].usable = false;
  CHECK(decide_growth(prepares, {NodeId("gpu-2")}, {gang_of("a", 2), gang_of("b", 1)},
                      of({type("gpu", 2)}))
            .kept.size() == 2);
}

TEST_CASE("growth: what could never run") {
  const auto why = [](const WaitingJob& one, const MachinesToCome& machines,
                      const std::vector<NodeCapacity>& nodes = {}) {
    return never_fits(nodes, one.demand, machines);
  };
  auto machines = of({type("gpu", 4)});
  CHECK(why(gang_of("a", 4), machines).empty());
  CHECK(
      why(gang_of("a", 5), machines) ==
      "needs 4 CPUs on each of 5 nodes; the cluster has 0 nodes; there may be 4 machines at most");
  CHECK(why(gang_of("a", 1, 5), machines) ==
        "needs 5 CPUs on a node; each gpu has 4 of 4 CPUs free");
  CHECK(why(gang_of("a", 1, 5), of({unknown("gpu", 1)})).empty());
  // However much is used, and however many are there.
  machines.types.front().there = 4;
  CHECK(why(gang_of("a", 4), machines, {node_of("gpu-1", 4, true)}).empty());
}

TEST_CASE("growth: nothing is asked for beyond what all may cost") {
  const auto priced = [](MachineType one, std::optional<double> price) {
    one.price = price;
    return one;
  };
  const auto below = [](MachinesToCome machines, std::optional<double> most, double now,
                        double least) {
    machines.cost = {most, now, least};
    return machines;
  };
  const MachineType gpu = priced(type("gpu", 4, 4, 1), 12.24);
  const MachineType small = priced(type("small", 4, 4, 1), 3.06);
  const auto alone = below(of({gpu}), 20, 0.1, 0.1);
  struct Row {
    const char* what;
    MachinesToCome machines;
    std::vector<WaitingJob> jobs;
    Gangs gangs;
    std::string reason;  // of job a
    bool short_of_room = false;
  };
  const std::vector<Row> rows{
      {"no bound",
       below(of({gpu}), std::nullopt, 0.1, 0.1),
       {gang_of("a", 2)},
       {{JobId("a"), "gpu", 2}},
       "asks for 2 machines of type gpu"},
      {"the bound itself",
       below(of({gpu}), 24.58, 0.1, 0.1),
       {gang_of("a", 2)},
       {{JobId("a"), "gpu", 2}},
       "asks for 2 machines of type gpu"},
      {"below it",
       alone,
       {gang_of("a", 1)},
       {{JobId("a"), "gpu", 1}},
       "asks for 1 machine of type gpu"},
      {"above it",
       alone,
       {gang_of("a", 2)},
       {},
       "would ask for 2 machines of type gpu: that is $24.48 an hour beside $0.10 for others, "
       "max_cost_per_hour is $20.00"},
      {"nothing else costs",
       below(of({gpu}), 20, 0, 0),
       {gang_of("a", 2)},
       {},
       "would ask for 2 machines of type gpu: that is $24.48 an hour, max_cost_per_hour is $20.00"},
      {"who is in turn has it first",
       alone,
       {gang_of("b", 1), gang_of("a", 1)},
       {{JobId("a"), "gpu", 1}},
       "asks for 1 machine of type gpu",
       true},
      {"others that go make room",
       below(of({gpu}), 20, 12.34, 0.1),
       {gang_of("a", 1)},
       {},
       "would ask for 1 machine of type gpu: that is $12.24 an hour beside $12.34 for others, "
       "max_cost_per_hour is $20.00",
       true},
      {"and nobody behind it takes that",
       below(of({gpu, small}), 20, 12.34, 0.1),
       {gang_of("a", 4), gang_of("b", 1)},
       {},
       "would ask for 4 machines of type small: that is $12.24 an hour beside $12.34 for others, "
       "max_cost_per_hour is $20.00",
       true},
      {"a cheaper type that fits",
       below(of({gpu, small}), 20, 0.1, 0.1),
       {gang_of("a", 2)},
       {{JobId("a"), "small", 2}},
       "asks for 2 machines of type small"},
      {"a price that nobody knows",
       below(of({priced(gpu, std::nullopt)}), 20, 0.1, 0.1),
       {gang_of("a", 1)},
       {},
       "would ask for 1 machine of type gpu: its price is not known, and max_cost_per_hour is "
       "$20.00"},
      {"which hinders nobody where there is no bound",
       below(of({priced(gpu, std::nullopt)}), std::nullopt, 0.1, 0.1),
       {gang_of("a", 1)},
       {{JobId("a"), "gpu", 1}},
       "asks for 1 machine of type gpu"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const Growth growth = decide_growth({}, {}, row.jobs, row.machines);
    CHECK(growth.gangs == row.gangs);
    CHECK(reason(growth, "a") == row.reason);
    CHECK(growth.short_of_room == row.short_of_room);
  }
  // What is free takes the place of what would cost too much.
  const auto beside = below(of({gpu}), 20, 0.1, 0.1);
  CHECK(decide_growth({node_of("n-1")}, {}, {gang_of("a", 2)}, beside).gangs ==
        Gangs{{JobId("a"), "gpu", 1}});
  // Those that want the same are told the same.
  const Growth same = decide_growth({}, {}, {gang_of("a", 2), gang_of("b", 2)}, alone);
  CHECK(reason(same, "b") == reason(same, "a"));
  // The second that waits for room.
  const Growth two =
      decide_growth({}, {}, {gang_of("a", 1), gang_of("b", 1)}, below(of({gpu}), 20, 12.34, 0.1));
  CHECK(reason(two, "b") == "waits until others have ended: max_cost_per_hour is $20.00");

  CHECK(never_fits({}, gang_of("a", 1).demand, alone).empty());
  CHECK(never_fits({}, gang_of("a", 2).demand, alone) ==
        "would ask for 2 machines of type gpu: that is $24.48 an hour beside $0.10 for others, "
        "max_cost_per_hour is $20.00");
  // Whatever else there is now, which goes.
  CHECK(never_fits({}, gang_of("a", 1).demand, below(of({gpu}), 20, 19, 0.1)).empty());
  // Those that stand ready are paid for.
  MachineType ready = gpu;
  ready.least = 1;
  ready.there = 1;
  CHECK(never_fits({}, gang_of("a", 2).demand, below(of({ready}), 25, 12.34, 12.34)).empty());
  CHECK_FALSE(never_fits({}, gang_of("a", 2).demand, below(of({ready}), 24, 12.34, 12.34)).empty());
  CHECK(never_fits({}, gang_of("a", 5).demand, alone) ==
        "needs 4 CPUs on each of 5 nodes; the cluster has 0 nodes; there may be 4 machines at "
        "most");
  CHECK(never_fits({}, gang_of("a", 1).demand, below(of({priced(gpu, std::nullopt)}), 20, 0, 0)) ==
        "would ask for 1 machine of type gpu: its price is not known, and max_cost_per_hour is "
        "$20.00");
}

TEST_CASE("growth: 10,000 jobs that wait for 4000 machines are looked at in time") {
  std::vector<WaitingJob> jobs;
  for (int i = 0; i < 10000; ++i) {
    jobs.push_back(gang_of("job-" + std::to_string(i), 1 + i % 4));
    jobs.back().order = i;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Growth growth = decide_growth({}, {}, jobs, of({type("gpu", 4000)}));
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(growth.gangs.size() == kGrowthDepth);
  MESSAGE("10,000 waiting: " << std::chrono::duration_cast<std::chrono::milliseconds>(took).count()
                             << " ms");
}

// Machines come after a while, each gang's together; jobs take a while; whoever is idle goes.
TEST_CASE("growth: random workloads end, within the bounds, and nothing is asked for in vain") {
  struct Running {
    std::vector<PlacedShare> shares;
    int until;
  };
  struct Machine {
    NodeCapacity capacity;
    int comes;
    int idle = 0;
  };
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto dice = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    MachineType kind = type("gpu", dice(2, 8));
    kind.known = dice(0, 1) == 1;
    if (!kind.known) kind.each = any_machine();
    const int most = kind.most;
    std::vector<WaitingJob> queue;
    const int jobs = dice(1, 12);
    for (int i = 0; i < jobs; ++i) {
      queue.push_back(gang_of("job-" + std::to_string(i), dice(1, most), dice(1, 4)));
      queue.back().order = i;
    }
    std::map<NodeId, Machine> machines;
    std::vector<Running> running;
    int names = 0;
    int asked = 0;
    int wanted = 0;
    for (const WaitingJob& each : queue) wanted += each.demand.nnodes.min;
    int now = 0;
    for (; !(queue.empty() && running.empty() && machines.empty()); ++now) {
      REQUIRE(now < 2000);
      std::erase_if(running, [&](const Running& each) {
        if (each.until > now) return false;
        for (const PlacedShare& share : each.shares) {
          NodeCapacity& at = machines.at(share.node).capacity;
          --at.shares;
          at.cpus_used -= share.cpus;
          at.memory_used -= share.memory;
        }
        return true;
      });
      std::vector<NodeCapacity> here;
      MachinesToCome to_come = of({kind});
      for (const auto& [id, machine] : machines) {
        if (machine.comes <= now) {
          here.push_back(machine.capacity);
        } else {
          to_come.coming.push_back({id, "gpu", machine.comes <= now + 1, ""});
        }
      }
      to_come.types.front().there = static_cast<int>(machines.size());
      const Growth growth = decide_growth(here, {}, queue, to_come);
      for (NodeCapacity& each : here) {
        const auto kept = growth.kept.find(each.node);
        if (kept == growth.kept.end()) continue;
        for (const PlacedShare& share : kept->second) use(each, share);
      }
      for (const auto& start : decide_queue(here, queue, 0).starts) {
        running.push_back({start.shares, now + dice(1, 20)});
        for (const PlacedShare& share : start.shares) use(machines.at(share.node).capacity, share);
        std::erase_if(queue, [&](const WaitingJob& each) { return each.job == start.job; });
      }
      for (const Gang& gang : growth.gangs) {
        const int comes = now + dice(1, 15);
        for (int i = 0; i < gang.count; ++i) {
          const std::string name = "gpu-" + std::to_string(++names);
          machines.emplace(NodeId(name), Machine{node_of(name), comes + dice(0, 1)});
          ++asked;
        }
      }
      REQUIRE(machines.size() <= static_cast<std::size_t>(most));
      for (auto each = machines.begin(); each != machines.end();) {
        auto& [id, machine] = *each;
        const bool used =
            machine.capacity.shares > 0 || growth.needed.contains(id) || machine.comes >= now;
        machine.idle = used ? 0 : machine.idle + 1;
        const bool goes = machine.idle > (growth.short_of_room ? 0 : 3);
        each = goes ? machines.erase(each) : std::next(each);
      }
    }
    CHECK(asked <= wanted);
  }
}

TEST_CASE("a gang of one allocation") {
  const auto in = [](const std::string& name, const std::string& allocation) {
    NodeCapacity node = node_of(name);
    node.allocation = allocation;
    return node;
  };
  WaitingJob job = gang_of("job-a", 2);
  job.demand.one_allocation = true;
  // One of each is of no use to it.
  const MachinesToCome more = of({type("cpu", 4)});
  CHECK(decide_growth({in("n-1", "7"), in("n-2", "8")}, {}, {job}, more).gangs ==
        Gangs{{JobId("job-a"), "cpu", 2}});
  CHECK(decide_growth({in("n-1", "7"), in("n-2", "7")}, {}, {job}, more).gangs.empty());
  // What was asked for together comes together, one after the other.
  const MachinesToCome both = of({type("cpu", 4)}, {{NodeId("n-3"), "cpu", false, "", "9"},
                                                    {NodeId("n-4"), "cpu", false, "", "9"}});
  CHECK(decide_growth({in("n-1", "7")}, {}, {job}, both).gangs.empty());
  const MachinesToCome second = of({type("cpu", 4)}, {{NodeId("n-4"), "cpu", true, "", "9"}});
  CHECK(decide_growth({in("n-1", "7"), in("n-3", "9")}, {}, {job}, second).gangs.empty());
  // Where there is no room those of several allocations go, and nobody else gets them.
  MachineType all_there = type("cpu", 2);
  all_there.there = 2;
  const Growth full = decide_growth({in("n-1", "7"), in("n-2", "8")}, {}, {job}, of({all_there}));
  CHECK(full.gangs.empty());
  CHECK(full.short_of_room);
  CHECK(full.needed.empty());
  CHECK(full.kept.size() == 2);
  CHECK(never_fits({}, job.demand, more).empty());
}

TEST_CASE("growth: a machine of one GPU is for four quarters of one") {
  std::vector<WaitingJob> queue;
  for (int i = 0; i < 9; ++i) queue.push_back(quarter(i));
  const Growth growth = decide_growth({}, {}, queue, one_by_one(of({type("gpu", 10, 4, 1)})));
  CHECK(growth.gangs.size() == 3);
  std::vector<NodeCapacity> nodes = {node_of("node-1")};
  nodes[0].gpus = 1;
  nodes[0].gpus_used = {{0, 5000}};
  CHECK(decide_growth(nodes, {}, {quarter(0), quarter(1)}, one_by_one(of({type("gpu", 10, 4, 1)})))
            .gangs.empty());
  CHECK(decide_growth(nodes, {}, {quarter(0), quarter(1), quarter(2)},
                      one_by_one(of({type("gpu", 10, 4, 1)})))
            .gangs.size() == 1);
  Demand four = quarter(0).demand;
  four.procs.number = 4;
  CHECK(never_fits({}, four, of({type("gpu", 10, 4, 1)})) ==
        "needs 0.25 of each of 4 GPUs (its ranks share none) on a node; each gpu has 1 of 1 GPU "
        "with 0.25 free");
}
