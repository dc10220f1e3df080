#include "agent/head/engine/placement.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "launcher/core/text.hpp"
#include "launcher/spec/values.hpp"

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

double amount_of(const Amounts& amounts, const std::string& name) {
  const auto found = amounts.find(name);
  return found == amounts.end() ? 0 : found->second;
}

int ranks_on(const NodeCapacity& node, const Demand& demand) {
  switch (demand.procs.kind) {
    case ProcsKind::gpu:
      return node.gpus / std::max(1, demand.gpus.whole());
    case ProcsKind::cpu:
      return std::max(1, static_cast<int>(node.cpus / std::max(1.0, demand.cpus)));
    case ProcsKind::number:
      break;
  }
  return demand.procs.number;
}

// GPUs that have so much of them left, in the order in which they are given: those that others have
// a part of, the fullest first, so that whole ones stay for who needs these.
std::vector<int> begun_gpus(const NodeCapacity& node, int part) {
  std::vector<std::pair<int, int>> begun;  // less what is used, index
  for (const auto& [gpu, used] : node.gpus_used) {
    if (gpu < node.gpus && used + part <= GpuAmount::kOne) begun.emplace_back(-used, gpu);
  }
  std::sort(begun.begin(), begun.end());
  std::vector<int> gpus;
  for (const auto& [used, gpu] : begun) gpus.push_back(gpu);
  return gpus;
}

// At most `most` of them.
std::vector<int> free_gpus(const NodeCapacity& node, int part, int most) {
  std::vector<int> gpus = begun_gpus(node, part);
  if (static_cast<int>(gpus.size()) > most) gpus.resize(static_cast<std::size_t>(most));
  for (int i = 0; i < node.gpus && static_cast<int>(gpus.size()) < most; ++i) {
    if (!node.gpus_used.contains(i)) gpus.push_back(i);
  }
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

int gpus_of(const Demand& demand, int ranks) {
  return demand.gpus.is_part() ? ranks : ranks * demand.gpus.whole();
}

// One node's part. Without it `shortage`, if wanted, says what is short there: "has 1 of 2 CPUs
// free".
std::optional<PlacedShare> fit(const NodeCapacity& node, const Demand& demand,
                               std::string* shortage) {
  const auto short_of = [&](const auto& text) {
    if (shortage != nullptr) *shortage = text();
    return std::nullopt;
  };
  if (!node.usable) return short_of([&] { return node.why_not; });
  const auto short_of_room = [&](const auto& text) {
    return short_of([&]() -> std::string { return node.kept.empty() ? text() : node.kept; });
  };
  if (demand.glibc && node.glibc && *node.glibc < *demand.glibc) {
    return short_of(
        [&] { return "has glibc " + node.glibc->str() + ", older than " + demand.glibc->str(); });
  }
  for (const auto& [key, rule] : demand.labels) {
    const std::string& name = key;
    const auto label = node.labels.find(name);
    if (rule.takes(label == node.labels.end() ? nullptr : &label->second)) continue;
    return short_of([&] {
      return label == node.labels.end()
                 ? "has no label " + printable(name, false)
                 : "has label " + printable(name, false) + ": " + printable(label->second, false);
    });
  }
  PlacedShare share;
  share.node = node.node;
  share.nproc = ranks_on(node, demand);
  if (share.nproc < 1) return short_of([] { return "has no GPU"; });

  share.cpus = share.nproc * demand.cpus;
  if (share.cpus > node.cpus + kSlack && demand.may_run_alone && node.cpus > 0) {
    if (node.shares > 0) {
      return short_of_room(
          [&] { return "has only " + count(node.cpus, "CPU") + ", so it must be empty first"; });
    }
    share.cpus = node.cpus;
  }
  const double free_cpus = std::max(0.0, node.cpus - node.cpus_used);
  if (share.cpus > free_cpus + kSlack) {
    return short_of_room(
        [&] { return "has " + number(free_cpus) + " of " + count(node.cpus, "CPU") + " free"; });
  }

  share.custom = taken(demand.custom, share.nproc);
  for (const auto& [key, amount] : share.custom) {
    const std::string& name = key;
    const double all = amount_of(node.custom, name);
    const double free = std::max(0.0, all - amount_of(node.custom_used, name));
    if (amount <= free + kSlack) continue;
    return short_of_room([&]() -> std::string {
      if (all == 0) return "has no " + printable(name, false);
      return "has " + number(free) + " of " + number(all) + " " + printable(name, false) + " free";
    });
  }

  const int wanted = gpus_of(demand, share.nproc);
  share.gpu_part = demand.gpus.of_each();
  share.gpus = free_gpus(node, share.gpu_part, wanted);
  if (static_cast<int>(share.gpus.size()) < wanted) {
    return short_of_room([&]() -> std::string {
      if (node.gpus == 0) return "has no GPU";
      return "has " + std::to_string(share.gpus.size()) + " of " + count(node.gpus, "GPU") +
             (demand.gpus.is_part() ? " with " + gpus_text(demand.gpus) + " free" : " free");
    });
  }

  share.memory = static_cast<std::uint64_t>(share.nproc) * demand.memory;
  const std::uint64_t free_memory =
      node.memory > node.memory_used ? node.memory - node.memory_used : 0;
  if (share.memory > free_memory) {
    return short_of_room([&] {
      return "has " + human_bytes(free_memory) + " of " + human_bytes(node.memory) + " memory free";
    });
  }
  return share;
}

// "2 GPUs", "0.25 of a GPU", "0.5 of each of 2 GPUs"
std::string gpus_needed(const Demand& demand) {
  const int ranks = demand.procs.number;
  if (!demand.gpus.is_part()) return count(gpus_of(demand, ranks), "GPU");
  return gpus_text(demand.gpus) + " of " +
         (ranks == 1 ? "a GPU" : "each of " + count(ranks, "GPU") + " (its ranks share none)");
}

// "needs 4 CPUs and 2 GPUs on each of 2 nodes of one Slurm allocation"
std::string needs(const Demand& demand) {
  std::vector<std::string> parts;
  switch (demand.procs.kind) {
    case ProcsKind::gpu:
      parts.emplace_back(demand.gpus.is_part() ? gpus_text(demand.gpus) + " of all GPUs"
                                               : "all GPUs");
      break;
    case ProcsKind::cpu:
      parts.emplace_back("all CPUs");
      break;
    case ProcsKind::number:
      if (demand.cpus > 0) parts.push_back(count(demand.procs.number * demand.cpus, "CPU"));
      if (demand.gpus > 0) parts.push_back(gpus_needed(demand));
      if (demand.memory > 0) {
        parts.push_back(
            human_bytes(static_cast<std::uint64_t>(demand.procs.number) * demand.memory) +
            " of memory");
      }
  }
  const int ranks = demand.procs.kind == ProcsKind::number ? demand.procs.number : 1;
  for (const auto& [name, amount] : taken(demand.custom, ranks)) {
    parts.push_back(number(amount) + " " + printable(name, false));
  }
  for (const auto& [name, rule] : demand.labels) {
    parts.push_back("label " + printable(name, false) + (rule.negated ? " other than " : ": ") +
                    printable(join(rule.values, " or "), false));
  }
  std::string text = "needs " + (parts.empty() ? std::string("room") : join(parts, ", "));
  const bool slurm = demand.one_allocation;
  if (demand.nnodes.min == 1) return text + " on a node" + (slurm ? " in a Slurm allocation" : "");
  return text + " on each of " + std::to_string(demand.nnodes.min) + " nodes" +
         (slurm ? " of one Slurm allocation" : "");
}

Placement place_among(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                      const std::vector<bool>* among);

// Each allocation is a cluster of its own. What is not known is one too, of which nothing is usable
// yet.
Placement place_in_one_allocation(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                                  const std::vector<bool>* among) {
  std::map<std::optional<std::string>, std::vector<bool>> allocations;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].allocation == "" || (among != nullptr && !(*among)[i])) continue;
    allocations[nodes[i].allocation].resize(nodes.size());
    allocations[nodes[i].allocation][i] = true;
  }
  Placement best;
  std::ptrdiff_t largest = 0;
  for (auto& [id, part] : allocations) {
    part.resize(nodes.size());
    const std::ptrdiff_t size = std::count(part.begin(), part.end(), true);
    largest = std::max(largest, size);
    if (size < demand.nnodes.min) continue;
    Placement here = place_among(nodes, demand, &part);
    const bool better = here.shares && (!best.shares || here.shares->size() > best.shares->size());
    if (better || best.reason.empty()) best = std::move(here);
  }
  if (!best.shares && best.reason.empty()) {
    best.reason = needs(demand) + (largest == 0 ? "; no node of this cluster says that it is in one"
                                                : "; the largest here has " +
                                                      count(static_cast<double>(largest), "node"));
  }
  return best;
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
  demand.custom = spec.custom_resources;
  std::erase_if(demand.custom, [](const auto& each) { return each.second == 0; });
  for (const auto& [name, rule] : spec.label_selector) {
    demand.labels.emplace(name, parse_label_rule(rule));
  }
  demand.may_run_alone = !spec.resources_given;
  demand.one_allocation = spec.launcher == Launcher::srun;
  if (spec.content) demand.glibc = parse_glibc_version(spec.content->glibc);
  return demand;
}

bool operator<(const Demand& a, const Demand& b) {
  const auto key = [](const Demand& d) {
    return std::tuple(d.nnodes.min, d.nnodes.max, d.procs.kind, d.procs.number, d.cpus, d.gpus,
                      d.memory, d.custom, d.labels, d.glibc, d.may_run_alone, d.one_allocation);
  };
  return key(a) < key(b);
}

Amounts taken(const Amounts& each, int ranks) {
  Amounts all = each;
  for (auto& [name, amount] : all) amount *= ranks;
  return all;
}

void use(NodeCapacity& node, const PlacedShare& share) {
  ++node.shares;
  node.cpus_used += share.cpus;
  node.memory_used += share.memory;
  for (const int gpu : share.gpus) node.gpus_used[gpu] += share.gpu_part;
  for (const auto& [name, amount] : share.custom) node.custom_used[name] += amount;
}

void release(NodeCapacity& node, const PlacedShare& share) {
  --node.shares;
  node.cpus_used -= share.cpus;
  node.memory_used -= std::min(node.memory_used, share.memory);
  for (const int gpu : share.gpus) {
    const auto used = node.gpus_used.find(gpu);
    if (used != node.gpus_used.end() && (used->second -= share.gpu_part) <= 0) {
      node.gpus_used.erase(used);
    }
  }
  for (const auto& [name, amount] : share.custom) node.custom_used[name] -= amount;
}

bool has_gpus_for(const NodeCapacity& node, const PlacedShare& share) {
  return std::all_of(share.gpus.begin(), share.gpus.end(), [&](int gpu) {
    const auto used = node.gpus_used.find(gpu);
    return used == node.gpus_used.end() || used->second + share.gpu_part <= GpuAmount::kOne;
  });
}

bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto take_number = [&](std::string_view& text) {
    std::size_t end = 0;
    while (end < text.size() && digit(text[end])) ++end;
    std::string_view digits = text.substr(0, end);
    text.remove_prefix(end);
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
    return digits;
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a.front()) && digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.empty() && !b.empty();
}

void order_by_name(std::vector<NodeCapacity>& nodes) {
  std::stable_sort(nodes.begin(), nodes.end(), [](const NodeCapacity& a, const NodeCapacity& b) {
    return natural_less(a.node.str(), b.node.str());
  });
}

Placement place(std::vector<NodeCapacity> nodes, const Demand& demand) {
  order_by_name(nodes);
  return place_in_order(nodes, demand);
}

Placement place_in_order(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                         const std::vector<bool>* among) {
  return demand.one_allocation ? place_in_one_allocation(nodes, demand, among)
                               : place_among(nodes, demand, among);
}

namespace {

Placement place_among(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                      const std::vector<bool>* among) {
  std::vector<PlacedShare> shares;
  std::vector<std::string> shortages;
  std::size_t short_nodes = 0;
  const auto offer = [&](std::size_t i) {
    if (among != nullptr && !(*among)[i]) return;
    const NodeCapacity& node = nodes[i];
    std::string shortage;
    const bool named = shortages.size() < kNamedNodes || !node.kept.empty();
    if (auto part = fit(node, demand, named ? &shortage : nullptr)) {
      shares.push_back(std::move(*part));
      return;
    }
    ++short_nodes;
    if (!named) return;
    // What is kept for another is named before all else.
    const auto at = node.kept.empty() ? shortages.end() : shortages.begin();
    shortages.insert(at, node.node.str() + " " + shortage);
    if (shortages.size() > kNamedNodes) shortages.pop_back();
  };
  // Where it takes nothing that others need more.
  const auto is_better = [&](const NodeCapacity& node) {
    if (demand.gpus == 0) return node.gpus == 0;
    const auto ranks = static_cast<std::size_t>(ranks_on(node, demand));
    return !demand.gpus.is_part() || begun_gpus(node, demand.gpus.of_each()).size() >= ranks;
  };
  const auto is_full = [&] { return static_cast<int>(shares.size()) == demand.nnodes.max; };
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < nodes.size() && !is_full(); ++i) {
    if (is_better(nodes[i])) {
      offer(i);
    } else {
      others.push_back(i);
    }
  }
  const std::size_t better = shares.size();
  for (std::size_t i = 0; i < others.size() && !is_full(); ++i) offer(others[i]);
  const bool in_order = better == 0 || better == shares.size();
  if (static_cast<int>(shares.size()) < demand.nnodes.min) {
    std::string reason = needs(demand);
    if (static_cast<int>(nodes.size()) < demand.nnodes.min) {
      reason += "; the cluster has " + count(static_cast<double>(nodes.size()), "node");
    }
    for (std::size_t i = 0; i < shortages.size(); ++i) {
      reason += (i == 0 ? "; " : ", ") + shortages[i];
    }
    if (short_nodes > shortages.size()) {
      reason += " and " + std::to_string(short_nodes - shortages.size()) + " more";
    }
    return {std::nullopt, reason};
  }
  // Rank 0 on the first by name, whatever was preferred above.
  if (!in_order) {
    std::sort(shares.begin(), shares.end(), [](const PlacedShare& a, const PlacedShare& b) {
      return natural_less(a.node.str(), b.node.str());
    });
  }
  int rank = 0;
  for (PlacedShare& share : shares) {
    share.first_rank = rank;
    rank += share.nproc;
  }
  return {shares, {}};
}

}  // namespace

std::vector<NodeCapacity> emptied(std::vector<NodeCapacity> nodes) {
  for (NodeCapacity& node : nodes) {
    node.usable = true;
    node.shares = 0;
    node.kept.clear();
    node.cpus_used = 0;
    node.gpus_used.clear();
    node.memory_used = 0;
    node.custom_used.clear();
  }
  return nodes;
}

}  // namespace dtrain::head
