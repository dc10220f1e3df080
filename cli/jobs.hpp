#pragma once

#include <memory>
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

// What is named by ids, names and beginnings of ids: jobs, and searches.
struct Listed {
  const char* key;  // of the id in a summary
  const char* one;  // for messages
  const char* many;
  const char* make;  // the command that makes one
  const char* list;  // the command that shows them
};
inline constexpr Listed kListedJobs{"job", "job", "jobs", "dtrain submit --help", "dtrain status"};

// True for a job, or a search, that will never change any more.
bool job_ended(const std::string& state) noexcept;

// Pure: the summary that `reference` means among `jobs` (newest first, as GET /v1/jobs gives them):
// an id, else a name, of which the newest is meant, else a beginning of an id that only one has; or
// empty. Throws Error(not_found) or Error(usage) that names the candidates.
nlohmann::json resolve_job(const nlohmann::json& jobs, const std::string& reference,
                           DefaultJob fallback, const Listed& listed = kListedJobs);
// A sentence for verbs that change something: which job a name with several jobs has come to mean.
// Empty when there is nothing to say.
std::string meant_by_name(const nlohmann::json& jobs, const std::string& reference,
                          const std::string& id, const Listed& listed = kListedJobs);
// As resolve_job(), of jobs that `client` gave; who takes a search for a job is told so.
nlohmann::json known_job(const wire::ApiClient& client, const nlohmann::json& jobs,
                         const std::string& reference, DefaultJob fallback);
// As known_job(), and by its whole id a job that the head does not know, or cannot read, but whose
// files it has found: of that "state" is null.
nlohmann::json found_job(const wire::ApiClient& client, const nlohmann::json& jobs,
                         const std::string& reference, DefaultJob fallback);
// The jobs that a reference may mean, newest first: all that there are, or, where they are too many
// for one answer, those that the head finds.
class KnownJobs {
 public:
  explicit KnownJobs(const wire::ApiClient& client);
  // Valid until the next call.
  const nlohmann::json& meant_by(const std::string& reference);

 private:
  const wire::ApiClient& client_;
  bool has_all_ = true;
  std::shared_ptr<const nlohmann::json> answer_;
};
// As known_job(), asking the head.
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
