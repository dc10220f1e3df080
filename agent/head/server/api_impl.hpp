#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "agent/head/server/api.hpp"
#include "launcher/wire/json.hpp"

// The API's inside, for its own files only.
namespace dtrain::head {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

inline constexpr std::size_t kBodyLimit = std::size_t{16} << 20;

std::string percent_decode(std::string_view text);
// What `path` has in place of `{}` in the pattern, where it fits it; without {} an empty string.
std::optional<std::string> id_in(std::string_view path, std::string_view pattern);
int status_of(ErrorCode code);
// "node=N&port=P". Error(invalid) names what is wrong.
// An empty node is the head's.
std::pair<NodeId, int> forward_query(const std::string& query);

// "rank=R&points=N", each optional. Error(invalid) as above.
Engine::MetricsQuery metrics_query(const std::string& query);

// "ref=REFERENCE"; absent where the query is empty. Error(invalid) as above.
std::optional<std::string> reference_query(const std::string& query);
// "jobs=N&trials=N", each of `names` optional. Error(invalid) as above, `what` takes them.
std::map<std::string, std::size_t> numbers_query(const std::string& query, const char* what,
                                                 const std::vector<std::string>& names);

// The engine answers through a callback; here it is awaited. What `start` throws is thrown here,
// and so is an answer that is an error.
asio::awaitable<nlohmann::json> answer_of(std::function<void(Engine::Answer)> start);

struct Api::Request {
  http::request<http::string_body> http;
  std::string method;
  std::string path;   // decoded, without the query
  std::string query;  // behind '?', as it came

  explicit Request(http::request<http::string_body> message) : http(std::move(message)) {
    method = std::string(http.method_string());
    const std::string target(http.target());
    const std::size_t mark = target.find('?');
    path = percent_decode(target.substr(0, mark));
    if (mark != std::string::npos) query = target.substr(mark + 1);
  }
  bool is_websocket() const { return beast::websocket::is_upgrade(http); }
  // As it came: to be read again by who takes the socket.
  std::string text() const;
  nlohmann::json body() const {
    return http.body().empty() ? nlohmann::json::object()
                               : wire::parse_json(http.body(), "the body", kBodyLimit);
  }
};

struct Api::Response {
  int status = 200;
  nlohmann::json body;  // a string: the text as it is to be sent
  bool last = false;    // nothing is served behind it

  std::string text() const { return body.is_string() ? body.get<std::string>() : wire::dump(body); }
};

// A request that is answered here, by method and path; {} is a job's or node's id.
struct Api::Route {
  // At once, through a callback as the engine's, or in several steps. Each may throw Error.
  using Now = nlohmann::json (*)(Api&, const Request&, const std::string& id);
  using Later = void (*)(Api&, const Request&, const std::string& id, Engine::Answer done);
  using Steps = asio::awaitable<nlohmann::json> (*)(Api&, const Request&);

  const char* method;
  const char* path;
  std::variant<Now, Later, Steps> answer;
  bool last = false;  // nothing is served behind it
};

// One that another server answers as a WebSocket: it takes the socket, or throws Error and leaves
// it.
struct Api::StreamRoute {
  const char* path;
  void (*serve)(Api&, Socket&, const Request&, const std::string& id);
};

}  // namespace dtrain::head
