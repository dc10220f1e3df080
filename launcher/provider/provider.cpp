#include "launcher/provider/provider.hpp"

#include <array>

#include "launcher/provider/local.hpp"
#include "launcher/provider/ssh.hpp"

namespace dtrain {
namespace {

constexpr std::array<ProviderEntry, 7> kProviders{{
    {ProviderKind::local, "local", make_local_provider},
    {ProviderKind::ssh, "ssh", make_ssh_provider},
    {ProviderKind::aws, "aws", nullptr},
    {ProviderKind::gcp, "gcp", nullptr},
    {ProviderKind::azure, "azure", nullptr},
    {ProviderKind::kubernetes, "kubernetes", nullptr},
    {ProviderKind::slurm, "slurm", nullptr},
}};

}  // namespace

std::span<const ProviderEntry> providers() noexcept {
  return kProviders;
}

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access) {
  for (const ProviderEntry& entry : kProviders) {
    if (entry.kind != spec.provider.kind) continue;
    if (entry.make != nullptr) return entry.make(spec, state, access);
    Error error(ErrorCode::invalid, std::string("provider ") + entry.name + " is not built yet");
    error.with_hint("provider {type: local} runs on this machine");
    if (spec.provider.location.line > 0) error.at(spec.provider.location);
    throw error;
  }
  throw Error(ErrorCode::internal, "a provider without an entry in the table");
}

}  // namespace dtrain
