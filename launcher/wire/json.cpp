#include "launcher/wire/json.hpp"

#include <limits>

#include "launcher/core/text.hpp"

namespace dtrain::wire {

nlohmann::json parse_json(std::string_view text, const std::string& what, std::size_t limit,
                          int max_depth) {
  if (text.size() > limit) {
    throw Error(ErrorCode::invalid, what + " is larger than " + std::to_string(limit) + " bytes");
  }
  // The parser calls itself for each level, so the depth is checked before it runs.
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) {
        throw Error(ErrorCode::invalid,
                    what + " is nested deeper than " + std::to_string(max_depth) + " levels");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    // It names the token that it read last, which may be as long as the text.
    throw Error(ErrorCode::invalid,
                what + " is not JSON: " + printable(std::string_view(error.what()).substr(0, 200)));
  }
}

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void wrong_type(const char* key, const std::string& wanted, const nlohmann::json& found) {
  throw Error(ErrorCode::invalid,
              std::string("\"") + key + "\" must be " + wanted + ", not " + found.type_name());
}

std::string as_string(const nlohmann::json& value, const char* key) {
  if (!value.is_string()) wrong_type(key, "a string", value);
  return value.get<std::string>();
}

std::int64_t as_int(const nlohmann::json& value, const char* key, std::int64_t min,
                    std::int64_t max) {
  if (!value.is_number_integer()) wrong_type(key, "a whole number", value);
  const bool too_large =
      value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  const std::int64_t number = too_large ? INT64_MAX : value.get<std::int64_t>();
  if (too_large || number < min || number > max) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" must be from " +
                                        std::to_string(min) + " to " + std::to_string(max) +
                                        ", not " + value.dump());
  }
  return number;
}

double as_number(const nlohmann::json& value, const char* key) {
  if (!value.is_number()) wrong_type(key, "a number", value);
  return value.get<double>();
}

bool as_bool(const nlohmann::json& value, const char* key) {
  if (!value.is_boolean()) wrong_type(key, "true or false", value);
  return value.get<bool>();
}

const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) {
    throw Error(ErrorCode::invalid,
                std::string("an object with \"") + key + "\" is wanted, not " + object.type_name());
  }
  const auto found = object.find(key);
  if (found == object.end()) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is missing");
  }
  return *found;
}

std::string get_string(const nlohmann::json& object, const char* key) {
  return as_string(member(object, key), key);
}

std::string get_string(const nlohmann::json& object, const char* key, const std::string& fallback) {
  return object.is_object() && !object.contains(key) ? fallback : get_string(object, key);
}

std::int64_t get_int(const nlohmann::json& object, const char* key, std::int64_t min,
                     std::int64_t max) {
  return as_int(member(object, key), key, min, max);
}

std::int64_t get_int(const nlohmann::json& object, const char* key, std::int64_t min,
                     std::int64_t max, std::int64_t fallback) {
  return object.is_object() && !object.contains(key) ? fallback : get_int(object, key, min, max);
}

bool get_bool(const nlohmann::json& object, const char* key) {
  return as_bool(member(object, key), key);
}

bool get_bool(const nlohmann::json& object, const char* key, bool fallback) {
  return object.is_object() && !object.contains(key) ? fallback : get_bool(object, key);
}

const nlohmann::json& get_list(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_array()) wrong_type(key, "a list", value);
  return value;
}

std::vector<std::string> get_strings(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_array()) wrong_type(key, "a list of strings", value);
  std::vector<std::string> strings;
  for (const nlohmann::json& item : value) {
    if (!item.is_string()) wrong_type(key, "a list of strings", item);
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

nlohmann::json error_to_json(const Error& error) {
  nlohmann::json body = {{"code", to_string(error.code())},
                         {"message", error.message()},
                         {"context", error.context()},
                         {"hint", error.hint()},
                         {"location", nullptr}};
  if (error.location()) {
    body["location"] = {{"file", error.location()->file},
                        {"line", error.location()->line},
                        {"column", error.location()->column}};
  }
  return {{"error", body}};
}

Error error_from_json(const nlohmann::json& json) {
  return error_from_body(member(json, "error"));
}

Error error_from_body(const nlohmann::json& body) {
  Error error(error_code_from(get_string(body, "code")), get_string(body, "message"));
  if (body.contains("context")) {
    for (const std::string& doing : get_strings(body, "context")) error.while_doing(doing);
  }
  error.with_hint(get_string(body, "hint", ""));
  if (body.contains("location") && body["location"].is_object()) {
    const nlohmann::json& place = body["location"];
    constexpr auto kMax = std::numeric_limits<int>::max();
    error.at({get_string(place, "file", ""), static_cast<int>(get_int(place, "line", 0, kMax, 0)),
              static_cast<int>(get_int(place, "column", 0, kMax, 0))});
  }
  return error;
}

}  // namespace dtrain::wire
