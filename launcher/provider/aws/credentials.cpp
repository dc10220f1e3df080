#include "launcher/provider/aws/credentials.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/credential_chain.hpp"

namespace dtrain::aws {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kMostIdentity = std::size_t{64} << 10U;

std::string profile_named(const std::string& profile, const std::string& file) {
  return "profile " + printable(profile, false) + " of " + printable_path(file);
}

bool assumes_role(const Section& profile) {
  return profile.find("role_arn") != nullptr && profile.find("web_identity_token_file") == nullptr;
}

bool has_keys(const Section& profile) {
  return profile.find("aws_access_key_id") != nullptr ||
         profile.find("aws_secret_access_key") != nullptr;
}

std::optional<Credentials> keys_of(const Section* section, const std::string& profile,
                                   const std::string& file) {
  const Setting* key = section == nullptr ? nullptr : section->find("aws_access_key_id");
  if (key == nullptr) return std::nullopt;
  const Setting* secret = section->find("aws_secret_access_key");
  if (secret == nullptr) {
    throw Error(ErrorCode::invalid, profile_named(profile, file) +
                                        " has aws_access_key_id and no aws_secret_access_key")
        .at(key->location);
  }
  const Setting* token = section->find("aws_security_token");
  if (token == nullptr) token = section->find("aws_session_token");
  return Credentials{key->text, secret->text, token == nullptr ? "" : token->text, std::nullopt,
                     profile_named(profile, file)};
}

// What AssumeRole and its kin answer.
Credentials assumed(const Xml& answer, const std::string& action, std::string from) {
  const Xml* found = answer.find(action + "Result/Credentials");
  if (found == nullptr || found->at("AccessKeyId").empty() ||
      found->at("SecretAccessKey").empty() || found->at("SessionToken").empty()) {
    throw Error(ErrorCode::failed, "STS " + action + " answers without credentials");
  }
  return {found->at("AccessKeyId"), found->at("SecretAccessKey"), found->at("SessionToken"),
          time_of(found->at("Expiration")), std::move(from)};
}

std::string session_name(const Asking& asking) {
  return "dtrain-" + std::to_string(to_millis(asking.now()) / 1000);
}

Xml ask_sts(const Asking& asking, const std::string& action, const Form& form,
            const Api::Signing& signing) {
  CallOptions options;
  options.stop = asking.stop;
  return asking.api.query(endpoint_of(Service::sts, asking.region, asking.config), action, form,
                          signing, options);
}

// AWS_WEB_IDENTITY_TOKEN_FILE and so on where `variables` count, else what the profile says.
std::optional<Credentials> from_web_identity(const Asking& asking, const std::string& profile,
                                             bool variables) {
  const Section* section = asking.config.find_profile(profile);
  const auto say = [&](const char* variable, const char* name) -> std::optional<std::string> {
    if (variables) {
      if (auto value = asking.config.variable(variable)) return value;
    }
    const Setting* setting = section == nullptr ? nullptr : section->find(name);
    return setting == nullptr ? std::nullopt : std::optional(setting->text);
  };
  const auto file = say("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  if (!file) return std::nullopt;
  const auto role = say("AWS_ROLE_ARN", "role_arn");
  if (!role) {
    Error error(ErrorCode::invalid, "there is a web identity's token (" + printable_path(*file) +
                                        ") and no role: AWS_ROLE_ARN or role_arn of profile " +
                                        printable(profile, false));
    if (section != nullptr) error.at(section->location);
    throw error;
  }
  const auto name = say("AWS_ROLE_SESSION_NAME", "role_session_name");
  return while_doing("assuming the role " + printable(*role, false) + " by a web identity", [&] {
    std::string token = read_file(asking.config.path(*file), kMostIdentity);
    const Xml answer = ask_sts(asking, "AssumeRoleWithWebIdentity",
                               {{"RoleArn", *role},
                                {"RoleSessionName", name.value_or(session_name(asking))},
                                {"WebIdentityToken", token}},
                               {});
    return assumed(answer, "AssumeRoleWithWebIdentity", "the role " + printable(*role, false));
  });
}

// The profile's own, without roles that it assumes by others.
std::optional<Credentials> from_profile(const Asking& asking, const std::string& profile,
                                        bool variables) {
  const Config& config = asking.config;
  if (auto found = from_web_identity(asking, profile, variables)) return found;
  if (auto found = from_sso(asking, profile)) return found;
  if (auto found =
          keys_of(config.in_credentials_file(profile), profile, config.credentials_file())) {
    return found;
  }
  if (auto found = from_login(asking, profile)) return found;
  if (auto found = from_process(asking, profile)) return found;
  return keys_of(config.in_config_file(profile), profile, config.config_file());
}

Credentials assume_role(const Asking& asking, const std::string& profile, Names& visited);

Credentials from_source(const Asking& asking, const Setting& source) {
  std::optional<Credentials> found;
  const std::string name = source.text;
  if (name == "Environment") {
    found = from_environment(asking);
  } else if (name == "EcsContainer") {
    found = from_container(asking);
  } else if (name == "Ec2InstanceMetadata") {
    found = from_instance(asking);
  } else {
    throw Error(ErrorCode::invalid, "credential_source is " + printable(name, false) +
                                        ", not Environment, EcsContainer or Ec2InstanceMetadata")
        .at(source.location);
  }
  if (!found) {
    throw Error(ErrorCode::denied, "credential_source " + name + " has no credentials")
        .at(source.location);
  }
  return *found;
}

Credentials from_source_profile(const Asking& asking, const std::string& profile,
                                const Setting& source, Names& visited) {
  const Section* section = asking.config.find_profile(source.text);
  if (section == nullptr) {
    throw Error(ErrorCode::invalid, "source_profile " + printable(source.text, false) +
                                        " of profile " + printable(profile, false) +
                                        " does not exist")
        .at(source.location);
  }
  const bool seen = std::find(visited.begin(), visited.end(), source.text) != visited.end();
  if (seen && !(source.text == profile && has_keys(*section))) {
    throw Error(ErrorCode::invalid,
                "source_profile leads in a circle: " + printable(join(visited, ", "), false) +
                    ", " + printable(source.text, false))
        .at(source.location);
  }
  visited.push_back(source.text);
  if (!has_keys(*section) && assumes_role(*section)) {
    return assume_role(asking, source.text, visited);
  }
  if (auto found = from_profile(asking, source.text, false)) return *found;
  throw Error(ErrorCode::denied,
              "source_profile " + printable(source.text, false) + " has no credentials")
      .at(source.location);
}

Credentials assume_role(const Asking& asking, const std::string& profile, Names& visited) {
  const Section& section = *asking.config.find_profile(profile);
  const Setting& role = *section.find("role_arn");
  const Setting* source_profile = section.find("source_profile");
  const Setting* source = section.find("credential_source");
  if ((source_profile == nullptr) == (source == nullptr)) {
    throw Error(ErrorCode::invalid,
                "profile " + printable(profile, false) + " has role_arn and " +
                    (source == nullptr ? "neither source_profile nor credential_source"
                                       : "both source_profile and credential_source"))
        .at(role.location);
  }
  if (const Setting* mfa = section.find("mfa_serial")) {
    throw Error(ErrorCode::denied, "profile " + printable(profile, false) +
                                       " wants a code of a device (mfa_serial), which dtrain does "
                                       "not ask for")
        .at(mfa->location)
        .with_hint(
            "get a session by AWS's tools, for example: eval \"$(aws configure "
            "export-credentials --format env)\"");
  }
  return while_doing(
      "assuming the role " + printable(role.text, false) + " of profile " +
          printable(profile, false),
      [&] {
        Credentials own = source != nullptr
                              ? from_source(asking, *source)
                              : from_source_profile(asking, profile, *source_profile, visited);
        Form form{{"RoleArn", role.text}};
        const Setting* name = section.find("role_session_name");
        form.emplace_back("RoleSessionName", name == nullptr ? session_name(asking) : name->text);
        if (const Setting* id = section.find("external_id"))
          form.emplace_back("ExternalId", id->text);
        const Setting* duration = section.find("duration_seconds");
        if (duration != nullptr && number_from<int>(duration->text)) {
          form.emplace_back("DurationSeconds", duration->text);
        }
        const Xml answer = ask_sts(asking, "AssumeRole", form, [&] { return own; });
        return assumed(answer, "AssumeRole", "the role " + printable(role.text, false));
      });
}

}  // namespace

std::optional<Credentials> from_environment(const Asking& asking) {
  const auto key = asking.config.variable("AWS_ACCESS_KEY_ID");
  if (!key) return std::nullopt;
  const auto secret = asking.config.variable("AWS_SECRET_ACCESS_KEY");
  if (!secret) {
    throw Error(ErrorCode::invalid, "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not");
  }
  auto token = asking.config.variable("AWS_SECURITY_TOKEN");
  if (!token) token = asking.config.variable("AWS_SESSION_TOKEN");
  Credentials found{*key, *secret, token.value_or(""), std::nullopt, "the environment"};
  if (const auto expires = asking.config.variable("AWS_CREDENTIAL_EXPIRATION")) {
    found.expires =
        while_doing("reading AWS_CREDENTIAL_EXPIRATION", [&] { return time_of(*expires); });
  }
  return found;
}

Credentials find_credentials(const Asking& asking) {
  const Config& config = asking.config;
  if (auto found = from_environment(asking)) return *found;
  const Section* profile = config.find_profile(config.profile());
  if (profile != nullptr && assumes_role(*profile)) {
    Names visited{config.profile()};
    return assume_role(asking, config.profile(), visited);
  }
  if (auto found = from_profile(asking, config.profile(), true)) return *found;
  if (auto found = from_container(asking)) return *found;
  if (auto found = from_instance(asking)) return *found;
  throw Error(ErrorCode::denied,
              "there are no credentials for AWS: AWS_ACCESS_KEY_ID is not set, profile " +
                  printable(config.profile(), false) + " has none in " +
                  printable_path(config.credentials_file()) + " or " +
                  printable_path(config.config_file()) +
                  ", and this machine is no instance with a role")
      .with_hint("aws configure, or aws sso login; AWS_PROFILE names another profile");
}

CredentialSource::CredentialSource(const Config& config, const Api& api, std::string region)
    : config_(config), api_(api), region_(std::move(region)) {}

Credentials CredentialSource::get(const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  const WallTime now = api_.world().clock.wall();
  const auto good_for = [&](std::chrono::minutes time) {
    return held_ && (!held_->expires || *held_->expires - now > time);
  };
  if (good_for(kRenewal)) return *held_;
  try {
    held_ = find_credentials({config_, api_, region_, stop});
  } catch (const Error&) {
    if (!good_for(kMust)) throw;
    return *held_;
  }
  if (!good_for(std::chrono::minutes(0))) {
    throw Error(ErrorCode::denied, "the credentials of " + held_->from + " have expired, at " +
                                       rfc3339(*held_->expires));
  }
  return *held_;
}

void CredentialSource::forget() {
  const std::lock_guard lock(mutex_);
  held_.reset();
}

}  // namespace dtrain::aws
