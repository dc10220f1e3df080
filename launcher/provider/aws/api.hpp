#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/provider/aws/endpoints.hpp"
#include "launcher/provider/aws/xml.hpp"
#include "launcher/provider/http.hpp"

namespace dtrain::aws {

struct Credentials;

// "MaxResults" and "1000", "Filter.1.Name" and "vpc-id".
using Form = std::vector<std::pair<std::string, std::string>>;

// What AWS answered, or that it did not. Never holds what the request was signed with.
class ApiError : public Error {
 public:
  ApiError(ErrorCode code, std::string aws_code, const std::string& message)
      : Error(code, message), aws_code_(std::move(aws_code)) {}
  // "InsufficientInstanceCapacity"; empty: there was no answer, or none of AWS's.
  const std::string& aws_code() const noexcept { return aws_code_; }
  // A try whose answer was lost, or was that AWS has failed, may have been done.
  bool may_be_done() const noexcept { return may_be_done_; }
  void set_may_be_done(bool value) noexcept { may_be_done_ = value; }

 private:
  std::string aws_code_;
  bool may_be_done_ = false;
};

// The world, for which tests have fakes.
struct World {
  Http& http;
  const Clock& clock;
  // Returns when the time is over, or `stop` is asked for.
  std::function<void(std::chrono::milliseconds time, const std::stop_token& stop)> pause;
  std::function<double()> random;  // from 0 to 1
};
World real_world(Http& http);

struct CallOptions {
  std::chrono::milliseconds deadline{120000};  // for all tries together
  std::chrono::milliseconds timeout{60000};    // of each
  std::stop_token stop;
  // Refusals that are tried again as transient faults are: NotFound of what was just made.
  std::function<bool(const std::string& aws_code)> again;
};

// Asks one service one thing: signs, tries again, and reads errors. Transient faults are tried as
// often as AWS_MAX_ATTEMPTS or the profile's max_attempts says, else 3 times. Its world outlives
// it. Thread-safe.
class Api {
 public:
  Api(const Config& config, World world);

  // The Query protocol. `credentials` gives those to sign with before each try, so that they are
  // fresh; empty: nothing is signed. Throws ApiError that names the service and the action, or what
  // `credentials` throws.
  using Signing = std::function<Credentials()>;
  Xml query(const Endpoint& endpoint, const std::string& action, const Form& form,
            const Signing& credentials, const CallOptions& options) const;
  // JSON 1.1, of SSM and of the price list. Likewise.
  nlohmann::json json(const Endpoint& endpoint, const std::string& action,
                      const nlohmann::json& body, const Signing& credentials,
                      const CallOptions& options) const;
  // A GET that is not signed; any answer of 200 is its body.
  std::string get(const HttpRequest& request, const std::string& what,
                  const CallOptions& options) const;

  const World& world() const noexcept { return world_; }

 private:
  // `read` throws Error(invalid) for an answer that is none; `scope` is not looked at where nothing
  // is signed.
  void ask(const HttpRequest& request, const std::string& what, const Signing& credentials,
           const SigningScope& scope, const CallOptions& options,
           const std::function<void(const HttpAnswer&)>& read) const;

  World world_;
  int attempts_;
};

// Letters, digits and what is `kept` as they are, all else as %XX (RFC 3986).
std::string percent_encode(std::string_view text, std::string_view kept = "-._~");
// "a=1&b=x+y", as forms are sent.
std::string encode_form(const Form& form);

// The name, in AWS's console, of the quota that instances of a type count against: "Running
// On-Demand P instances"; "All P5 Spot Instance Requests"'s kind where `spot`. Empty: not known.
std::string quota_of(const std::string& instance_type, bool spot);

}  // namespace dtrain::aws
