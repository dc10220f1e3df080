#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/cost_limit.hpp"
#include "agent/head/engine/queue.hpp"

// Which machines are to be asked for because jobs wait: pure.
namespace dtrain::head {

// Machines of a kind that may be asked for.
struct MachineType {
  std::string name;
  NodeCapacity each;    // what one has, with nothing on it
  bool known = false;   // else nobody knows how much is left of one beside a job
  int there = 0;        // that there are, and are to come
  int least = 0;        // that are to stand ready
  int most = 0;         // that there may be
  int priority = 0;     // of types that fit as well, the larger
  std::string trouble;  // why so many or more at once cannot be had at the moment
  int refused = 0;
  bool failed = false;  // what was asked for last could not be had
  // So many may be coming, of those that jobs wait for: more are asked for when these are here. The
  // first may be as many as it takes. Absent: any number.
  std::optional<int> at_once;
  std::optional<double> price = std::nullopt;  // of one, at most; US dollars an hour

  bool operator==(const MachineType&) const = default;
};

// With more of everything than any has: for what is not known of a MachineType's.
NodeCapacity any_machine();

// One that was asked for, and whose node has never been here.
struct ComingMachine {
  NodeId node;
  std::string type;
  bool runs = false;
  std::string reason;           // what it waits for
  std::string allocation = {};  // those with the same are had together
  bool by_up = false;           // it was made by an `up`, which prepares it
  // Where they come one by one.
  std::string kind = {};  // what its provider calls it: p3.2xlarge
  std::string zone = {};
  std::string since = {};  // the time of the day at which it was asked for

  bool operator==(const ComingMachine&) const = default;
};

struct MachinesToCome {
  std::vector<MachineType> types;  // empty: nobody is asked because jobs wait
  // Those of one request are one allocation, which a gang is to have for itself where it can.
  bool in_allocations = false;
  int most = 0;  // there may be, of all types
  std::vector<ComingMachine> coming;
  int nodes = 0;  // that are to join by themselves: the coming ones, and those not asked for yet
  CostLimit cost = {};

  bool operator==(const MachinesToCome&) const = default;
};

struct Growth {
  // All that a job needs, to be asked for together.
  struct Gang {
    JobId job;
    std::string type;
    int count = 0;

    bool operator==(const Gang&) const = default;
  };
  std::vector<Gang> gangs;  // in turn
  std::set<NodeId> needed;  // here and coming: jobs that wait are to run there
  // Of these, what waits for machines that could not be had: such are not to wait for ever.
  std::set<NodeId> half;
  // What is kept on nodes that are here for jobs whose others come any moment, or that wait until
  // there is room for them: nobody else is to have it.
  std::map<NodeId, std::vector<PlacedShare>> kept;
  bool short_of_room = false;            // what nobody needs is to go, so that others may come
  std::map<JobId, std::string> reasons;  // of those that wait for machines
};

// So many of the jobs that wait are looked at, in turn; it bounds what a decision takes.
inline constexpr std::size_t kGrowthDepth = 1000;

// Each job in turn takes what is free of the nodes, then of the machines that are coming too. Where
// that does not do it is to get as few machines of one type as do beside what is free; where they
// come in allocations it gets all of its nodes in one, so that it waits for one answer, unless
// there may not be so many. Of the types that fit, those first that can be had, then by priority
// and order. Where there may be none that would do although there could be if others went, it keeps
// what is free, and nobody behind it gets any. None is asked for that would cost more than
// `machines.cost` allows. Jobs that are held get nothing; elastic ones their smallest number.
// `nodes`: those of `soon` are not usable now, and will be by themselves.
Growth decide_growth(std::vector<NodeCapacity> nodes, const std::set<NodeId>& soon,
                     const std::vector<WaitingJob>& queue, const MachinesToCome& machines);

// Why a job could never run on these nodes, nor on machines that there may be; empty: it could.
std::string never_fits(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                       const MachinesToCome& machines);

}  // namespace dtrain::head
