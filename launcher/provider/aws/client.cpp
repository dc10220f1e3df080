#include "launcher/provider/aws/client.hpp"

#include <set>
#include <utility>

#include <nlohmann/json.hpp>

namespace dtrain::aws {

Client::Client(Config config, World world, std::string region, std::string endpoint)
    : config_(std::move(config)),
      api_(config_, std::move(world)),
      region_(std::move(region)),
      endpoint_(std::move(endpoint)),
      credentials_(config_, api_, region_) {}

// Credentials that AWS calls expired before their time are got anew, once.
template <typename Ask>
auto Client::signed_call(const CallOptions& options, Ask ask) {
  const Api::Signing signing = [&] { return credentials_.get(options.stop); };
  try {
    return ask(signing);
  } catch (const ApiError& error) {
    const bool expired =
        error.aws_code().starts_with("ExpiredToken") || error.aws_code() == "RequestExpired";
    if (!expired) throw;
  }
  credentials_.forget();
  return ask(signing);
}

Xml Client::query(Service service, const std::string& action, const Form& form,
                  const CallOptions& options) {
  const Endpoint endpoint =
      endpoint_of(service, region_, config_, service == Service::ec2 ? endpoint_ : "");
  return signed_call(options, [&](const Api::Signing& signing) {
    return api_.query(endpoint, action, form, signing, options);
  });
}

Xml Client::ec2(const std::string& action, const Form& form, const CallOptions& options) {
  return query(Service::ec2, action, form, options);
}

void Client::pages(Service service, const std::string& action, const Form& form, const char* token,
                   const std::string& next, const std::function<void(const Xml& answer)>& take,
                   const CallOptions& options) {
  std::set<std::string> seen;
  std::string value;
  do {
    Form page = form;
    if (!value.empty()) page.emplace_back(token, value);
    const Xml answer = query(service, action, page, options);
    take(answer);
    value = answer.at(next);
    if (!value.empty() && !seen.insert(value).second) {
      throw ApiError(ErrorCode::failed, "",
                     std::string(service == Service::ec2 ? "EC2 " : "IAM ") + action +
                         " gives the same page again and again");
    }
  } while (!value.empty());
}

void Client::ec2_pages(const std::string& action, const Form& form,
                       const std::function<void(const Xml& page)>& take,
                       const CallOptions& options) {
  pages(Service::ec2, action, form, "NextToken", "nextToken", take, options);
}

void Client::iam_pages(const std::string& action, const Form& form,
                       const std::function<void(const Xml& page)>& take,
                       const CallOptions& options) {
  const std::string result = action + "Result";
  pages(
      Service::iam, action, form, "Marker", result + "/Marker",
      [&](const Xml& answer) {
        if (const Xml* page = answer.find(result)) take(*page);
      },
      options);
}

Xml Client::iam(const std::string& action, const Form& form, const CallOptions& options) {
  return query(Service::iam, action, form, options);
}

Xml Client::sts(const std::string& action, const Form& form, const CallOptions& options) {
  return query(Service::sts, action, form, options);
}

nlohmann::json Client::json(Service service, const std::string& action, const nlohmann::json& body,
                            const CallOptions& options) {
  const Endpoint endpoint = endpoint_of(service, region_, config_);
  return signed_call(options, [&](const Api::Signing& signing) {
    return api_.json(endpoint, action, body, signing, options);
  });
}

nlohmann::json Client::ssm(const std::string& action, const nlohmann::json& body,
                           const CallOptions& options) {
  return json(Service::ssm, action, body, options);
}

nlohmann::json Client::pricing(const std::string& action, const nlohmann::json& body,
                               const CallOptions& options) {
  return json(Service::pricing, action, body, options);
}

}  // namespace dtrain::aws
