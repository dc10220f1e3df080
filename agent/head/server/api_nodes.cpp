#include <algorithm>
#include <charconv>

#include "agent/head/server/api.hpp"
#include "agent/head/server/api_impl.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

// The routes about nodes, and what stands behind a '?'.
namespace dtrain::head {

using nlohmann::json;

std::string percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr == &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::pair<NodeId, int> forward_query(const std::string& query) {
  NodeId node;
  int port = 0;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const std::string value = equals == std::string::npos
                                  ? ""
                                  : percent_decode(std::string_view(pair).substr(equals + 1));
    if (key == "node" && valid_name(value)) {
      node = NodeId(value);
    } else if (key == "port" &&
               std::from_chars(value.data(), value.data() + value.size(), port).ptr ==
                   value.data() + value.size() &&
               port >= 1 && port <= 65535) {
      continue;
    } else {
      throw Error(ErrorCode::invalid,
                  "a forward takes node=NODE and port=1..65535, not " + printable(pair, false));
    }
  }
  if (port == 0) throw Error(ErrorCode::invalid, "a forward takes node=NODE and port=1..65535");
  return {node, port};
}

Engine::MetricsQuery metrics_query(const std::string& query) {
  Engine::MetricsQuery wanted;
  if (query.empty()) return wanted;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, equals);
    int number = -1;
    const char* end = pair.data() + pair.size();
    const bool whole = equals < pair.size() &&
                       std::from_chars(pair.data() + equals + 1, end, number).ptr == end &&
                       number >= 0;
    if (whole && key == "rank") {
      wanted.rank = number;
    } else if (whole && key == "points" && number > 0) {
      wanted.points = static_cast<std::size_t>(number);
    } else {
      throw Error(ErrorCode::invalid,
                  "metrics take rank=R and points=N from 1, not " + printable(pair, false));
    }
  }
  return wanted;
}

void Api::keep(const std::function<void(HeadConfig&)>& change, Engine::Answer done) {
  parts_.nodes.config().change(change,
                               [done = std::move(done)](const std::optional<Error>& failed) {
                                 done(failed ? wire::error_to_json(*failed) : json::object());
                               });
}

asio::awaitable<Api::Response> Api::answer_node(Request request) {
  constexpr int kMostNodes = 100000;
  if (request.path == "/v1/cluster") {
    const int count =
        static_cast<int>(wire::get_int(request.body(), "expected_nodes", 1, kMostNodes));
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      keep([count](HeadConfig& config) { config.expected_nodes = count; }, std::move(done));
    };
    co_await answer_of(std::move(start));
    parts_.engine.expect_nodes(count);
    json answer;
    answer["expected_nodes"] = count;
    co_return Response{200, std::move(answer)};
  }
  const std::vector<std::string> parts = split(request.path, '/');
  const NodeId node(parts[3]);
  const std::string route = request.method + " " + parts[4];
  if (route == "POST drain") {
    const bool undo = wire::get_bool(request.body(), "undo", false);
    co_return Response{200, parts_.engine.drain(node, undo)};
  }
  if (route == "POST remove") {
    const bool force = wire::get_bool(request.body(), "force", false);
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.engine.remove_node(node, force, std::move(done));
    };
    json answered = co_await answer_of(std::move(start));
    co_return Response{200, std::move(answered)};
  }
  if (route == "GET setup") {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.setups.ask(node, std::move(done));
    };
    json answered = co_await answer_of(std::move(start));
    co_return Response{200, std::move(answered)};
  }
  throw Error(ErrorCode::not_found, "no such route: " + request.method + " " + request.path);
}

}  // namespace dtrain::head
