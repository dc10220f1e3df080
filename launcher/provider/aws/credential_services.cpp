#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>

#include <openssl/evp.h>
#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/credential_chain.hpp"

// Credentials that somebody else hands out: SSO, `aws login`, a program, a container's host, an
// instance's.
namespace dtrain::aws {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr std::size_t kMostToken = std::size_t{64} << 10U;
constexpr std::size_t kMostAnswer = std::size_t{256} << 10U;
constexpr milliseconds kProcessLimit = 60s;
constexpr int kLastYear = 2200;  // "never" may be later than a WallTime can be
constexpr PartNames kInstanceNames{"AccessKeyId", "SecretAccessKey", "Token", "Expiration"};

std::string sum_of(const std::string& text, const EVP_MD* kind) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned size = 0;
  ::EVP_Digest(text.data(), text.size(), sum.data(), &size, kind, nullptr);
  return to_hex({sum.data(), size});
}

std::string text_in(const json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_string()
             ? object[name].get<std::string>()
             : "";
}

json object_of(std::string_view text, const std::string& whose) {
  json object = json::parse(text, nullptr, false);
  if (!object.is_object()) {
    throw Error(ErrorCode::invalid, whose + " gives no JSON object");
  }
  return object;
}

// Over plain HTTP a token goes to this machine, or to its containers' host, alone.
bool is_own(const std::string& url) {
  if (url.find_first_of(" \t\r\n") != std::string::npos) return false;
  if (url.starts_with("https://")) return true;
  if (!url.starts_with("http://")) return false;
  std::string host = origin_of(url).substr(std::string_view("http://").size());
  host = host.starts_with('[') ? host.substr(1, host.find(']') - 1)  //
                               : host.substr(0, host.find(':'));
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) {
    return (ntohl(four.s_addr) >> 24U) == IN_LOOPBACKNET || host == "169.254.170.2" ||
           host == "169.254.170.23";
  }
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) {
    return host == "::1" || host == "fd00:ec2::23";
  }
  return host == "localhost";
}

// What `aws sso login` leaves, and SSO's settings with it.
struct Sso {
  std::string start_url;
  std::string region;
  std::string account;
  std::string role;
  std::string session;  // empty: the old form
};

std::optional<Sso> sso_of(const Config& config, const std::string& profile) {
  const Section* section = config.find_profile(profile);
  if (section == nullptr ||
      (section->find("sso_role_name") == nullptr && section->find("sso_account_id") == nullptr)) {
    return std::nullopt;
  }
  const Setting* named = section->find("sso_session");
  const Section* session = named == nullptr ? nullptr : config.find_sso_session(named->text);
  if (named != nullptr && session == nullptr) {
    throw Error(ErrorCode::invalid, "there is no [sso-session " + printable(named->text, false) +
                                        "], which profile " + printable(profile, false) + " names")
        .at(named->location);
  }
  const auto say = [&](const char* name) {
    const Setting* setting = section->find(name);
    const Setting* common = session == nullptr ? nullptr : session->find(name);
    if (setting != nullptr && common != nullptr && setting->text != common->text) {
      throw Error(ErrorCode::invalid, std::string(name) + " of profile " +
                                          printable(profile, false) +
                                          " is another than its sso-session's")
          .at(setting->location);
    }
    if (setting == nullptr) setting = common;
    if (setting == nullptr) {
      throw Error(ErrorCode::invalid,
                  "profile " + printable(profile, false) + " uses SSO and has no " + name)
          .at(section->location);
    }
    return setting->text;
  };
  return Sso{say("sso_start_url"), say("sso_region"), say("sso_account_id"), say("sso_role_name"),
             named == nullptr ? "" : named->text};
}

}  // namespace

WallTime time_of(const std::string& text) {
  std::tm utc{};
  int used = 0;
  const int fields =
      std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%2d%n", &utc.tm_year, &utc.tm_mon,
                  &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &used);
  std::string rest = fields == 6 ? text.substr(static_cast<std::size_t>(used)) : "?";
  if (rest.starts_with('.'))
    rest.erase(0, std::min(rest.find_first_not_of("0123456789", 1), rest.size()));
  std::chrono::minutes offset{0};
  int hours = 0;
  int minutes = 0;
  std::array<char, 2> sign{};
  if (rest != "Z" && rest != "UTC") {
    if (std::sscanf(rest.c_str(), "%1[+-]%2d:%2d", sign.data(), &hours, &minutes) != 3) {
      throw Error(ErrorCode::invalid,
                  "not a time as 2026-01-02T03:04:05Z: " + printable(text.substr(0, 60), false));
    }
    offset =
        (sign[0] == '-' ? -1 : 1) * (std::chrono::hours(hours) + std::chrono::minutes(minutes));
  }
  utc.tm_year = std::clamp(utc.tm_year, 1970, kLastYear) - 1900;
  utc.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(::timegm(&utc)) - offset;
}

Credentials parse_credentials(std::string_view text, const PartNames& names,
                              const std::string& from) {
  const json object = object_of(text, from);
  Credentials found{text_in(object, names.access_key), text_in(object, names.secret_key),
                    text_in(object, names.token), std::nullopt, from};
  for (const char* name : {names.access_key, names.secret_key}) {
    if (text_in(object, name).empty()) {
      throw Error(ErrorCode::invalid, from + " gives no " + name);
    }
  }
  const std::string expires = text_in(object, names.expires);
  if (!expires.empty()) {
    found.expires =
        while_doing("reading what " + from + " gives", [&] { return time_of(expires); });
  }
  return found;
}

std::optional<Credentials> from_sso(const Asking& asking, const std::string& profile) {
  const auto sso = sso_of(asking.config, profile);
  if (!sso) return std::nullopt;
  const std::string login = sso->session.empty()
                                ? "aws sso login --profile " + shell_quote(profile)
                                : "aws sso login --sso-session " + shell_quote(sso->session);
  const fs::path file =
      asking.config.home() / ".aws" / "sso" / "cache" /
      (sum_of(sso->session.empty() ? sso->start_url : sso->session, ::EVP_sha1()) + ".json");
  const auto cached = read_file_if_there(file, kMostToken);
  if (!cached) {
    throw Error(ErrorCode::denied,
                "profile " + printable(profile, false) + " uses SSO, and nobody has logged in")
        .with_hint(login);
  }
  const json token = object_of(*cached, printable_path(file));
  const std::string secret = text_in(token, "accessToken");
  const std::string expires = text_in(token, "expiresAt");
  if (secret.empty() || expires.empty()) {
    throw Error(ErrorCode::invalid, printable_path(file) + " has no token of SSO's")
        .with_hint(login);
  }
  if (time_of(expires) <= asking.now()) {
    throw Error(ErrorCode::denied, "the login of profile " + printable(profile, false) +
                                       " by SSO has expired, at " + printable(expires, false))
        .with_hint(login);
  }
  HttpRequest request;
  request.url = endpoint_of(Service::sso, sso->region, asking.config).url +
                "/federation/credentials?role_name=" + percent_encode(sso->role) +
                "&account_id=" + percent_encode(sso->account);
  request.fields.emplace_back("x-amz-sso_bearer_token", secret);
  CallOptions options;
  options.stop = asking.stop;
  const std::string from = "SSO, by profile " + printable(profile, false);
  std::string body;
  try {
    body = asking.api.get(request, "SSO GetRoleCredentials", options);
  } catch (ApiError& error) {
    if (error.code() == ErrorCode::denied) error.with_hint(login);
    throw;
  }
  const json answer = object_of(body, from);
  const json role = answer.value("roleCredentials", json::object());
  Credentials found =
      parse_credentials(role.dump(), {"accessKeyId", "secretAccessKey", "sessionToken", ""}, from);
  if (role.contains("expiration") && role["expiration"].is_number_integer()) {
    found.expires = from_millis(role["expiration"].get<std::int64_t>());
  }
  return found;
}

std::optional<Credentials> from_login(const Asking& asking, const std::string& profile) {
  const Section* section = asking.config.find_profile(profile);
  const Setting* session = section == nullptr ? nullptr : section->find("login_session");
  if (session == nullptr) return std::nullopt;
  const std::string login = "aws login --profile " + shell_quote(profile);
  const fs::path folder = asking.config.path(
      asking.config.variable("AWS_LOGIN_CACHE_DIRECTORY").value_or("~/.aws/login/cache"));
  const fs::path file = folder / (sum_of(session->text, ::EVP_sha256()) + ".json");
  const auto cached = read_file_if_there(file, kMostToken);
  if (!cached) {
    throw Error(ErrorCode::denied, "profile " + printable(profile, false) +
                                       " has a login_session, and nobody has logged in")
        .at(session->location)
        .with_hint(login);
  }
  const json token = object_of(*cached, printable_path(file));
  Credentials found = parse_credentials(
      token.value("accessToken", json::object()).dump(),
      {"accessKeyId", "secretAccessKey", "sessionToken", "expiresAt"}, printable_path(file));
  found.from = "the login of profile " + printable(profile, false);
  if (found.expires && *found.expires <= asking.now()) {
    throw Error(ErrorCode::denied, found.from + " has expired, at " + rfc3339(*found.expires))
        .with_hint(login);
  }
  return found;
}

std::optional<Credentials> from_process(const Asking& asking, const std::string& profile) {
  const Section* section = asking.config.find_profile(profile);
  const Setting* command = section == nullptr ? nullptr : section->find("credential_process");
  if (command == nullptr) return std::nullopt;
  const std::string from = "credential_process of profile " + printable(profile, false);
  try {
    SpawnOptions options;
    options.argv = shell_words(command->text);
    if (options.argv.empty()) throw Error(ErrorCode::invalid, "it is empty");
    const Captured result = capture(std::move(options), {}, kProcessLimit);
    if (result.timed_out) {
      throw Error(ErrorCode::timeout, "it did not end within " + human_duration(kProcessLimit));
    }
    if (!result.exit.ok()) {
      const std::string said = result.err.substr(0, result.err.find('\n')).substr(0, 200);
      throw Error(ErrorCode::failed, "it ended with " + result.exit.str() +
                                         (said.empty() ? "" : ": " + printable(said, false)));
    }
    const json object = object_of(result.out, "it");
    if (object.value("Version", json()) != json(1)) {
      throw Error(ErrorCode::invalid, "it gives another version than 1");
    }
    return parse_credentials(
        result.out, {"AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"}, from);
  } catch (const Error& error) {
    throw Error(error.code(), from + ": " + error.message()).at(command->location);
  }
}

std::optional<Credentials> from_container(const Asking& asking) {
  const Config& config = asking.config;
  const auto relative = config.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const auto full = config.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative && !full) return std::nullopt;
  HttpRequest request;
  request.url = relative ? "http://169.254.170.2" + *relative : *full;
  request.direct = true;
  request.connect_timeout = 2s;
  request.most = kMostAnswer;
  request.fields.emplace_back("Accept", "application/json");
  const std::string origin = origin_of(request.url);
  if (!is_own(request.url)) {
    throw Error(ErrorCode::invalid, "AWS_CONTAINER_CREDENTIALS_FULL_URI is at " + origin +
                                        ", which is neither https nor this machine's own");
  }
  std::optional<std::string> token;
  if (const auto file = config.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    token = read_file(*file, kMostToken);
  } else {
    token = config.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  }
  if (token) {
    if (token->find_first_of("\r\n") != std::string::npos) {
      throw Error(ErrorCode::invalid, "the container's authorization token has more than one line");
    }
    request.fields.emplace_back("Authorization", *token);
  }
  CallOptions options;
  options.deadline = 15s;
  options.timeout = 2s;
  options.stop = asking.stop;
  const std::string from = "the container's role";
  return parse_credentials(asking.api.get(request, "credentials of " + from, options),
                           kInstanceNames, from);
}

std::optional<Credentials> from_instance(const Asking& asking) {
  const Config& config = asking.config;
  const std::string disabled = config.variable("AWS_EC2_METADATA_DISABLED").value_or("");
  if (disabled == "true" || disabled == "True" || disabled == "TRUE") return std::nullopt;
  const std::string mode =
      config.setting("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode")
          .value_or("");
  std::string base =
      config.setting("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint")
          .value_or(mode == "ipv6" || mode == "IPv6" ? "http://[fd00:ec2::254]"
                                                     : "http://169.254.169.254");
  while (base.ends_with('/')) base.pop_back();
  const auto number = [&](const char* variable, const char* name, int otherwise) {
    const auto said = config.setting(variable, name);
    const auto value = said ? number_from<int>(*said) : std::nullopt;
    return value && *value > 0 && *value < 1000 ? *value : otherwise;
  };
  const milliseconds timeout =
      1000ms * number("AWS_METADATA_SERVICE_TIMEOUT", "metadata_service_timeout", 1);
  const int attempts =
      number("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "metadata_service_num_attempts", 1);
  std::string trouble;  // of the last question, where it was not answered
  // Absent: there is no such service, or it has nothing.
  const auto ask = [&](const char* method, const std::string& path,
                       HttpFields fields) -> std::optional<std::string> {
    HttpRequest request{method, base + path, std::move(fields), "",
                        true,   timeout,     timeout,           kMostAnswer};
    for (int number_of = 1; number_of <= attempts; ++number_of) {
      trouble.clear();
      try {
        HttpAnswer answer = asking.api.world().http.send(request, asking.stop);
        if (answer.status == 200 && !answer.body.empty()) return std::move(answer.body);
        if (answer.status < 500) return std::nullopt;
        trouble = "HTTP status " + std::to_string(answer.status);
      } catch (const Error& error) {
        if (asking.stop.stop_requested()) throw;
        trouble = error.message();
      }
    }
    return std::nullopt;
  };
  const auto token =
      ask("PUT", "/latest/api/token", {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}});
  if (!token || token->find_first_of("\r\n") != std::string::npos) return std::nullopt;
  const HttpFields fields{{"X-aws-ec2-metadata-token", *token}};
  // It is there: what it does not answer now is no word that there is no role.
  const auto refuse_silence = [&] {
    if (trouble.empty()) return;
    throw Error(ErrorCode::unreachable,
                "the instance's metadata service does not tell its role's credentials: " + trouble);
  };
  const std::string path = "/latest/meta-data/iam/security-credentials/";
  const auto roles = ask("GET", path, fields);
  refuse_silence();
  if (!roles) return std::nullopt;
  const std::string role = roles->substr(0, roles->find('\n'));
  const auto body = ask("GET", path + percent_encode(role), fields);
  refuse_silence();
  const json answer = body ? json::parse(*body, nullptr, false) : json();
  if (!answer.is_object() || text_in(answer, "AccessKeyId").empty()) return std::nullopt;
  return parse_credentials(*body, kInstanceNames, "the instance's role " + printable(role, false));
}

}  // namespace dtrain::aws
