#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "launcher/provider/aws/credentials.hpp"

// Inside of CredentialSource: one function for each place where credentials can be. Absent: they
// are not there. Throw Error where they are and cannot be had; it names file, line and profile, and
// says nothing of what is secret.
namespace dtrain::aws {

struct Asking {
  const Config& config;
  const Api& api;
  const std::string& region;
  std::stop_token stop;

  WallTime now() const { return api.world().clock.wall(); }
};

// The whole chain; throws Error(denied) that says where it looked.
Credentials find_credentials(const Asking& asking);

std::optional<Credentials> from_environment(const Asking& asking);
std::optional<Credentials> from_sso(const Asking& asking, const std::string& profile);
std::optional<Credentials> from_login(const Asking& asking, const std::string& profile);
std::optional<Credentials> from_process(const Asking& asking, const std::string& profile);
std::optional<Credentials> from_container(const Asking& asking);
std::optional<Credentials> from_instance(const Asking& asking);

// Of a JSON object with these names for the parts; Error(invalid) that begins with `from` where
// one is missing.
struct PartNames {
  const char* access_key;
  const char* secret_key;
  const char* token;
  const char* expires;
};
Credentials parse_credentials(std::string_view json, const PartNames& names,
                              const std::string& from);
// "2026-11-24T11:02:15Z", with a fraction or an offset too. Throws Error(invalid).
WallTime time_of(const std::string& text);

}  // namespace dtrain::aws
