#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/files/elf.hpp"
#include "launcher/spec/job_spec.hpp"

// Where a job runs: pure, of what the nodes have and what is used of it. A job gets all its nodes
// at once or none. Which job's turn it is: queue.hpp.
namespace dtrain::head {

inline constexpr std::size_t kNamedNodes = 4;  // in a reason; the others are counted

// Of names of the user's own, by name.
using Amounts = std::map<std::string, double>;

struct NodeCapacity {
  NodeId node;
  bool usable = true;     // takes new ranks now
  std::string why_not;    // when it is not usable: "was lost"
  std::string kept = {};  // "is kept as a spare of x": why there may be less room than it seems
  double cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes
  Amounts custom;
  std::map<std::string, std::string> labels;
  int shares = 0;  // attempts that run there
  double cpus_used = 0;
  std::map<int, int> gpus_used;  // by index, in ten-thousandths of each; never 0
  std::uint64_t memory_used = 0;
  Amounts custom_used = {};
  std::optional<GlibcVersion> glibc;  // absent: not known
  // Of Slurm, that it is in; empty: in none. Absent: not known.
  std::optional<std::string> allocation;

  bool operator==(const NodeCapacity&) const = default;
};

// What a job asks for, with the defaults filled in.
struct Demand {
  NodeCount nnodes;
  ProcsPerNode procs;
  double cpus = 1;           // per rank, as the rest
  GpuAmount gpus;            // of parts each rank has one of another GPU: NCCL wants that
  std::uint64_t memory = 0;  // bytes
  Amounts custom = {};
  std::map<std::string, LabelRule> labels = {};
  std::optional<GlibcVersion> glibc;  // the oldest that will do; absent: any
  bool may_run_alone = false;   // asked for nothing: if it is larger than a node, it gets all of it
  bool one_allocation = false;  // all its nodes are in the same allocation of Slurm's

  friend bool operator<(const Demand& a, const Demand& b);  // some order
};
// CPU 1, or GPU 1 with nproc_per_node "gpu" or where only GPUs are asked for.
Demand demand_of(const JobSpec& spec);

struct PlacedShare {
  NodeId node;
  int first_rank = 0;
  int nproc = 1;
  double cpus = 0;
  std::uint64_t memory = 0;
  std::vector<int> gpus;  // in the order of its ranks
  Amounts custom = {};
  int gpu_part = GpuAmount::kOne;  // of each of these, in ten-thousandths
};

// What so many ranks of a demand take.
Amounts taken(const Amounts& each, int ranks);

struct Placement {
  std::optional<std::vector<PlacedShare>> shares;  // by node rank; absent: not now
  std::string reason;                              // why not
};
// What the share uses, taken on.
void use(NodeCapacity& node, const PlacedShare& share);
// And given back.
void release(NodeCapacity& node, const PlacedShare& share);
bool has_gpus_for(const NodeCapacity& node, const PlacedShare& share);

// With nnodes min:max as many as are free. Nodes without GPUs first for a job that needs none,
// those where others have left enough of GPUs for one that needs parts of them, then by name. Of
// several allocations the one that gives most nodes.
Placement place(std::vector<NodeCapacity> nodes, const Demand& demand);
// The same of nodes that are ordered by name already: linear in them. With `among` only of those
// whose place in the list is set there.
Placement place_in_order(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                         const std::vector<bool>* among = nullptr);
void order_by_name(std::vector<NodeCapacity>& nodes);

// The same nodes with nothing on them, all usable.
std::vector<NodeCapacity> emptied(std::vector<NodeCapacity> nodes);

// node-2 before node-10.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace dtrain::head
