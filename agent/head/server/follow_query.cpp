#include "agent/head/server/follow_query.hpp"

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

int number(const std::string& key, const std::string& value) {
  const auto result = number_from<int>(value);
  if (!result || *result < 0) {
    throw Error(ErrorCode::invalid, "\"" + key + "\" must be a whole number, not " + value);
  }
  return *result;
}

// "attempt 1", "attempts 1 to 3".
std::string numbers(const std::string& what, int first, int last) {
  if (first == last) return what + " " + std::to_string(first);
  return what + "s " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

FollowQuery parse_follow_query(const std::string& query) {
  FollowQuery result;
  if (query.empty()) return result;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    const auto flag = [&] {
      if (value != "0" && value != "1") {
        throw Error(ErrorCode::invalid, "\"" + key + "\" must be 0 or 1, not " + value);
      }
      return value == "1";
    };
    if (key == "logs") {
      result.logs = flag();
    } else if (key == "events") {
      result.events = flag();
    } else if (key == "follow") {
      result.follow = flag();
    } else if (key == "setup") {
      result.setup = flag();
    } else if (key == "from") {
      result.from = flag();
    } else if (key == "rank") {
      result.rank = number(key, value);
    } else if (key == "attempt") {
      result.attempt = number(key, value);
    } else if (key == "tail") {
      result.tail = number(key, value);
    } else if (key == "stream" && (value == "out" || value == "err" || value == "setup")) {
      result.stream = value;
      result.setup = result.setup || value == "setup";
    } else {
      throw Error(ErrorCode::invalid, "no such part of a query: " + pair);
    }
  }
  return result;
}

FollowSnapshot follow_snapshot(const Engine& engine, const JobId& job, const FollowQuery& query,
                               int first) {
  FollowSnapshot now;
  now.job = engine.job_state(job);
  now.newest_attempt = engine.newest_attempt(job);
  now.may_write = engine.may_write(job);
  const int last = std::min(query.attempt.value_or(now.newest_attempt), now.newest_attempt);
  for (int attempt = first; attempt >= 1 && attempt <= last; ++attempt) {
    for (Engine::LogSource& source : engine.logs(job, attempt)) {
      now.sources.push_back(std::move(source));
    }
    if (!query.setup) continue;
    for (auto& [name, path] : engine.other_logs(job, attempt)) {
      if (path.filename() != "setup.log") continue;
      now.setups.push_back({attempt, NodeId(name.substr(0, name.rfind('/'))), std::move(path)});
    }
  }
  return now;
}

bool changes_unsaid(const FollowSnapshot& now) {
  const std::string state = now.job.value("state", "");
  return state != "queued" && state != "restarting";
}

int first_attempt_of(const FollowQuery& query, int newest, bool may_write, int start) {
  if (query.attempt) return *query.attempt;
  int first = query.follow && may_write ? std::max(1, newest) : newest;
  if (query.stream == "setup") first = 1;  // it may have run in the first attempt alone
  // One that comes back begins where it was.
  return start > 0 ? std::min(first, start) : first;
}

bool check_choice(const FollowQuery& query, const FollowSnapshot& now, const JobId& job,
                  bool over) {
  const int newest = now.newest_attempt;
  const bool may_come = query.follow && !over;
  const std::string name = "job " + job.str();
  if (query.attempt && *query.attempt > newest && !(may_come && *query.attempt == newest + 1)) {
    throw Error(ErrorCode::not_found, name + " has no attempt " + std::to_string(*query.attempt))
        .with_hint(newest == 0 ? "it has not begun yet"
                               : "it has " + numbers("attempt", 1, newest));
  }
  if (now.sources.empty()) {
    if (query.rank && !may_come) {
      throw Error(ErrorCode::not_found, name + " has no rank " + std::to_string(*query.rank))
          .with_hint("it has not begun yet");
    }
    return false;
  }
  if (!query.rank) return true;
  int last = 0;
  for (const Engine::LogSource& source : now.sources) {
    if (source.rank == *query.rank) return true;
    last = std::max(last, source.rank);
  }
  throw Error(ErrorCode::not_found, name + " has no rank " + std::to_string(*query.rank))
      .with_hint("it has " + numbers("rank", 0, last));
}

}  // namespace dtrain::head
