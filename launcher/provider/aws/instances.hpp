#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/aws/intents.hpp"
#include "launcher/provider/aws/launch.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain::aws {

// The instances that EC2 tells of for `filter`, as its answer has them. Throws ApiError.
void for_each_instance(Client& client, Form filter,
                       const std::function<void(const Xml& instance)>& take,
                       const std::stop_token& stop = {});

// Machines of one cluster that are instances of EC2. Whose and what they are stands in their tags,
// which they have from the moment they are made, so that every laptop finds them. Those of one
// request come together or not at all; the k-th of a request is its k-th node. One thread at a
// time.
class Instances {
 public:
  // `intents`: a folder of this cluster's that outlives crashes; `saw` is told of each
  // that EC2 lists. The client outlives it.
  Instances(Client& client, std::string cluster_name, fs::path intents,
            std::function<Launch(const Request& request)> launch,
            std::function<void(const Machine& machine, const Tags& tags)> saw = {});

  // As Provider's. What was asked for and is not known to EC2 yet is among them, pending: it is
  // waited for until kUnseen has passed.
  std::vector<Machine> list() { return named(false); }
  // And those that AWS has taken back, gone, for as long as EC2 tells of them, an hour.
  std::vector<Machine> list_with_taken_back() { return named(true); }
  // And, without a node, instances that carry the cluster's tag and do not say which of its
  // machines they are, whose tags somebody has changed, say. They too cost.
  std::vector<Machine> all(const std::stop_token& stop = {}) { return listed(stop, false); }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell);
  // What is not known yet is waited for, and then terminated.
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell);
  // They are told as stopped, on their way there; one that EC2 does not stop stays as it is.
  void stop(const std::vector<Machine>& machines, const OutcomeSink& tell);
  // As Provider's; one that is being stopped is waited for, kUntilStopped at most. With `boot` what
  // each starts with is another from now on; else it stays as it was.
  void start(const std::vector<Machine>& machines, const BootScript& boot, const OutcomeSink& tell);
  // As Provider's, for kFollowed at most; what cannot be seen meanwhile is looked at again.
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop);
  // Releases them, and follows that until they are gone.
  void give_back(const std::vector<Machine>& machines, const OutcomeSink& tell,
                 const std::stop_token& stop);

  // After that, what EC2 does not know was never made, or is gone.
  static constexpr std::chrono::minutes kUnseen{3};
  // So long a list may be older than what was asked of a machine.
  static constexpr std::chrono::seconds kStale{20};
  static constexpr std::chrono::minutes kUntilStopped{5};
  // What is pending or stopping for longer is an error; large ones take 20 minutes to end.
  static constexpr std::chrono::minutes kFollowed{30};
  // After so long it is said for the first time, and then each time after twice as long.
  static constexpr std::chrono::seconds kFirstWord{30};
  // Between two looks at what is on its way.
  static constexpr std::chrono::milliseconds kFirstLook{250};
  static constexpr std::chrono::milliseconds kLastLook{3000};
  // So long a place that had no room is asked behind the others, at first and at most.
  static constexpr std::chrono::seconds kFirstFull{30};
  static constexpr std::chrono::minutes kLastFull{10};
  // Of how many a request is at most, for each has a tag of its own, of which there are 50.
  static constexpr std::size_t kMostTogether = 32;

 private:
  struct Seen {
    Machine machine;
    std::string intent;
  };
  std::vector<Machine> listed(const std::stop_token& stop, bool with_taken_back);
  std::vector<Machine> named(bool with_taken_back);
  std::vector<Seen> seen(const Form& filter, const std::stop_token& stop = {});
  void ask_for(const Request& request, const std::vector<NodeId>& nodes, const OutcomeSink& tell);
  struct NoRoom {
    std::string why;
    std::string hint;
    bool anywhere = false;  // a quota: no zone has room for this instance type
  };
  std::vector<const Launch::Place*> in_turn(const Launch& launch, const std::string& type) const;
  void note_full(const std::string& type, const std::string& zone);
  std::variant<std::vector<Machine>, NoRoom> ask_at(const Request& request, const Launch& launch,
                                                    const Launch::Place& place,
                                                    const std::vector<NodeId>& nodes,
                                                    const std::string& data);
  std::vector<Machine> look_for(const Intent& intent);
  nlohmann::json config_of(const Launch& launch, const Launch::Place& place, const Intent& intent,
                           const std::string& data) const;
  void terminate(const std::vector<Machine>& machines, const OutcomeSink& tell);
  // What became of one that an action was asked of: EC2's word for its state, or why not.
  struct Turn {
    const Machine& machine;
    std::string state;
    const ApiError* failed;
    bool is_young;  // EC2 may not have known it yet
  };
  // Of all together, and where that is refused of each alone. `again`: refusals that are waited out
  // for kUntilStopped.
  void turn(const char* action, const std::vector<Machine>& machines, const char* again,
            const std::function<void(const Turn&)>& done);
  void correct(Machine& machine);
  void prepare(const Machine& machine, const BootScript& boot);

  Client& client_;
  std::string cluster_name_;
  Intents intents_;
  std::function<Launch(const Request&)> launch_;
  std::function<void(const Machine&, const Tags&)> saw_;
  // What was asked of machines, by id, and lists may not have yet.
  struct Asked {
    MachineState state;
    WallTime until;
  };
  std::map<std::string, Asked> asked_;
  // Places without room, by type and zone.
  struct Full {
    Monotonic until;
    std::chrono::seconds pause;
  };
  std::map<std::pair<std::string, std::string>, Full> full_;
};

}  // namespace dtrain::aws
