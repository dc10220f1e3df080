#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A web client, for the APIs of clouds; http.cpp is the only user of libcurl.
namespace dtrain {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http or https
  HttpFields fields;
  std::string body;
  bool direct = false;  // never by a proxy: what is on this machine, or on its link
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds timeout{60000};   // of all of it
  std::size_t most = std::size_t{16} << 20U;  // bytes of the answer
};

struct HttpAnswer {
  int status = 0;
  HttpFields fields;  // of the last head, names in small letters
  std::string body;

  const std::string* field(std::string_view name) const;  // null: there is none
};

// "https://ec2.us-west-2.amazonaws.com" of a URL: what of it may be told.
std::string origin_of(const std::string& url);

// An edge, for which tests have fakes. Thread-safe.
class Http {
 public:
  virtual ~Http() = default;
  // Any answer is one, whatever its status says; redirections are not followed. Throws Error, which
  // names no more of the URL than its origin: unreachable (no address, no connection, a
  // certificate that is not trusted; also an answer that breaks off), timeout, exhausted (a larger
  // answer), failed (`stop` was asked for). After each the request may have arrived all the same.
  virtual HttpAnswer send(const HttpRequest& request, const std::stop_token& stop = {}) = 0;
};

// By proxies as the environment names them (https_proxy, HTTPS_PROXY, no_proxy, NO_PROXY, …), on
// connections that are kept. `ca_bundle`: the certificates to trust; empty: SSL_CERT_FILE, else
// where the common systems keep theirs. Costs nothing until it is used.
std::unique_ptr<Http> make_http(std::string ca_bundle = {});

}  // namespace dtrain
