#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/provider/aws/api.hpp"
#include "launcher/provider/aws/config.hpp"
#include "launcher/provider/aws/credentials.hpp"

namespace dtrain::aws {

// One account in one region, asked as whoever the user's configuration says. Every method throws
// ApiError, or Error where there are no credentials. Thread-safe.
class Client {
 public:
  // `endpoint`: of EC2; empty: the region's, or what the configuration says. The world outlives it.
  Client(Config config, World world, std::string region, std::string endpoint = {});

  // "DescribeInstances"; gives its answer's element.
  Xml ec2(const std::string& action, const Form& form, const CallOptions& options = {});
  // Page after page, until there is none.
  void ec2_pages(const std::string& action, const Form& form,
                 const std::function<void(const Xml& page)>& take, const CallOptions& options = {});
  Xml iam(const std::string& action, const Form& form, const CallOptions& options = {});
  // Likewise; takes the results within the answers.
  void iam_pages(const std::string& action, const Form& form,
                 const std::function<void(const Xml& page)>& take, const CallOptions& options = {});
  Xml sts(const std::string& action, const Form& form, const CallOptions& options = {});
  nlohmann::json ssm(const std::string& action, const nlohmann::json& body,
                     const CallOptions& options = {});

  nlohmann::json pricing(const std::string& action, const nlohmann::json& body,
                         const CallOptions& options = {});
  // A GET that is not signed.
  std::string get(const HttpRequest& request, const std::string& what,
                  const CallOptions& options = {}) const {
    return api_.get(request, what, options);
  }

  const Config& config() const noexcept { return config_; }
  const std::string& region() const noexcept { return region_; }
  const World& world() const noexcept { return api_.world(); }
  Credentials credentials(const std::stop_token& stop = {}) { return credentials_.get(stop); }

 private:
  template <typename Ask>
  auto signed_call(const CallOptions& options, Ask ask);
  nlohmann::json json(Service service, const std::string& action, const nlohmann::json& body,
                      const CallOptions& options);
  Xml query(Service service, const std::string& action, const Form& form,
            const CallOptions& options);
  // `token` is what a page's is called in the next request, `next` where it stands in an answer.
  void pages(Service service, const std::string& action, const Form& form, const char* token,
             const std::string& next, const std::function<void(const Xml& answer)>& take,
             const CallOptions& options);

  const Config config_;
  const Api api_;
  const std::string region_;
  const std::string endpoint_;
  CredentialSource credentials_;
};

}  // namespace dtrain::aws
