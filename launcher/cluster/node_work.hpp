#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/cluster/node_up.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/remote/agent_session.hpp"

// The steps of bring_up_node(), for node_up.cpp and node_work_*.cpp alone.
namespace dtrain {

// One machine's way through an `up`, on one thread. What is given by reference must outlive it.
class NodeWork {
 public:
  NodeWork(const ClusterSpec& spec, const UpOptions& options, Provider& provider,
           std::shared_ptr<const AgentBinary> binary, HeadDesk& desk, const NodeTask& task,
           NodeUp& report)
      : spec_(spec),
        options_(options),
        provider_(provider),
        binary_(std::move(binary)),
        desk_(desk),
        task_(task),
        report_(report) {}

  // All steps, from the beginning again when the connection breaks. Throws what fails.
  void run();
  const std::string& step() const { return step_; }  // the one that it came to

 private:
  using State = NodeProgress::State;

  void go_through();
  bool stopped() const;
  void wait(std::chrono::milliseconds pause);
  // A step begins. Error(failed) when the whole is to stop.
  void begin(const std::string& step, const std::string& text = {});
  void tell(State state, const std::string& text);
  // The step changed something, or would have with a dry run.
  void did(const std::string& text);
  void warn(const std::string& text);

  // node_work_join.cpp
  void connect();
  bool agent_is_there();
  void all_is_to_be_done();  // of a dry run on a machine that has nothing of ours yet
  void check();
  // The head's machine knows whether the cluster is there already; it makes the id if not.
  void find_cluster();
  void open();
  void check_versions();  // of the agents that would be replaced
  void identity();
  void open_desk();
  // What the node agent is told: who it is and where the head is.
  std::string node_config() const;
  // As the other nodes reach this one: as the YAML says, else its first address that is not of
  // this machine alone.
  std::string own_address() const;
  std::string head_ip() const;
  void environment();

  // node_work_files.cpp
  void files();
  void send(const std::vector<SyncMount>& mounts);
  // The head gives them to the others by way of this machine.
  void synced_files();
  void give_synced_files();
  std::vector<wire::SetupList> lists() const;
  void setup();
  void run_list(const wire::SetupList& list);
  void show_output(std::string_view output);

  // node_work_start.cpp
  void ready_probe();
  void start();

  const ClusterSpec& spec_;
  const UpOptions& options_;
  Provider& provider_;
  std::shared_ptr<const AgentBinary> binary_;
  HeadDesk& desk_;
  const NodeTask& task_;
  NodeUp& report_;

  std::unique_ptr<Transport> transport_;
  std::vector<Parcels::Held> held_;  // by way of it
  std::optional<AgentSession> session_;
  bool connected_ = false;
  std::optional<ClusterId> cluster_;
  wire::NodeFound node_;
  std::string certificates_;  // to be installed
  bool is_changed_ = false;   // what the agents that run were told is not what they should know
  std::map<std::string, SetupProgress> progress_;
  std::string partial_;  // of a line of setup output
  std::string step_ = "connect";
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace dtrain
