#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "cli/render.hpp"
#include "launcher/tune/space.hpp"
#include "launcher/wire/client.hpp"

// Searches, as the head's API tells of them.
namespace dtrain::cli {

inline constexpr Listed kListedSearches{"search", "search", "searches", "dtrain tune --help",
                                        "dtrain tune list"};

// What `ask` gives; of a head that knows nothing of searches its error says so.
nlohmann::json asked_of_searches(const std::function<nlohmann::json()>& ask);
// {"searches": [summary…]}, the newest first.
nlohmann::json all_searches(const wire::ApiClient& client);
// As find_job(), of searches, for verbs that take the newest where none is named: its summary, its
// id alone.
nlohmann::json find_search(const wire::ApiClient& client, const std::string& reference);
std::string find_search_id(const wire::ApiClient& client, const std::string& reference);
// "/v1/searches/ID" and what follows.
std::string search_target(const std::string& id, const std::string& rest = "");

// Trials by number, in pages, until `each` has had those from `from` on, at most `count`.
void each_trial(const wire::ApiClient& client, const std::string& search, std::uint64_t from,
                std::uint64_t count, const std::function<void(const nlohmann::json&)>& each);
std::vector<nlohmann::json> all_trials(const wire::ApiClient& client, const std::string& search);

// Parameters as a program gets them, {"model": {"layers": 3}}, flat: "model.layers" and 3. A value
// that is itself a mapping stays one where the space says so.
tune::Params flat_params(const nlohmann::json& nested, const tune::SearchSpace& space = {});
// The space of what GET /v1/searches/ID gives; of a newer head maybe less than all.
tune::SearchSpace space_of(const nlohmann::json& search);

// For people: "lr 0.01  model.layers 3", "3 running, 2 waiting", "0.91".
std::string params_line(const nlohmann::json& params);
std::string counts_line(const nlohmann::json& counts);
// "trial 4, val_accuracy 0.91: lr 0.01"; empty while there is no best.
std::string best_line(const nlohmann::json& search);
// "1 trial", "30 trials"
std::string trials_text(std::uint64_t count);
// "12 of 30", and with " trials"
std::string begun_text(const nlohmann::json& search);
std::string begun_line(const nlohmann::json& search);
// SEARCH, STATE and so on, a row each; empty where there is none.
std::string searches_table(const nlohmann::json& searches, bool color);
Color trial_color(const std::string& state) noexcept;

}  // namespace dtrain::cli
