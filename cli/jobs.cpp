#include "cli/jobs.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kJobsInMessage = 5;

std::string ids_of(const std::vector<const nlohmann::json*>& jobs, const Listed& listed) {
  std::vector<std::string> ids;
  for (const nlohmann::json* job : jobs) {
    if (ids.size() == kJobsInMessage) {
      ids.push_back("…");
      break;
    }
    ids.push_back(wire::get_string(*job, listed.key));
  }
  return join(ids, ", ");
}

bool is_search(const wire::ApiClient& client, const std::string& reference) {
  try {
    const nlohmann::json answer = client.get("/v1/searches");
    const nlohmann::json& searches = child(answer, "searches");
    return std::any_of(searches.begin(), searches.end(), [&](const nlohmann::json& search) {
      return text_or(search, "name") == reference || text_or(search, "search") == reference;
    });
  } catch (const Error&) {  // an older head
    return false;
  }
}

}  // namespace

bool job_ended(const std::string& state) noexcept {
  return state == "succeeded" || state == "failed" || state == "stopped";
}

nlohmann::json resolve_job(const nlohmann::json& jobs, const std::string& reference,
                           DefaultJob fallback, const Listed& listed) {
  std::vector<const nlohmann::json*> candidates;
  const std::string one = listed.one;
  const std::string many = listed.many;
  if (reference.empty()) {
    bool are_trials = false;
    for (const nlohmann::json& job : jobs) {
      // A trial is one of many: nobody means it who names none.
      if (job.contains("trial") && !job["trial"].is_null()) {
        are_trials = true;
        continue;
      }
      if (fallback == DefaultJob::newest) return job;
      if (fallback == DefaultJob::only_one || !job_ended(wire::get_string(job, "state"))) {
        candidates.push_back(&job);
      }
    }
    if (candidates.size() == 1) return *candidates.front();
    if (jobs.empty()) {
      throw Error(ErrorCode::not_found, "there are no " + many + " yet").with_hint(listed.make);
    }
    if (candidates.empty() && are_trials) {
      throw Error(ErrorCode::not_found, "there are only trials of searches")
          .with_hint(
              "name one by its job's id: dtrain tune result; or the search: dtrain tune stop");
    }
    if (candidates.empty()) throw Error(ErrorCode::not_found, "no " + one + " runs");
    throw Error(ErrorCode::usage, "which " + one + "? There are " + ids_of(candidates, listed))
        .with_hint("name it by its id or the beginning of it");
  }
  std::vector<std::string> known;
  const nlohmann::json* named = nullptr;    // the newest of that name
  const nlohmann::json* running = nullptr;  // the newest of those that have not ended
  for (const nlohmann::json& job : jobs) {
    const std::string id = wire::get_string(job, listed.key);
    if (id == reference) return job;
    if (text_or(job, "name") == reference) {
      if (named == nullptr) named = &job;
      if (running == nullptr && !job_ended(wire::get_string(job, "state"))) running = &job;
    }
    if (id.starts_with(reference)) candidates.push_back(&job);
    known.push_back(id);
    if (const std::string name = text_or(job, "name"); name != id) known.push_back(name);
  }
  if (fallback == DefaultJob::only_running && running != nullptr) return *running;
  if (named != nullptr) return *named;
  if (candidates.size() == 1) return *candidates.front();
  if (candidates.size() > 1) {
    throw Error(ErrorCode::usage, "\"" + reference + "\" begins " +
                                      std::to_string(candidates.size()) + " " + many + ": " +
                                      ids_of(candidates, listed))
        .with_hint("give more of the id");
  }
  Error error(ErrorCode::not_found,
              "there is no " + one + " \"" + printable(reference, false) + "\"");
  const auto near = nearest(reference, known);
  const std::string list = listed.list;
  error.with_hint(near ? *near + ", or " + list + " for all of them" : list + " shows them");
  throw error;
}

std::string meant_by_name(const nlohmann::json& jobs, const std::string& reference,
                          const std::string& id, const Listed& listed) {
  std::vector<const nlohmann::json*> others;
  bool is_newest = false;
  for (const nlohmann::json& job : jobs) {
    if (text_or(job, "name") != reference) continue;
    if (text_or(job, listed.key) == id) {
      is_newest = others.empty();
    } else {
      others.push_back(&job);
    }
  }
  if (reference == id || others.empty()) return {};
  return reference + " means " + id +
         (is_newest ? ", the newest of that name; older: "
                    : ", which runs; others of that name: ") +
         ids_of(others, listed);
}

nlohmann::json known_job(const wire::ApiClient& client, const nlohmann::json& jobs,
                         const std::string& reference, DefaultJob fallback) {
  try {
    return resolve_job(jobs, reference, fallback);
  } catch (Error& error) {
    if (error.code() != ErrorCode::not_found || reference.empty()) throw;
    if (is_search(client, reference)) {
      error.with_hint("it is a search: dtrain tune status, stop, result or rm");
    }
    throw;
  }
}

nlohmann::json found_job(const wire::ApiClient& client, const nlohmann::json& jobs,
                         const std::string& reference, DefaultJob fallback) {
  try {
    return known_job(client, jobs, reference, fallback);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found || reference.empty()) throw;
    const nlohmann::json status = client.get("/v1/status");
    for (const nlohmann::json& job :
         child(child(child(status, "cluster"), "store"), "unknown_jobs")) {
      if (text_or(job, "job") == reference) return {{"job", reference}, {"state", nullptr}};
    }
    throw;
  }
}

KnownJobs::KnownJobs(const wire::ApiClient& client) : client_(client) {
  try {
    answer_ = std::make_shared<const nlohmann::json>(client.get("/v1/jobs"));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::exhausted) throw;
    has_all_ = false;
  }
}

const nlohmann::json& KnownJobs::meant_by(const std::string& reference) {
  if (!has_all_) {
    answer_ = std::make_shared<const nlohmann::json>(
        client_.get("/v1/jobs?ref=" + wire::percent_encode(reference)));
  }
  return wire::member(*answer_, "jobs");
}

nlohmann::json find_job(const wire::ApiClient& client, const std::string& reference,
                        DefaultJob fallback) {
  KnownJobs known(client);
  return known_job(client, known.meant_by(reference), reference, fallback);
}

std::string job_target(const std::string& id, const std::string& rest) {
  return "/v1/jobs/" + wire::percent_encode(id) + rest;
}

std::string text_or(const nlohmann::json& object, const char* key, const std::string& fallback) {
  if (!object.is_object()) return fallback;
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : fallback;
}

long long number_or(const nlohmann::json& object, const char* key, long long fallback) {
  if (!object.is_object()) return fallback;
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<long long>() : fallback;
}

const nlohmann::json& child(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found != object.end() && found->is_structured() ? *found : kNull;
}

}  // namespace dtrain::cli
