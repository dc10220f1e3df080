#pragma once

#include "launcher/provider/provider.hpp"

namespace dtrain {

// Nodes are folders below the cluster's state, and their agents processes of this machine.
class LocalProvider final : public Provider {
 public:
  explicit LocalProvider(fs::path state) : state_(std::move(state)) {}

  std::vector<Machine> list() override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  std::unique_ptr<Transport> reach(const Machine& machine) override;

 private:
  Machine machine_of(const NodeId& node) const;

  fs::path state_;
};

std::unique_ptr<Provider> make_local_provider(const ClusterSpec& spec, const fs::path& state,
                                              const Access& access);

}  // namespace dtrain
