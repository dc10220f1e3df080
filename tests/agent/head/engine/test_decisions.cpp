#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/head/engine/history.hpp"
#include "agent/head/engine/queue.hpp"
#include "agent/head/engine/retention.hpp"
#include "launcher/spec/values.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;

namespace {

NodeCapacity node(const std::string& name, double cpus, double used = 0, int gpus = 0) {
  NodeCapacity capacity;
  capacity.node = NodeId(name);
  capacity.cpus = cpus;
  capacity.cpus_used = used;
  capacity.shares = used > 0 ? 1 : 0;
  capacity.gpus = gpus;
  capacity.memory = std::uint64_t{16} << 30;
  return capacity;
}

JobSpec job(int nnodes, int nproc) {
  JobSpec spec;
  spec.nnodes = {nnodes, nnodes};
  spec.nproc_per_node.number = nproc;
  return spec;
}

std::vector<std::string> names(const Placement& placement) {
  std::vector<std::string> all;
  if (!placement.shares) return all;
  for (const PlacedShare& share : *placement.shares) all.push_back(share.node.str());
  return all;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("placement: all of a job or nothing") {
  const std::vector<NodeCapacity> nodes = {node("node-10", 4), node("node-2", 4),
                                           node("node-1", 4, 3)};
  CHECK(names(place(nodes, demand_of(job(1, 1)))) == Names{"node-1"});
  CHECK(names(place(nodes, demand_of(job(2, 4)))) == Names{"node-2", "node-10"});
  const Placement none = place(nodes, demand_of(job(3, 4)));
  CHECK_FALSE(none.shares.has_value());
  CHECK(none.reason == "needs 4 CPUs on each of 3 nodes; node-1 has 1 of 4 CPUs free");
  const Placement two = place(nodes, demand_of(job(2, 2)));
  CHECK((*two.shares)[1].first_rank == 2);
  JobSpec elastic = job(1, 4);
  elastic.nnodes = {1, 3};
  CHECK(names(place(nodes, demand_of(elastic))).size() == 2);
  CHECK(place({node("a", 4)}, demand_of(job(2, 1))).reason ==
        "needs 1 CPU on each of 2 nodes; the cluster has 1 node");
}

TEST_CASE("placement: resources of one's own, and labels") {
  std::vector<NodeCapacity> nodes = {node("a", 8), node("b", 8), node("c", 0)};
  nodes[1].custom = {{"tpu", 3}};
  nodes[1].labels = {{"tier", "gold"}};
  JobSpec spec = job(1, 2);
  spec.custom_resources = {{"tpu", 1}, {"none", 0}};
  const Placement placed = place(nodes, demand_of(spec));
  CHECK(names(placed) == Names{"b"});
  REQUIRE(placed.shares.has_value());
  use(nodes[1], placed.shares->front());
  CHECK(
      place(nodes, demand_of(spec)).reason ==
      "needs 2 CPUs, 2 tpu on a node; a has no tpu, b has 1 of 3 tpu free, c has 0 of 0 CPUs free");
  CHECK(names(place(emptied(nodes), demand_of(spec))) == Names{"b"});
  JobSpec labelled = job(1, 1);
  labelled.label_selector = {{"tier", "gold"}};
  CHECK(names(place(nodes, demand_of(labelled))) == Names{"b"});
  labelled.label_selector = {{"tier", "!gold"}};
  CHECK(names(place(nodes, demand_of(labelled))) == Names{"a"});
  labelled.label_selector = {{"tier", "tin"}};
  CHECK(
      place(nodes, demand_of(labelled)).reason ==
      "needs 1 CPU, label tier: tin on a node; a has no label tier, b has label tier: gold, c has "
      "no label tier");
  // A node that its type gives no CPU takes no ranks that count as one.
  CHECK_FALSE(place({node("c", 0)}, demand_of(job(1, 4))).shares.has_value());
}

TEST_CASE("placement: GPUs, memory, fractions, whole nodes") {
  std::vector<NodeCapacity> nodes = {node("node-0", 8, 0, 4), node("node-1", 8)};
  nodes[0].gpus_used = {{1, GpuAmount::kOne}};
  JobSpec spec = job(1, 2);
  spec.resources.gpu = 1;
  spec.resources_given = true;
  const Placement placed = place(nodes, demand_of(spec));
  REQUIRE(placed.shares.has_value());
  CHECK((*placed.shares)[0].gpus == std::vector<int>{0, 2});
  CHECK((*placed.shares)[0].cpus == 0);
  // One that needs no GPU leaves the GPU node alone while it can.
  CHECK(names(place(nodes, demand_of(job(1, 1)))) == Names{"node-1"});
  JobSpec all = job(1, 1);
  all.nproc_per_node.kind = ProcsKind::gpu;
  CHECK(place(nodes, demand_of(all)).reason ==
        "needs all GPUs on a node; node-0 has 3 of 4 GPUs free, node-1 has no GPU");
  nodes[0].gpus_used.clear();
  CHECK((*place(nodes, demand_of(all)).shares)[0].nproc == 4);
  JobSpec cpus = job(1, 1);
  cpus.nproc_per_node.kind = ProcsKind::cpu;
  CHECK((*place(nodes, demand_of(cpus)).shares)[0].nproc == 8);
  JobSpec memory = job(1, 2);
  memory.resources.memory = std::uint64_t{10} << 30;
  memory.resources_given = true;
  CHECK(place(nodes, demand_of(memory)).reason.find("memory") != std::string::npos);
  JobSpec tenth = job(1, 3);
  tenth.resources.cpu = 0.1;
  tenth.resources_given = true;
  CHECK(place({node("a", 0.3)}, demand_of(tenth)).shares.has_value());
}

TEST_CASE("placement: parts of GPUs") {
  const auto part = [](double gpus, int nproc = 1, int nnodes = 1) {
    JobSpec spec = job(nnodes, nproc);
    spec.resources.gpu = gpus_from(gpus);
    spec.resources_given = true;
    return demand_of(spec);
  };
  using Gpus = std::vector<int>;
  std::vector<NodeCapacity> nodes = {node("node-0", 8, 0, 2)};
  const auto start = [&](const Demand& demand) {
    const Placement placed = place(nodes, demand);
    REQUIRE(placed.shares.has_value());
    use(nodes[0], placed.shares->front());
    return placed.shares->front();
  };
  // What others have begun comes first, the fullest before all.
  const PlacedShare quarter = start(part(0.25));
  CHECK(quarter.gpus == Gpus{0});
  CHECK(quarter.gpu_part == 2500);
  CHECK(quarter.cpus == 0);
  CHECK(start(part(0.8)).gpus == Gpus{1});
  CHECK(start(part(0.1)).gpus == Gpus{1});
  CHECK(start(part(0.2)).gpus == Gpus{0});
  CHECK(place(nodes, part(0.6)).reason ==
        "needs 0.6 of a GPU on a node; node-0 has 0 of 2 GPUs with 0.6 free");
  CHECK(place(nodes, part(1)).reason == "needs 1 GPU on a node; node-0 has 0 of 2 GPUs free");
  // Ranks of one job do not share one.
  const PlacedShare two = start(part(0.1, 2));
  CHECK(two.gpus == Gpus{0, 1});
  CHECK(nodes[0].gpus_used == std::map<int, int>{{0, 5500}, {1, GpuAmount::kOne}});
  CHECK(place(nodes, part(0.1, 2)).reason ==
        "needs 0.1 of each of 2 GPUs (its ranks share none) on a node; node-0 has 1 of 2 GPUs with "
        "0.1 free");
  CHECK(has_gpus_for(nodes[0], quarter));
  CHECK_FALSE(has_gpus_for(nodes[0], two));
  release(nodes[0], two);
  release(nodes[0], quarter);
  CHECK(nodes[0].gpus_used == std::map<int, int>{{0, 2000}, {1, 9000}});
  // A node whose GPUs are begun comes before one whose are whole.
  nodes = {node("a", 8, 0, 1), node("b", 8, 0, 1), node("c", 8, 0, 1)};
  nodes[1].gpus_used = {{0, 9000}};
  nodes[2].gpus_used = {{0, 5000}};
  CHECK(names(place(nodes, part(0.25))) == Names{"c"});
  CHECK(names(place(nodes, part(0.1))) == Names{"b"});
  CHECK(names(place(nodes, part(0.25, 1, 2))) == Names{"a", "c"});
  CHECK(names(place(nodes, part(1))) == Names{"a"});
  JobSpec all = job(1, 1);
  all.nproc_per_node.kind = ProcsKind::gpu;
  all.resources.gpu = gpus_from(0.5);
  CHECK(place({node("a", 8, 0, 3)}, demand_of(all)).shares->front().gpus == Gpus{0, 1, 2});
}

// Sums of doubles would not come out.
TEST_CASE("placement: ten thousand tenths and thirds of GPUs are exact") {
  std::vector<NodeCapacity> nodes = {node("node-0", 1, 0, 1)};
  Demand tenth = demand_of(job(1, 1));
  tenth.cpus = 0;
  tenth.gpus.parts = 1000;
  for (int i = 0; i < 10; ++i) {
    const Placement placed = place(nodes, tenth);
    REQUIRE(placed.shares.has_value());
    use(nodes[0], placed.shares->front());
  }
  CHECK_FALSE(place(nodes, tenth).shares.has_value());
  Demand least = tenth;
  least.gpus.parts = 1;
  nodes = {node("node-0", 1, 0, 1)};
  PlacedShare last;
  for (int i = 0; i < GpuAmount::kOne; ++i) {
    const Placement placed = place(nodes, least);
    REQUIRE(placed.shares.has_value());
    last = placed.shares->front();
    use(nodes[0], last);
  }
  CHECK_FALSE(place(nodes, least).shares.has_value());
  release(nodes[0], last);
  CHECK(place(nodes, least).shares.has_value());
}

TEST_CASE("queue: ten thousand jobs that want a quarter of a GPU each") {
  std::vector<NodeCapacity> nodes;
  for (int i = 0; i < 250; ++i) nodes.push_back(node("node-" + std::to_string(i), 64, 0, 8));
  JobSpec spec = job(1, 1);
  spec.resources.gpu = gpus_from(0.25);
  std::vector<WaitingJob> queue;
  for (int i = 0; i < 10000; ++i) {
    queue.push_back({JobId("job-" + std::to_string(i)), 0, i, demand_of(spec), ""});
  }
  const auto begin = std::chrono::steady_clock::now();
  const QueueDecision decision = decide_queue(nodes, queue, 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(decision.starts.size() == 8000);
  CHECK(decision.reasons.size() == 2000);
  CHECK(decision.reasons.at(JobId("job-8000")).starts_with("needs 0.25 of a GPU on a node; "));
  CHECK(took.count() < 30);
  MESSAGE(took.count());
  std::map<std::pair<std::string, int>, int> ranks;
  for (const QueueDecision::Start& start : decision.starts) {
    const PlacedShare& share = start.shares.front();
    ++ranks[{share.node.str(), share.gpus.front()}];
  }
  CHECK(ranks.size() == 2000);
  CHECK(std::all_of(ranks.begin(), ranks.end(), [](const auto& gpu) { return gpu.second == 4; }));
}

TEST_CASE("placement: all nodes of one Slurm allocation") {
  const auto in = [](const std::string& name, std::optional<std::string> allocation,
                     double used = 0) {
    NodeCapacity capacity = node(name, 4, used);
    capacity.allocation = std::move(allocation);
    return capacity;
  };
  JobSpec spec = job(2, 4);
  spec.launcher = Launcher::srun;
  const std::vector<NodeCapacity> nodes = {in("login", ""), in("n-1", "7"), in("n-2", "8"),
                                           in("n-3", "8"), in("n-4", "8")};
  CHECK(names(place(nodes, demand_of(spec))) == Names{"n-2", "n-3"});
  // As many as one allocation gives.
  spec.nnodes = {1, 4};
  CHECK(names(place(nodes, demand_of(spec))) == Names{"n-2", "n-3", "n-4"});
  spec.nnodes = {4, 4};
  CHECK(place(nodes, demand_of(spec)).reason ==
        "needs 4 CPUs on each of 4 nodes of one Slurm allocation; the largest here has 3 nodes");
  spec.nnodes = {2, 2};
  CHECK(place({in("n-1", "7"), in("n-2", "8"), in("n-3", "8", 1)}, demand_of(spec)).reason ==
        "needs 4 CPUs on each of 2 nodes of one Slurm allocation; n-3 has 3 of 4 CPUs free");
  spec.nnodes = {1, 1};
  CHECK(place({in("login", "")}, demand_of(spec)).reason ==
        "needs 4 CPUs on a node in a Slurm allocation; no node of this cluster says that it is "
        "in one");
  // What is not known may be one.
  CHECK(names(place({in("n-1", std::nullopt)}, demand_of(spec))) == Names{"n-1"});
}

TEST_CASE("placement: a job that asks for nothing and is too large runs alone") {
  const Demand large = demand_of(job(1, 8));
  CHECK(place({node("a", 2)}, large).shares.has_value());
  CHECK((*place({node("a", 2)}, large).shares)[0].cpus == 2);
  CHECK_FALSE(place({node("a", 2, 1)}, large).shares.has_value());
  JobSpec asked = job(1, 8);
  asked.resources.cpu = 1;
  asked.resources_given = true;
  CHECK_FALSE(place({node("a", 2)}, demand_of(asked)).shares.has_value());
}

TEST_CASE("the queue is strict, and what can never run blocks nobody") {
  const auto waiting = [](const std::string& id, int priority, std::int64_t order, int nproc,
                          int nnodes = 1) {
    JobSpec spec = job(nnodes, nproc);
    spec.resources_given = true;
    return WaitingJob{JobId(id), priority, order, demand_of(spec), ""};
  };
  const std::vector<NodeCapacity> nodes = {node("a", 4, 2)};
  SUBCASE("priority, then age") {
    const QueueDecision d = decide_queue(
        nodes, {waiting("old", 0, 1, 1), waiting("high", 3, 3, 1), waiting("young", 0, 2, 1)}, 0);
    REQUIRE(d.starts.size() == 2);
    CHECK(d.starts[0].job.str() == "high");
    CHECK(d.starts[1].job.str() == "old");
    CHECK(d.reasons.at(JobId("young")) == "needs 1 CPU on a node; a has 0 of 4 CPUs free");
  }
  SUBCASE("a small one does not overtake") {
    const QueueDecision d =
        decide_queue(nodes, {waiting("big", 0, 1, 4), waiting("small", 0, 2, 1)}, 0);
    CHECK(d.starts.empty());
    CHECK(d.reasons.at(JobId("small")) == "waits behind big (priority 0)");
  }
  SUBCASE("one that never fits is passed by") {
    const QueueDecision d =
        decide_queue(nodes, {waiting("huge", 9, 1, 5), waiting("small", 0, 2, 1)}, 0);
    REQUIRE(d.starts.size() == 1);
    CHECK(d.reasons.at(JobId("huge")) ==
          "cannot fit even on the empty cluster: needs 5 CPUs on a node; a has 4 of 4 CPUs free");
    CHECK(decide_queue(nodes, {waiting("huge", 9, 1, 5)}, 2)
              .reasons.at(JobId("huge"))
              .starts_with("waits for 2 more nodes to join"));
  }
  SUBCASE("one that waits for a lost node blocks nobody") {
    std::vector<NodeCapacity> two = {node("a", 4), node("b", 4)};
    two[1].usable = false;
    two[1].why_not = "is lost";
    const QueueDecision d =
        decide_queue(two, {waiting("wide", 0, 1, 4, 2), waiting("small", 0, 2, 1)}, 0);
    CHECK(d.starts.size() == 1);
    CHECK(d.reasons.at(JobId("wide")) == "needs 4 CPUs on each of 2 nodes; b is lost");
  }
  SUBCASE("a held one blocks nobody") {
    WaitingJob held = waiting("held", 9, 1, 4);
    held.held = "waits for x to succeed";
    const QueueDecision d = decide_queue(nodes, {held, waiting("small", 0, 2, 1)}, 0);
    CHECK(d.starts.size() == 1);
    CHECK(d.reasons.at(JobId("held")) == held.held);
  }
}

TEST_CASE("which checkpoints are kept") {
  const auto row = [](int number, const std::string& metrics) {
    CheckpointRow checkpoint;
    checkpoint.number = number;
    checkpoint.metrics = metrics;
    return checkpoint;
  };
  const std::vector<CheckpointRow> rows = {row(0, R"({"acc": 0.9})"), row(1, R"({"acc": 0.5})"),
                                           row(2, R"({"acc": "nan"})"), row(3, R"({"acc": 0.7})"),
                                           row(4, "{}")};
  CheckpointSpec spec;
  using Numbers = std::vector<int>;
  const std::set<int> none;
  CHECK(checkpoints_to_delete(rows, spec, none).empty());
  CHECK(best_checkpoint(rows, spec)->number == 4);
  spec.num_to_keep = 2;
  CHECK(checkpoints_to_delete(rows, spec, none) == Numbers{0, 1, 2});
  spec.score_attribute = "acc";
  CHECK(checkpoints_to_delete(rows, spec, none) == Numbers{1, 2});
  CHECK(best_checkpoint(rows, spec)->number == 0);
  spec.score_order = ScoreOrder::min;
  CHECK(checkpoints_to_delete(rows, spec, none) == Numbers{0, 2});
  CHECK(best_checkpoint(rows, spec)->number == 1);
  spec.num_to_keep = 1;
  CHECK(checkpoints_to_delete(rows, spec, none) == Numbers{0, 2, 3});
  CHECK(checkpoints_to_delete(rows, spec, {2}) == Numbers{0, 3});
  CHECK(score_of(nlohmann::json{{"x", "-inf"}}, "x") < -1e300);
  CHECK_FALSE(score_of(nlohmann::json{{"x", "nan"}}, "x").has_value());
  CHECK_FALSE(best_checkpoint({}, spec).has_value());
}

TEST_CASE("metrics: a long history is thinned by rank and by what was reported") {
  std::vector<MetricsRow> rows;
  for (int step = 1; step <= 1000; ++step) {
    for (const int rank : {0, 1}) {
      MetricsRow row;
      row.rank = rank;
      row.step = step;
      row.metrics = step % 100 == 0 ? R"({"accuracy":0.5})" : R"({"loss":1.0})";
      rows.push_back(row);
    }
  }
  CHECK(thinned(rows, {}).size() == 2000);
  const std::vector<MetricsRow> one = thinned(rows, {.rank = 1, .points = 50});
  std::vector<std::int64_t> losses;
  std::vector<std::int64_t> accuracies;
  for (const MetricsRow& row : one) {
    CHECK(row.rank == 1);
    (row.metrics.find("loss") != std::string::npos ? losses : accuracies).push_back(row.step);
  }
  CHECK(accuracies.size() == 10);  // all of them
  CHECK(losses.size() <= 50);
  CHECK(losses.size() > 40);
  CHECK(losses.back() == 999);  // the newest
  CHECK(std::is_sorted(losses.begin(), losses.end()));
  CHECK(thinned(rows, {.rank = 2, .points = 1}).empty());
  CHECK(thinned(rows, {.points = 1}).size() == 4);
}

TEST_CASE("metrics: the text is what the API has always said") {
  MetricsRow row;
  row.attempt = 2;
  row.rank = 1;
  row.step = 7;
  row.metrics = R"({"loss":0.5})";
  CHECK(metrics_text({}) == R"({"metrics":[]})");
  const nlohmann::json said = nlohmann::json::parse(metrics_text({row, row}));
  CHECK(said.at("metrics").size() == 2);
  CHECK(said.at("metrics").at(1) == nlohmann::json{{"attempt", 2},
                                                   {"rank", 1},
                                                   {"step", 7},
                                                   {"time", rfc3339(row.time)},
                                                   {"metrics", {{"loss", 0.5}}}});
}
