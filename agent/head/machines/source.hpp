#pragma once

#include <memory>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain::head {

// Who has machines, as Provider is to `up`. Each call may take long; one thread at a time.
class MachineSource {
 public:
  virtual ~MachineSource() = default;

  // Those of this cluster's name, also such as ended not long ago, each of these once with why.
  virtual std::vector<Machine> list() = 0;
  virtual void create(const std::vector<Request>& requests, const OutcomeSink& tell) = 0;
  // Machines that were had together are given back together.
  virtual void release(const std::vector<Machine>& machines, const OutcomeSink& tell) = 0;
  // Machines are kept without what they cost while they run, and started again with a script that
  // they run then. Where the provider has no such thing each has an Error.
  virtual void stop(const std::vector<Machine>& machines, const OutcomeSink& tell);
  virtual void start(const std::vector<Machine>& machines, const BootScript& boot,
                     const OutcomeSink& tell);
  // What waits ends with an Error, and so does all that is asked from now on. From any thread.
  virtual void hang_up() {}
};

// `notes`: a folder of this cluster's, for what was asked for. Throws Error(invalid) for a provider
// whose machines the head cannot ask for.
std::unique_ptr<MachineSource> make_source(const wire::WantedMachines& wanted,
                                           const std::string& cluster_name, const fs::path& notes);

}  // namespace dtrain::head
