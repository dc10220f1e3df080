#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

// What POST /v1/doctor (docs/api.md) has answered, for people.
namespace dtrain::cli {

// A table of what was found, equal findings of several nodes in one row and of one kind at most
// kMostRows, and a line that counts. `verbose`: also what is well. Ends with a newline.
std::string doctor_words(const nlohmann::json& answer, bool verbose, bool color);

inline constexpr std::size_t kMostRows = 10;

// Every node has answered, and no problem is left.
bool is_well(const nlohmann::json& answer);

}  // namespace dtrain::cli
