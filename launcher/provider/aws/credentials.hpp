#pragma once

#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/provider/aws/api.hpp"
#include "launcher/provider/aws/config.hpp"

namespace dtrain::aws {

// Secret but for `from` and `expires`: no message, log, argument or file of ours ever has it.
struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string token;                // empty: none is needed
  std::optional<WallTime> expires;  // absent: not by themselves
  std::string from;                 // for people: "profile dev of ~/.aws/credentials"
};

// Whoever asks AWS, found in botocore's order: environment; a role that the profile assumes, from
// source_profile or credential_source; web identity; SSO (its cached token); the credentials file;
// `aws login`'s cache; credential_process; the config file; the container's; the instance's
// (IMDSv2). Asked again before they expire. Config and api outlive it. Thread-safe.
class CredentialSource {
 public:
  // `region`: whose STS is asked.
  CredentialSource(const Config& config, const Api& api, std::string region);

  // Credentials that are good for a minute at least, and for ten where they can be had. Throws
  // Error: denied (there are none, or none that are good any more), invalid (a file, with its line
  // and profile), or what STS, SSO, a container or the instance answered.
  Credentials get(const std::stop_token& stop);
  // Those that were got are refused as expired: the next get() asks anew.
  void forget();

  static constexpr std::chrono::minutes kRenewal{15};  // before they expire: asked again
  static constexpr std::chrono::minutes kMust{1};      // older ones do until then, if asking fails

 private:
  const Config& config_;
  const Api& api_;
  const std::string region_;
  std::mutex mutex_;
  std::optional<Credentials> held_;
};

}  // namespace dtrain::aws
