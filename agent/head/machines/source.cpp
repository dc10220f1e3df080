#include "agent/head/machines/source.hpp"

#include <map>
#include <utility>

#include "agent/head/machines/scaler.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/slurm/machines.hpp"
#include "launcher/remote/local.hpp"

namespace dtrain::head {
namespace {

class SlurmSource final : public MachineSource {
 public:
  SlurmSource(const wire::WantedMachines& wanted, const std::string& cluster_name)
      : machines_(slurm::Client(std::make_shared<LocalTransport>(), wanted.environment),
                  cluster_name, wanted.boot,
                  [options = options_of(wanted)](const std::string& type) {
                    const auto found = options.find(type);
                    return found == options.end() ? std::vector<std::string>() : found->second;
                  }) {}

  std::vector<Machine> list() override { return machines_.settle(); }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override {
    machines_.create(requests, tell);
  }
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    machines_.release(machines, tell);
  }

 private:
  static std::map<std::string, std::vector<std::string>> options_of(
      const wire::WantedMachines& wanted) {
    std::map<std::string, std::vector<std::string>> options;
    for (const auto& type : wanted.types) options.emplace(type.name, type.options);
    return options;
  }

  slurm::Machines machines_;
};

void refuse_all(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) {
    tell({machine, Error(ErrorCode::conflict, "its provider stops and starts no machines")});
  }
}

}  // namespace

void MachineSource::stop(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  refuse_all(machines, tell);
}

void MachineSource::start(const std::vector<Machine>& machines, const BootScript&,
                          const OutcomeSink& tell) {
  refuse_all(machines, tell);
}

std::unique_ptr<MachineSource> make_source(const wire::WantedMachines& wanted,
                                           const std::string& cluster_name, const fs::path& notes) {
  if (wanted.provider == "slurm") return std::make_unique<SlurmSource>(wanted, cluster_name);
  if (!wanted.scaler.empty()) return std::make_unique<Scaler>(wanted, cluster_name, notes);
  throw Error(ErrorCode::invalid,
              "this head cannot ask " + printable(wanted.provider, false) + " for machines");
}

}  // namespace dtrain::head
