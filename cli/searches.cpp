#include "cli/searches.hpp"

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::uint64_t kTrialsOfPage = 1000;  // as many as the head gives at once

void flatten(const nlohmann::json& object, const std::string& prefix,
             const tune::SearchSpace& space, tune::Params& params) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && space.find(name) == nullptr) {
      flatten(value, name, space, params);
    } else {
      params[name] = value;
    }
  }
}

// "12 of "; empty where all have begun.
std::string of_total(const nlohmann::json& search) {
  const long long begun = number_or(search, "begun");
  return begun == number_or(search, "total") ? "" : std::to_string(begun) + " of ";
}

}  // namespace

nlohmann::json asked_of_searches(const std::function<nlohmann::json()>& ask) {
  try {
    return ask();
  } catch (Error& error) {
    if (error.code() == ErrorCode::not_found && error.message().starts_with("no such route")) {
      throw Error(ErrorCode::not_found, "the head is of an older dtrain, without searches")
          .with_hint("dtrain up brings this one there");
    }
    throw;
  }
}

nlohmann::json all_searches(const wire::ApiClient& client) {
  return asked_of_searches([&] { return client.get("/v1/searches"); });
}

nlohmann::json find_search(const wire::ApiClient& client, const std::string& reference) {
  const nlohmann::json answer = all_searches(client);
  return resolve_job(wire::member(answer, "searches"), reference, DefaultJob::newest,
                     kListedSearches);
}

std::string find_search_id(const wire::ApiClient& client, const std::string& reference) {
  return wire::get_string(find_search(client, reference), kListedSearches.key);
}

std::string search_target(const std::string& id, const std::string& rest) {
  return "/v1/searches/" + wire::percent_encode(id) + rest;
}

void each_trial(const wire::ApiClient& client, const std::string& search, std::uint64_t from,
                std::uint64_t count, const std::function<void(const nlohmann::json&)>& each) {
  while (count > 0) {
    const std::uint64_t most = std::min(count, kTrialsOfPage);
    const nlohmann::json answer = client.get(search_target(
        search, "/trials?from=" + std::to_string(from) + "&count=" + std::to_string(most)));
    const nlohmann::json& trials = wire::get_list(answer, "trials");
    for (const nlohmann::json& trial : trials) each(trial);
    if (trials.empty()) return;
    const auto next = static_cast<std::uint64_t>(number_or(trials.back(), "trial")) + 1;
    if (next <= from) return;  // no head of ours: it would have no end
    count -= std::min(count, next - from);
    from = next;
  }
}

std::vector<nlohmann::json> all_trials(const wire::ApiClient& client, const std::string& search) {
  std::vector<nlohmann::json> trials;
  each_trial(client, search, 0, UINT64_MAX,
             [&](const nlohmann::json& trial) { trials.push_back(trial); });
  return trials;
}

tune::Params flat_params(const nlohmann::json& nested, const tune::SearchSpace& space) {
  tune::Params params;
  if (nested.is_object()) flatten(nested, "", space, params);
  return params;
}

tune::SearchSpace space_of(const nlohmann::json& search) {
  tune::Problems problems;
  tune::SearchSpace space =
      tune::SearchSpace::from_json(child(child(search, "spec"), "space"), {"space"}, problems);
  return problems.empty() ? space : tune::SearchSpace();
}

std::string params_line(const nlohmann::json& params) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : flat_params(params)) {
    parts.push_back(printable(name, false) + " " + number(value));
  }
  return join(parts, "  ");
}

std::string counts_line(const nlohmann::json& counts) {
  std::vector<std::string> parts;
  for (const char* state : {"running", "waiting", "paused", "complete", "stopped", "failed"}) {
    if (const long long count = number_or(counts, state); count > 0) {
      parts.push_back(std::to_string(count) + " " + state);
    }
  }
  return join(parts, ", ");
}

std::string best_line(const nlohmann::json& search) {
  const nlohmann::json& best = child(search, "best");
  if (!best.is_object() || !best.contains("value")) return {};
  return "trial " + std::to_string(number_or(best, "trial")) + ", " +
         printable(text_or(search, "metric"), false) + " " + number(best["value"]) + ": " +
         params_line(child(best, "params"));
}

std::string trials_text(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " trial" : " trials");
}

std::string begun_text(const nlohmann::json& search) {
  return of_total(search) + std::to_string(number_or(search, "total"));
}

std::string begun_line(const nlohmann::json& search) {
  return of_total(search) + trials_text(static_cast<std::uint64_t>(number_or(search, "total")));
}

Color trial_color(const std::string& state) noexcept {
  if (state == "complete" || state == "running") return Color::green;
  return state == "paused" ? Color::yellow : state_color(state);
}

}  // namespace dtrain::cli
