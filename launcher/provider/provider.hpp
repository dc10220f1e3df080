#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/wire/costs.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain {

class SshShared;

// What the machine of a node runs when it starts, a shell script. It may hold secrets, and is shown
// to nobody.
using BootScript = std::function<std::string(const NodeId& node)>;

// Machines of one type that are wanted, a node each.
struct Request {
  std::string type;
  std::vector<NodeId> nodes;  // as many as are wanted
  bool head = false;          // the cluster's head: one node
  ClusterId cluster;          // whose they will be
  std::string launch;         // kept with them: launch_hash()
  BootScript boot;            // where machines come by themselves
};

// What became of one machine. An operation on N of them gives N of these, each as soon as it is
// known: one failure does not throw away the others.
struct MachineOutcome {
  Machine machine;             // as it is now
  std::optional<Error> error;  // absent: done, or under way where it is pending or stopping
};
// From the thread that asked.
using OutcomeSink = std::function<void(const MachineOutcome&)>;

// What holds for all machines of a provider, known before any is asked for.
struct ProviderTraits {
  bool here = false;      // nodes are folders of this machine, as it is: nothing is sent to them
  bool costs = false;     // by the hour, in money: whoever makes machines is asked first
  bool replaces = false;  // one machine can take another's place
  // The head's machine is one that others work on: no ranks run there. The head asks for all other
  // machines, and they join by themselves.
  bool head_asks = false;
  // Or for those that there may be beside min_workers, and for such of these as are lost.
  bool head_grows = false;
  // A type's CPU, GPU and memory are what a machine of it is asked for with: it says itself what it
  // has got.
  bool asks_by_resources = false;
};

// What is known of a machine before it is made.
struct Offer {
  std::string zone;
  wire::ClusterCosts::Type costs;
};

// What a cluster has with its provider besides machines, as whoever clears it up tells of it.
struct Belonging {
  std::string what;  // "security group"
  std::string id;
  bool gone = true;   // false: it is there still
  bool kept = false;  // and is to be: the YAML says so
  std::string note;   // what it is called, why it stays, what it costs
};

// Where nodes come from. Knows machines, not agents: what is put on them is launcher/cluster's.
// reach() and hang_up() come from any thread at any time, of the others one at a time.
class Provider {
 public:
  virtual ~Provider() = default;

  // The machines of this cluster that there are now, by node name, the head first; some that are
  // gone may be among them, and new ones may be missing for a while. Asks the world, by tags where
  // machines have them, not our notes.
  virtual std::vector<Machine> list() = 0;
  virtual Offer offer(const std::string&) { return {}; }

  // Throws Error where one of these can never be had as it is asked for. Makes nothing that costs.
  virtual void prepare(const std::vector<Request>&) {}
  // Asks for machines, prepared, and tells what was answered for each: pending, running, or why
  // not. A node whose machine is there already is told as it is, so that asking again makes nothing
  // twice.
  virtual void create(const std::vector<Request>& requests, const OutcomeSink& tell) = 0;
  // Gives machines back, with all that is on them; one that is gone is fine, one that was not made
  // stays.
  virtual void release(const std::vector<Machine>& machines, const OutcomeSink& tell) = 0;
  // Starts machines that are stopped, or about to be; those that are not are told as they are.
  virtual void start(const std::vector<Machine>& machines, const OutcomeSink& tell);
  // Tells of each change of these machines until none is pending or stopping, or `stop` is asked
  // for. By events where the provider has them. Without a body: there are no such states.
  virtual void follow(const std::vector<Machine>&, const OutcomeSink&, const std::stop_token&) {}

  // Throws Error that names the machine. One that let nobody in is not tried again: the same error
  // at once.
  virtual std::unique_ptr<Transport> reach(const Machine& machine) = 0;

  // The head's agents are about to start on its machine, which is reached by this. Throws Error.
  virtual void head_starts(Transport&, const ClusterId&) {}

  // ---- Where the head asks for machines.
  // What it is told to keep ready, of its cluster, whose head runs; also sees that it can. Where
  // the YAML has it ask for none, that.
  virtual wire::WantedMachines wanted(const ClusterId& cluster);
  // Throws Error, with the provider's word, where not even one machine of this type can be had; one
  // that others have now can. Makes nothing.
  virtual void check(const std::string&) {}
  // Those that it has asked for; whoever ends the cluster releases them. list() has the head's, and
  // may have these.
  virtual std::vector<Machine> asked_for() { return {}; }
  // The machines are all gone: what they have left goes too. Gives what a person may have to know
  // of. Throws Error.
  virtual std::vector<Belonging> clear_up(const ClusterId&) { return {}; }

  // The id of a cluster whose first machine is about to be made: `fresh`, unless one of this name
  // has left its head's files where that machine goes on with them. Throws Error.
  virtual ClusterId id_of_new(const ClusterId& fresh) { return fresh; }
  // The machine's own program starts the node's agents, and ends with them: whoever starts or ends
  // them leaves it to that (StartAgents::kept).
  virtual bool keeps_agents(const Machine&) const { return false; }

  // Breaks all connections, so that what waits for a machine ends.
  virtual void hang_up() {}
};

// What carries dtrain's tags and belongs to no cluster that has a head, pending or running.
struct Orphan {
  std::string cluster;  // its name
  Belonging thing;
};
class Orphans {
 public:
  virtual ~Orphans() = default;
  virtual std::vector<Orphan> find() = 0;
  // All but what is kept; what became of each is noted in it. Until they are gone, or `stop`. Both
  // throw Error where the provider cannot be asked.
  virtual void take_away(std::vector<Orphan>& orphans, const std::stop_token& stop) = 0;
};

// What reaching machines needs of the person at the terminal.
struct Access {
  std::shared_ptr<SshShared> ssh;                // null: nobody is asked anything
  bool accept_new_host_keys = false;             // unknown ones are pinned without asking
  std::stop_token stop;                          // ends what waits
  std::function<void(const std::string&)> warn;  // from any thread; may be empty
  // How it stands with a machine that is being reached; absent: that is over. Likewise.
  std::function<void(const NodeId&, const std::optional<ReachTry>&)> reaching;
  // For how long one that has let nobody in is tried, whatever keeps it from that. Absent: 30 s at
  // most, and less where trying again seldom helps (nothing listens there, nobody answers).
  std::optional<std::chrono::milliseconds> reach_limit;
};

// All providers by name, built or not.
struct ProviderEntry {
  ProviderKind kind;
  const char* name;
  ProviderTraits traits;
  // Null: known, and not built yet. `state` is the cluster's folder on this machine.
  std::unique_ptr<Provider> (*make)(const ClusterSpec& spec, const fs::path& state,
                                    const Access& access);
  // Of an account, in a region of the provider's; null: there are none that could be found.
  std::unique_ptr<Orphans> (*orphans)(const std::string& region) = nullptr;
};
std::span<const ProviderEntry> providers() noexcept;
const ProviderTraits& traits_of(ProviderKind kind);
// By a name that was remembered; null for one that is none here.
const ProviderEntry* provider_named(const std::string& name) noexcept;
// A cluster whose provider has this name is this machine itself.
bool is_here(const std::string& provider_name) noexcept;

// Throws Error(invalid), at the provider's type in the YAML where that is known, when that provider
// is not built yet.
std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access = {});

}  // namespace dtrain
