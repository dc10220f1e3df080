#include "launcher/provider/provider.hpp"

#include <array>

#include "launcher/core/text.hpp"
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

// The line of the top-level key `provider`, for a message; 0 when it cannot be seen. The reader has
// accepted the file already, so a look at the text is enough.
int provider_line(const std::string& file) {
  try {
    const std::optional<std::string> text = read_file_if_there(file);
    if (!text) return 0;
    int number = 1;
    for (const std::string& line : split(*text, '\n')) {
      if (line.starts_with("provider:") || line.starts_with("provider :")) return number;
      ++number;
    }
  } catch (const Error&) {
  }
  return 0;
}

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
    if (!spec.source.empty()) error.at({spec.source, provider_line(spec.source), 0});
    throw error;
  }
  throw Error(ErrorCode::internal, "a provider without an entry in the table");
}

}  // namespace dtrain
