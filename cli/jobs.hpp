#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/wire/client.hpp"

namespace dtrain::cli {

// What to take when no job is named.
enum class DefaultJob : std::uint8_t {
  newest,        // for verbs that only look
  only_running,  // for stop: the one that has not ended, if it is one
  only_one,      // for rm: the one that there is, if it is one
};

// True for a job that will never change any more.
bool job_ended(const std::string& state) noexcept;

// Pure: the summary that `reference` (an id, a unique beginning of one, or empty) means among
// `jobs` (newest first, as GET /v1/jobs gives them). Throws Error(not_found) or Error(usage) that
// names the candidates.
nlohmann::json resolve_job(const nlohmann::json& jobs, const std::string& reference,
                           DefaultJob fallback);
// The same, asking the head.
nlohmann::json find_job(const wire::ApiClient& client, const std::string& reference,
                        DefaultJob fallback);

// "/v1/jobs/ID" and what follows.
std::string job_target(const std::string& id, const std::string& rest = "");

// Members that may be null or missing: the fallback then.
std::string text_or(const nlohmann::json& object, const char* key,
                    const std::string& fallback = "");
long long number_or(const nlohmann::json& object, const char* key, long long fallback = 0);
// The member if it is an object or array, else null.
const nlohmann::json& child(const nlohmann::json& object, const char* key);

}  // namespace dtrain::cli
