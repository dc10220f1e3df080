#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/provider/aws/host_keys.hpp"
#include "launcher/provider/aws/instance_types.hpp"
#include "launcher/provider/aws/instances.hpp"
#include "launcher/provider/aws/network.hpp"
#include "launcher/provider/ssh.hpp"

namespace dtrain::aws {

// A cluster whose machines are instances of EC2, all of which this machine asks for and reaches
// over SSH: by their public addresses, or by their private ones; one that has no public address
// through the head. AWS is asked for nothing where an instance is reached whose host key is known.
class AwsProvider final : public Provider {
 public:
  // `state`: the cluster's folder here. It holds the notes of what was asked for, the instances'
  // host keys, and the login key where the YAML names none.
  AwsProvider(ClusterSpec spec, fs::path state, Access access);
  ~AwsProvider() override;

  std::vector<Machine> list() override;
  Offer offer(const std::string& type) override;
  void prepare(const std::vector<Request>& requests) override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void start(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop) override;
  std::unique_ptr<Transport> reach(const Machine& machine) override;
  // A type that cannot be as the YAML has it keeps no other: it is among them, and check() says
  // why.
  wire::WantedMachines wanted(const ClusterId& cluster) override;
  void check(const std::string& type) override;
  std::vector<Machine> asked_for() override;
  std::vector<Belonging> clear_up(const ClusterId& cluster) override;
  void hang_up() override { ssh_.hang_up(); }

 private:
  // The API, from its first use on: the user's configuration is read then.
  struct Cloud;
  Cloud& cloud();

  bool check_place();
  void note_place();
  void note_place_of(const std::vector<Machine>& machines);
  const NodeType& type_of(const std::string& name) const;
  // Of one request: prepared(), and a host key of its own.
  Launch launch_of(const Request& request);
  // What the machines of a type have in common; AWS is asked for what they stand on, once.
  struct Prepared {
    Launch launch;
    std::optional<InstanceType> has;  // the least of its instance types
  };
  const Prepared& prepared(const NodeType& type, const ClusterId& cluster);
  Launch prepare(const NodeType& type, const ClusterId& cluster);
  nlohmann::json own_config(const NodeType& type, const nlohmann::json& asked,
                            const std::string& kind);
  wire::WantedMachines::Type heads_type(const ClusterSpec::Workers& workers,
                                        const ClusterId& cluster);
  std::vector<Belonging> give_back_unnamed();
  fs::path identity() const;
  std::string public_key();
  bool is_stopped(const Machine& machine);
  HostSpec host_of(const Machine& machine) const;
  std::unique_ptr<Transport> reach_behind(const Machine& machine, const Machine* first);

  const ClusterSpec spec_;
  const fs::path state_;
  const Access access_;
  SshProvider ssh_;
  HostKeys host_keys_;
  std::mutex mutex_;
  std::unique_ptr<Cloud> cloud_;
  // By type; in create() and wanted(), as the next.
  std::map<std::string, Prepared> prepared_;
  std::map<std::string, Error> refused_;
};

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access);

}  // namespace dtrain::aws
