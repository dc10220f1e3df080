#include <algorithm>
#include <charconv>

#include "agent/head/server/api_impl.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

// What stands in a path, and behind a '?'.
namespace dtrain::head {

std::string percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::optional<std::string> id_in(std::string_view path, std::string_view pattern) {
  const std::size_t open = pattern.find("{}");
  if (open == std::string_view::npos)
    return path == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(open + 2);
  if (!path.starts_with(before)) return std::nullopt;
  const std::string_view rest = path.substr(open);
  const std::string_view id = rest.substr(0, rest.find('/'));
  return rest.substr(id.size()) == after ? std::optional<std::string>(id) : std::nullopt;
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
    } else if (const auto number = number_from<int>(value);
               key == "port" && number && *number >= 1 && *number <= 65535) {
      port = *number;
    } else {
      throw Error(ErrorCode::invalid,
                  "a forward takes node=NODE and port=1..65535, not " + printable(pair, false));
    }
  }
  if (port == 0) throw Error(ErrorCode::invalid, "a forward takes node=NODE and port=1..65535");
  return {node, port};
}

std::optional<std::string> reference_query(const std::string& query) {
  if (query.empty()) return std::nullopt;
  if (!query.starts_with("ref=") || query.find('&') != std::string::npos) {
    throw Error(ErrorCode::invalid, "a list of jobs takes ref=JOB, not " + printable(query, false));
  }
  return percent_decode(std::string_view(query).substr(4));
}

std::map<std::string, std::size_t> numbers_query(const std::string& query, const char* what,
                                                 const std::vector<std::string>& names) {
  std::map<std::string, std::size_t> numbers;
  if (query.empty()) return numbers;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, equals);
    const auto number =
        equals < pair.size() ? number_from<int>(pair.substr(equals + 1)) : std::nullopt;
    if (!number || *number < 0 || std::find(names.begin(), names.end(), key) == names.end()) {
      throw Error(ErrorCode::invalid, std::string(what) + " takes " + join(names, "=N and ") +
                                          "=N, not " + printable(pair, false));
    }
    numbers[key] = static_cast<std::size_t>(*number);
  }
  return numbers;
}

Engine::MetricsQuery metrics_query(const std::string& query) {
  Engine::MetricsQuery wanted;
  if (query.empty()) return wanted;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, equals);
    const int number =
        equals < pair.size() ? number_from<int>(pair.substr(equals + 1)).value_or(-1) : -1;
    if (number >= 0 && key == "rank") {
      wanted.rank = number;
    } else if (number > 0 && key == "points") {
      wanted.points = static_cast<std::size_t>(number);
    } else {
      throw Error(ErrorCode::invalid,
                  "metrics take rank=R and points=N from 1, not " + printable(pair, false));
    }
  }
  return wanted;
}

}  // namespace dtrain::head
