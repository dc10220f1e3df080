#include "agent/head/placement.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

constexpr double kSlack = 1e-9;  // sums of fractions of CPUs

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

std::string count(double value, const char* noun) {
  return number(value) + " " + noun + (std::abs(value - 1) < kSlack ? "" : "s");
}

// One node's part: the share, or what is short there ("has 1 of 2 CPUs free").
struct Fit {
  std::optional<PlacedShare> share;
  std::string shortage;
};

int ranks_on(const NodeCapacity& node, const Demand& demand) {
  switch (demand.procs.kind) {
    case ProcsKind::gpu:
      return node.gpus / std::max(1, demand.gpus);
    case ProcsKind::cpu:
      return std::max(1, static_cast<int>(node.cpus / std::max(1.0, demand.cpus)));
    case ProcsKind::number:
      break;
  }
  return demand.procs.number;
}

Fit fit(const NodeCapacity& node, const Demand& demand) {
  if (!node.usable) return {std::nullopt, node.why_not};
  if (demand.glibc && node.glibc && *node.glibc < *demand.glibc) {
    return {std::nullopt, "has glibc " + node.glibc->str() + ", older than " + demand.glibc->str()};
  }
  PlacedShare share;
  share.node = node.node;
  share.nproc = ranks_on(node, demand);
  if (share.nproc < 1) return {std::nullopt, "has no GPU"};

  share.cpus = share.nproc * demand.cpus;
  if (share.cpus > node.cpus + kSlack && demand.may_run_alone) {
    if (node.shares > 0) {
      return {std::nullopt, "has only " + count(node.cpus, "CPU") + ", so it must be empty first"};
    }
    share.cpus = node.cpus;
  }
  const double free_cpus = std::max(0.0, node.cpus - node.cpus_used);
  if (share.cpus > free_cpus + kSlack) {
    return {std::nullopt, "has " + number(free_cpus) + " of " + count(node.cpus, "CPU") + " free"};
  }

  const int wanted = share.nproc * demand.gpus;
  for (int i = 0; i < node.gpus && static_cast<int>(share.gpus.size()) < wanted; ++i) {
    if (!node.gpus_used.contains(i)) share.gpus.push_back(i);
  }
  if (static_cast<int>(share.gpus.size()) < wanted) {
    const auto free_gpus = node.gpus - static_cast<int>(node.gpus_used.size());
    if (node.gpus == 0) return {std::nullopt, "has no GPU"};
    return {std::nullopt, "has " + number(free_gpus) + " of " + count(node.gpus, "GPU") + " free"};
  }

  share.memory = static_cast<std::uint64_t>(share.nproc) * demand.memory;
  const std::uint64_t free_memory =
      node.memory > node.memory_used ? node.memory - node.memory_used : 0;
  if (share.memory > free_memory) {
    return {std::nullopt,
            "has " + human_bytes(free_memory) + " of " + human_bytes(node.memory) + " memory free"};
  }
  return {share, {}};
}

// "needs 4 CPUs and 2 GPUs on each of 2 nodes"
std::string needs(const Demand& demand) {
  std::vector<std::string> parts;
  switch (demand.procs.kind) {
    case ProcsKind::gpu:
      parts.emplace_back("all GPUs");
      break;
    case ProcsKind::cpu:
      parts.emplace_back("all CPUs");
      break;
    case ProcsKind::number:
      if (demand.cpus > 0) parts.push_back(count(demand.procs.number * demand.cpus, "CPU"));
      if (demand.gpus > 0) parts.push_back(count(demand.procs.number * demand.gpus, "GPU"));
      if (demand.memory > 0) {
        parts.push_back(
            human_bytes(static_cast<std::uint64_t>(demand.procs.number) * demand.memory) +
            " of memory");
      }
  }
  std::string text = "needs " + (parts.empty() ? std::string("room") : join(parts, ", "));
  if (demand.nnodes.min == 1) return text + " on a node";
  return text + " on each of " + std::to_string(demand.nnodes.min) + " nodes";
}

void take(std::vector<NodeCapacity>& nodes, const std::vector<PlacedShare>& shares) {
  for (const PlacedShare& share : shares) {
    for (NodeCapacity& node : nodes) {
      if (node.node != share.node) continue;
      ++node.shares;
      node.cpus_used += share.cpus;
      node.memory_used += share.memory;
      node.gpus_used.insert(share.gpus.begin(), share.gpus.end());
    }
  }
}

}  // namespace

Demand demand_of(const JobSpec& spec) {
  Demand demand;
  demand.nnodes = spec.nnodes;
  demand.procs = spec.nproc_per_node;
  const bool by_gpu = spec.nproc_per_node.kind == ProcsKind::gpu;
  demand.gpus = spec.resources.gpu.value_or(by_gpu ? 1 : 0);
  demand.cpus = spec.resources.cpu.value_or(demand.gpus > 0 ? 0 : 1);
  demand.memory = spec.resources.memory.value_or(0);
  demand.may_run_alone = !spec.resources_given;
  if (spec.content) demand.glibc = parse_glibc_version(spec.content->glibc);
  return demand;
}

bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto run = [&](const std::string& text, std::size_t& at) {
        const std::size_t begin = at;
        while (at < text.size() && digit(text[at])) ++at;
        std::string digits = text.substr(begin, at - begin);
        digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
        return digits;
      };
      const std::string x = run(a, i);
      const std::string y = run(b, j);
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i != b.size() - j ? i == a.size() : a < b;
}

Placement place(const std::vector<NodeCapacity>& nodes, const Demand& demand) {
  std::vector<const NodeCapacity*> order;
  for (const NodeCapacity& node : nodes) order.push_back(&node);
  const bool wants_gpus = demand.gpus > 0;
  std::stable_sort(order.begin(), order.end(), [&](const NodeCapacity* a, const NodeCapacity* b) {
    if (!wants_gpus && (a->gpus > 0) != (b->gpus > 0)) return a->gpus == 0;
    return natural_less(a->node.str(), b->node.str());
  });

  std::vector<PlacedShare> shares;
  std::vector<std::string> shortages;
  for (const NodeCapacity* node : order) {
    if (static_cast<int>(shares.size()) == demand.nnodes.max) break;
    Fit part = fit(*node, demand);
    if (part.share) {
      shares.push_back(std::move(*part.share));
    } else {
      shortages.push_back(node->node.str() + " " + part.shortage);
    }
  }
  if (static_cast<int>(shares.size()) < demand.nnodes.min) {
    constexpr std::size_t kNamed = 4;
    std::string reason = needs(demand);
    if (static_cast<int>(nodes.size()) < demand.nnodes.min) {
      reason += "; the cluster has " + count(static_cast<double>(nodes.size()), "node");
    }
    for (std::size_t i = 0; i < std::min(kNamed, shortages.size()); ++i) {
      reason += (i == 0 ? "; " : ", ") + shortages[i];
    }
    if (shortages.size() > kNamed) {
      reason += " and " + std::to_string(shortages.size() - kNamed) + " more";
    }
    return {std::nullopt, reason};
  }
  // Rank 0 on the first by name, whatever was preferred above.
  std::sort(shares.begin(), shares.end(), [](const PlacedShare& a, const PlacedShare& b) {
    return natural_less(a.node.str(), b.node.str());
  });
  int rank = 0;
  for (PlacedShare& share : shares) {
    share.first_rank = rank;
    rank += share.nproc;
  }
  return {shares, {}};
}

std::vector<NodeCapacity> emptied(std::vector<NodeCapacity> nodes) {
  for (NodeCapacity& node : nodes) {
    node.usable = true;
    node.shares = 0;
    node.cpus_used = 0;
    node.gpus_used.clear();
    node.memory_used = 0;
  }
  return nodes;
}

QueueDecision decide_queue(std::vector<NodeCapacity> nodes, std::vector<WaitingJob> queue,
                           int missing) {
  std::stable_sort(queue.begin(), queue.end(), [](const WaitingJob& a, const WaitingJob& b) {
    return std::tuple(-a.priority, a.order) < std::tuple(-b.priority, b.order);
  });
  const std::vector<NodeCapacity> whole = emptied(nodes);
  std::vector<NodeCapacity> here;
  for (const NodeCapacity& node : nodes) {
    if (node.usable) here.push_back(node);
  }
  const std::vector<NodeCapacity> here_empty = emptied(here);

  QueueDecision decision;
  const WaitingJob* ahead = nullptr;
  for (const WaitingJob& job : queue) {
    std::string& reason = decision.reasons[job.job];
    if (!job.held.empty()) {
      reason = job.held;
      continue;
    }
    const Placement when_empty = place(whole, job.demand);
    if (!when_empty.shares) {
      reason = missing > 0
                   ? "waits for " + count(missing, "more node") + " to join: " + when_empty.reason
                   : "cannot fit even on the empty cluster: " + when_empty.reason;
      continue;
    }
    if (ahead != nullptr && place(here_empty, job.demand).shares) {
      reason = "waits behind " + ahead->job.str() + " (priority " +
               std::to_string(ahead->priority) + ")";
      continue;
    }
    Placement now = place(nodes, job.demand);
    if (now.shares) {
      take(nodes, *now.shares);
      decision.starts.push_back({job.job, std::move(*now.shares)});
      decision.reasons.erase(job.job);
      continue;
    }
    reason = now.reason;
    if (ahead == nullptr && place(here_empty, job.demand).shares) ahead = &job;
  }
  return decision;
}

}  // namespace dtrain::head
