#include "launcher/provider/aws/api.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <random>

#include <nlohmann/json.hpp>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/credentials.hpp"
#include "launcher/provider/aws/retry.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kVersionOf[] = {"2016-11-15", "2011-06-15", "", "2010-05-08", "", ""};
constexpr int kAttempts = 3;
constexpr std::size_t kShown = 500;         // bytes of what AWS says
constexpr std::size_t kShortestSecret = 8;  // AWS has none that short
constexpr std::chrono::minutes kSkew{4};    // AWS takes 5
constexpr std::array<std::string_view, 12> kDenied{"AuthFailure",
                                                   "UnauthorizedOperation",
                                                   "SignatureDoesNotMatch",
                                                   "IncompleteSignature",
                                                   "RequestExpired",
                                                   "InvalidClientTokenId",
                                                   "OptInRequired",
                                                   "Blocked",
                                                   "UnrecognizedClientException",
                                                   "PendingVerification",
                                                   "RequestTimeTooSkewed",
                                                   "InvalidSignatureException"};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ErrorCode kind_of(const std::string& code, int status) {
  const bool denied = std::find(kDenied.begin(), kDenied.end(), code) != kDenied.end() ||
                      code.starts_with("AccessDenied") || code.starts_with("ExpiredToken") ||
                      code.starts_with("MissingAuthenticationToken") || status == 401 ||
                      (status == 403 && !code.starts_with("Invalid"));
  if (denied) return ErrorCode::denied;
  if (has(code, "NotFound") || code == "NoSuchEntity") return ErrorCode::not_found;
  if (has(code, "LimitExceeded") || has(code, "CountExceeded") || is_want_of_capacity(code)) {
    return ErrorCode::exhausted;
  }
  if (has(code, "Duplicate") || has(code, "InUse") || has(code, "AlreadyExists") ||
      code.starts_with("Idempotent") || code.starts_with("Incorrect") ||
      code == "DependencyViolation") {
    return ErrorCode::conflict;
  }
  if (status >= 500 || status == 429) return ErrorCode::unreachable;
  for (const char* word :
       {"Invalid", "Missing", "Unknown", "Unsupported", "Malformed", "Validation"}) {
    if (code.starts_with(word)) return ErrorCode::invalid;
  }
  return ErrorCode::failed;
}

struct Said {
  std::string code;
  std::string message;
};

// EC2: Response/Errors/Error; STS and IAM: ErrorResponse/Error; JSON: __type and message.
Said said_by(const HttpAnswer& answer) {
  Said said;
  try {
    if (const std::size_t first = answer.body.find_first_not_of(" \t\r\n");
        first != std::string::npos && answer.body[first] == '{') {
      const json body = json::parse(answer.body);
      said.code = body.value("__type", "");
      said.code.erase(0, said.code.rfind('#') + 1);
      for (const char* name : {"message", "Message"}) {
        if (body.contains(name) && body[name].is_string()) said.message = body[name];
      }
    } else {
      const Xml root = parse_xml(answer.body);
      const Xml* error = root.find("Errors/Error");
      if (error == nullptr) error = root.find("Error");
      if (error != nullptr) said = {error->at("Code"), error->at("Message")};
    }
  } catch (const std::exception&) {  // a proxy's page, say
  }
  return said;
}

std::string without(std::string text, const std::string& secret) {
  if (secret.size() < kShortestSecret) return text;
  for (std::size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, at)) {
    text.replace(at, secret.size(), "(not shown)");
  }
  return text;
}

// "Tue, 24 Nov 2026 11:02:15 GMT".
std::optional<WallTime> date_of(const HttpAnswer& answer) {
  const std::string* text = answer.field("date");
  std::tm utc{};
  if (text == nullptr || ::strptime(text->c_str(), "%a, %d %b %Y %H:%M:%S", &utc) == nullptr) {
    return std::nullopt;
  }
  return std::chrono::system_clock::from_time_t(::timegm(&utc));
}

// AWS refuses what was signed by a clock that is off, by several names.
std::string skew(const HttpAnswer& answer, WallTime ours) {
  const auto theirs = date_of(answer);
  if (!theirs || (ours - *theirs < kSkew && *theirs - ours < kSkew)) return "";
  return "this machine's clock says " + rfc3339(ours) + ", AWS's " + rfc3339(*theirs) +
         ": set it, for what is signed at another time is refused";
}

Try try_of(const HttpAnswer& answer, const std::string& code) {
  Try failed{answer.status, code, std::nullopt};
  const std::string* after = answer.field("x-amz-retry-after");
  const auto wanted = after == nullptr ? std::nullopt : number_from<std::int64_t>(*after);
  if (wanted && *wanted >= 0)
    failed.retry_after = milliseconds(std::min<std::int64_t>(*wanted, 3'600'000));
  return failed;
}

std::string capital(Service service) {
  std::string name = to_string(service);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

}  // namespace

World real_world(Http& http) {
  static const SystemClock clock;
  const auto pause = [](milliseconds time, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, time, [] { return false; });
  };
  const auto random = [] {
    thread_local std::mt19937_64 engine{std::random_device{}()};
    return std::uniform_real_distribution<double>(0, 1)(engine);
  };
  return {http, clock, pause, random};
}

Api::Api(const Config& config, World world) : world_(std::move(world)) {
  const auto said = config.setting("AWS_MAX_ATTEMPTS", "max_attempts");
  const auto number = said ? number_from<int>(*said) : std::nullopt;
  if (said && (!number || *number < 1)) {
    throw Error(ErrorCode::invalid,
                "AWS_MAX_ATTEMPTS (max_attempts) must be a number from 1 on, not " +
                    printable(said->substr(0, 60), false));
  }
  attempts_ = number.value_or(kAttempts);
}

void Api::ask(const HttpRequest& request, const std::string& what, const Signing& credentials,
              const SigningScope& scope, const CallOptions& options,
              const std::function<void(const HttpAnswer&)>& read) const {
  const Monotonic began = world_.clock.now();
  const Monotonic deadline = began + options.deadline;
  bool may_be_done = false;
  for (int number = 1;; ++number) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - world_.clock.now());
    HttpRequest next = request;
    next.timeout = std::clamp(options.timeout, milliseconds(1), std::max(left, milliseconds(1)));
    Credentials used;
    const WallTime now = world_.clock.wall();
    if (credentials) {
      used = credentials();
      sign(next, scope, used, now);
    }
    Try failed;
    std::optional<ApiError> error;
    try {
      const HttpAnswer answer = world_.http.send(next, options.stop);
      if (answer.status >= 200 && answer.status < 300) {
        read(answer);
        return;
      }
      const Said said = said_by(answer);
      failed = try_of(answer, said.code);
      std::string text = what + " is refused: " +
                         (said.code.empty() ? "HTTP status " + std::to_string(answer.status)
                                            : printable(said.code.substr(0, kShown), false));
      // Some errors quote what was signed.
      const std::string message = without(without(said.message, used.token), used.secret_key);
      if (!message.empty()) text += ": " + printable(message.substr(0, kShown), false);
      error.emplace(kind_of(said.code, answer.status), said.code, text);
      const std::string off = skew(answer, now);
      if (credentials && error->code() == ErrorCode::denied && !off.empty()) error->with_hint(off);
    } catch (const Error& trouble) {
      const bool final = options.stop.stop_requested() || trouble.code() == ErrorCode::internal ||
                         trouble.code() == ErrorCode::not_found ||
                         trouble.code() == ErrorCode::exhausted;
      error.emplace(trouble.code(), "", what + ": " + trouble.message());
      if (!trouble.hint().empty()) error->with_hint(trouble.hint());
      error->set_may_be_done(true);
      if (final) throw ApiError(*error);
    }
    // A want of capacity is told by 500 too, and certain.
    const bool is_lost =
        failed.status == 0 || (failed.status >= 500 && error->code() == ErrorCode::unreachable);
    may_be_done = may_be_done || (is_lost && fault_of(failed) != Fault::throttled);
    error->set_may_be_done(may_be_done);
    const bool again = options.again && !failed.code.empty() && options.again(failed.code);
    const Fault fault = fault_of(failed);
    if (fault == Fault::refused && !again) throw ApiError(*error);
    const milliseconds pause = pause_after(failed, number, world_.random());
    const bool spent = fault == Fault::transient && !again && number >= attempts_;
    if (spent || world_.clock.now() + pause >= deadline) {
      if (number > 1) {
        error->while_doing("trying " + std::to_string(number) + " times in " +
                           human_duration(world_.clock.now() - began));
      }
      throw ApiError(*error);
    }
    world_.pause(pause, options.stop);
    if (options.stop.stop_requested()) {
      throw ApiError(ErrorCode::failed, "", what + " was given up");
    }
  }
}

Xml Api::query(const Endpoint& endpoint, const std::string& action, const Form& form,
               const Signing& credentials, const CallOptions& options) const {
  HttpRequest request;
  request.method = "POST";
  request.url = endpoint.url;
  request.fields.emplace_back("Content-Type", "application/x-www-form-urlencoded; charset=utf-8");
  Form whole{{"Action", action}, {"Version", kVersionOf[static_cast<int>(endpoint.service)]}};
  whole.insert(whole.end(), form.begin(), form.end());
  request.body = encode_form(whole);
  Xml answer;
  try {
    ask(request, capital(endpoint.service) + " " + action, credentials, endpoint.scope, options,
        [&](const HttpAnswer& said) {
          answer = parse_xml(said.body);
          if (answer.name != action + "Response") {
            throw Error(ErrorCode::invalid, origin_of(endpoint.url) +
                                                " answers with something else: <" +
                                                printable(answer.name.substr(0, 60), false) + ">");
          }
        });
  } catch (ApiError& error) {
    const auto value = [&](std::string_view name) {
      const auto found = std::find_if(form.begin(), form.end(),
                                      [&](const auto& each) { return each.first == name; });
      return found == form.end() ? "" : found->second;
    };
    if (is_instance_quota(error.aws_code())) {
      const std::string quota =
          quota_of(value("InstanceType"), value("InstanceMarketOptions.MarketType") == "spot");
      if (!quota.empty()) {
        error.with_hint(
            "a quota of the account; more is asked for in Service Quotas, Amazon EC2, \"" + quota +
            "\", region " + endpoint.scope.region);
      }
    }
    throw;
  }
  return answer;
}

json Api::json(const Endpoint& endpoint, const std::string& action, const nlohmann::json& body,
               const Signing& credentials, const CallOptions& options) const {
  HttpRequest request;
  request.method = "POST";
  request.url = endpoint.url;
  request.fields.emplace_back("Content-Type", "application/x-amz-json-1.1");
  request.fields.emplace_back(
      "X-Amz-Target",
      (endpoint.service == Service::pricing ? "AWSPriceListService." : "AmazonSSM.") + action);
  request.body = body.dump();
  nlohmann::json answer;
  ask(request, capital(endpoint.service) + " " + action, credentials, endpoint.scope, options,
      [&](const HttpAnswer& said) {
        answer = nlohmann::json::parse(said.body, nullptr, false);
        if (!answer.is_object()) {
          throw Error(ErrorCode::invalid, origin_of(endpoint.url) + " answers with no JSON object");
        }
      });
  return answer;
}

std::string Api::get(const HttpRequest& request, const std::string& what,
                     const CallOptions& options) const {
  std::string body;
  ask(request, what, {}, {}, options, [&](const HttpAnswer& said) { body = said.body; });
  return body;
}

std::string percent_encode(std::string_view text, std::string_view kept) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || kept.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return out;
}

std::string encode_form(const Form& form) {
  const auto encoded = [](const std::string& text) {
    std::string out = percent_encode(text, "-._~ ");
    std::replace(out.begin(), out.end(), ' ', '+');
    return out;
  };
  std::string out;
  for (const auto& [name, value] : form) {
    out += (out.empty() ? "" : "&") + encoded(name) + "=" + encoded(value);
  }
  return out;
}

std::string quota_of(const std::string& instance_type, bool spot) {
  const std::string family = instance_type.substr(0, instance_type.find_first_of("0123456789.-"));
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), family) != names.end();
  };
  std::string kind;
  if (family.empty()) return "";
  if (is({"g", "gr", "vt"}))
    kind = "G and VT";
  else if (is({"p"}))
    kind = "P";
  else if (is({"inf"}))
    kind = "Inf";
  else if (is({"trn"}))
    kind = "Trn";
  else if (is({"dl"}))
    kind = "DL";
  else if (is({"f"}))
    kind = "F";
  else if (is({"x"}))
    kind = "X";
  else if (is({"hpc"}))
    kind = "HPC";
  else if (is({"u"}))
    kind = "High Memory";
  else
    kind = "Standard (A, C, D, H, I, M, R, T, Z)";
  if (!spot) return "Running On-Demand " + kind + " instances";
  if (kind == "P") {
    kind = instance_type.starts_with("p5") ? "P5" : instance_type < "p5" ? "P4, P3 and P2" : "P";
  }
  return "All " + kind + " Spot Instance Requests";
}

}  // namespace dtrain::aws
