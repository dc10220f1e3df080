#include "launcher/provider/provider.hpp"

#include <array>

#include "launcher/provider/aws/orphans.hpp"
#include "launcher/provider/aws/provider.hpp"
#include "launcher/provider/local.hpp"
#include "launcher/provider/slurm/provider.hpp"
#include "launcher/provider/ssh.hpp"

namespace dtrain {
namespace {

constexpr ProviderTraits kHere{.here = true, .costs = false, .replaces = false};
constexpr ProviderTraits kThere{.here = false, .costs = false, .replaces = false};
constexpr ProviderTraits kCloud{.here = false, .costs = true, .replaces = true, .head_grows = true};
constexpr ProviderTraits kQueue{
    .here = false, .costs = false, .replaces = false, .head_asks = true, .asks_by_resources = true};
constexpr ProviderTraits kEngine{.here = false, .costs = false, .replaces = true};

constexpr std::array<ProviderEntry, 7> kProviders{{
    {ProviderKind::local, "local", kHere, make_local_provider},
    {ProviderKind::ssh, "ssh", kThere, make_ssh_provider},
    {ProviderKind::aws, "aws", kCloud, aws::make_provider, aws::make_orphans},
    {ProviderKind::gcp, "gcp", kCloud, nullptr},
    {ProviderKind::azure, "azure", kCloud, nullptr},
    {ProviderKind::kubernetes, "kubernetes", kEngine, nullptr},
    {ProviderKind::slurm, "slurm", kQueue, slurm::make_provider},
}};

const ProviderEntry& entry_of(ProviderKind kind) {
  for (const ProviderEntry& entry : kProviders) {
    if (entry.kind == kind) return entry;
  }
  throw Error(ErrorCode::internal, "a provider without an entry in the table");
}

}  // namespace

void Provider::start(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) {
    tell({machine, Error(ErrorCode::conflict, "this provider starts no machine again")});
  }
}

wire::WantedMachines Provider::wanted(const ClusterId&) {
  throw Error(ErrorCode::internal, "the head of this provider asks for no machines");
}

std::span<const ProviderEntry> providers() noexcept {
  return kProviders;
}

const ProviderTraits& traits_of(ProviderKind kind) {
  return entry_of(kind).traits;
}

const ProviderEntry* provider_named(const std::string& name) noexcept {
  for (const ProviderEntry& entry : kProviders) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

bool is_here(const std::string& provider_name) noexcept {
  const ProviderEntry* entry = provider_named(provider_name);
  return entry != nullptr && entry->traits.here;
}

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access) {
  const ProviderEntry& entry = entry_of(spec.provider.kind);
  if (entry.make != nullptr) return entry.make(spec, state, access);
  Error error(ErrorCode::invalid, std::string("provider ") + entry.name + " is not built yet");
  error.with_hint("provider {type: local} runs on this machine");
  if (spec.provider.location.line > 0) error.at(spec.provider.location);
  throw error;
}

}  // namespace dtrain
