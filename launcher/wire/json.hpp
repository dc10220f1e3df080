#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"

// JSON from outside, read strictly: each function throws Error(invalid) naming the key, what was
// wanted and what was found.
namespace dtrain::wire {

// Parses text of at most `limit` bytes and `max_depth` levels; `what` names it in messages.
nlohmann::json parse_json(std::string_view text, const std::string& what,
                          std::size_t limit = std::size_t{16} << 20, int max_depth = 64);

// The dump used everywhere: bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dump(const nlohmann::json& json);

// Of a value that was found under `key`.
[[noreturn]] void wrong_type(const char* key, const std::string& wanted,
                             const nlohmann::json& found);
std::string as_string(const nlohmann::json& value, const char* key);
std::int64_t as_int(const nlohmann::json& value, const char* key, std::int64_t min,
                    std::int64_t max);
double as_number(const nlohmann::json& value, const char* key);
bool as_bool(const nlohmann::json& value, const char* key);

const nlohmann::json& member(const nlohmann::json& object, const char* key);
std::string get_string(const nlohmann::json& object, const char* key);
std::string get_string(const nlohmann::json& object, const char* key, const std::string& fallback);
std::int64_t get_int(const nlohmann::json& object, const char* key, std::int64_t min,
                     std::int64_t max);
std::int64_t get_int(const nlohmann::json& object, const char* key, std::int64_t min,
                     std::int64_t max, std::int64_t fallback);
bool get_bool(const nlohmann::json& object, const char* key);
bool get_bool(const nlohmann::json& object, const char* key, bool fallback);
const nlohmann::json& get_list(const nlohmann::json& object, const char* key);
std::vector<std::string> get_strings(const nlohmann::json& object, const char* key);

// {"error": {code, message, context, hint, location}} and back; the body is what "error" holds.
nlohmann::json error_to_json(const Error& error);
Error error_from_json(const nlohmann::json& json);
Error error_from_body(const nlohmann::json& body);

}  // namespace dtrain::wire
