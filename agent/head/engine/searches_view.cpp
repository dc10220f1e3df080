#include <algorithm>
#include <cmath>

#include "agent/head/engine/impl.hpp"
#include "launcher/wire/json.hpp"

// What is shown of searches: docs/api.md.
namespace dtrain::head {
namespace {

using nlohmann::json;

// As ranks report it.
json number_json(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isnan(*value)) return "nan";
  if (std::isinf(*value)) return *value > 0 ? "inf" : "-inf";
  return *value;
}

}  // namespace

// By the thread that reads what may be long.
void Engine::Impl::read_searches(std::vector<SearchRow> rows,
                                 std::function<void(const ReadSearches&)> then) {
  work<ReadSearches>(
      history,
      [store_of = store.get(), rows = std::move(rows)]() -> ReadSearches {
        ReadSearches read;
        try {
          for (const SearchRow& row : rows) {
            tune::Problems problems;
            const json spec = wire::parse_json(row.spec, "its spec");
            auto search = std::make_shared<Search>(
                tune::search_spec_from_json(spec, problems, UnknownKeys::ignore));
            problems.check();
            for (const SearchRecord& record : store_of->search_records(row.id)) {
              search->apply(record);
            }
            read.searches.push_back(std::move(search));
          }
        } catch (const std::exception& error) {
          read.error = as_error(error);
        }
        return read;
      },
      std::move(then));
}

const char* Engine::Impl::shown_state(const Trial& trial) const {
  if (trial.goes_on && !trial.leg_lives) return "waiting";
  if (trial.state != Trial::State::running) return to_string(trial.state);
  const auto job = trial.legs.empty() ? jobs.end() : jobs.find(trial.legs.back());
  const bool waits = job == jobs.end() || job->second.shown.state == JobState::queued;
  return waits ? "waiting" : "running";
}

json Engine::Impl::counted(const SearchOf& search, const Search& state) const {
  const tune::SearchSpec& spec = state.spec();
  std::map<std::string, std::size_t> counts{{"waiting", 0},  {"running", 0}, {"paused", 0},
                                            {"complete", 0}, {"stopped", 0}, {"failed", 0}};
  for (const Trial& trial : state.trials()) {
    ++counts[trial.ended() ? to_string(trial.state) : shown_state(trial)];
  }
  json best;
  if (const Trial* trial = state.best()) {
    best = {{"trial", trial->number},
            {"value", number_json(trial->value)},
            {"iteration", trial->iteration},
            {"params", tune::nested(trial->params)},
            {"job", trial->legs.empty() ? json() : json(trial->legs.back().str())}};
  }
  return {{"name", search.name},
          {"metric", spec.objective.metric},
          {"mode", spec.objective.mode == tune::Mode::max ? "max" : "min"},
          {"algorithm", tune::to_string(spec.search.algorithm)},
          {"scheduler", tune::to_string(spec.scheduler.algorithm)},
          {"seed", spec.search.seed.value_or(0)},
          {"total", state.total()},
          {"begun", state.trials().size()},
          {"counts", counts},
          {"best", std::move(best)}};
}

json Engine::Impl::search_summary(const SearchOf& search) const {
  json all = search.state ? counted(search, *search.state)
                          : json::parse(search.row.summary, nullptr, false);
  if (!all.is_object()) all = {{"name", search.name}};
  const bool halts = search.row.state == SearchState::running && search.state &&
                     search.state->halt() != Search::Halt::none;
  all["search"] = search.row.id.str();
  all["state"] = to_string(halts ? SearchState::stopping : search.row.state);
  const std::string waits = search.no_room.empty() ? "" : "waits for room: " + search.no_room;
  all["reason"] = halts                       ? search.state->halt_reason()
                  : search.row.reason.empty() ? waits
                                              : search.row.reason;
  all["created"] = rfc3339(search.row.created);
  all["ended"] = time_json(search.row.ended);
  return all;
}

json Engine::Impl::search_list(std::size_t most) const {
  std::vector<const SearchOf*> newest;
  for (const auto& [id, search] : searches) {
    if (search.durable) newest.push_back(&search);
  }
  const std::size_t count = std::min(most, newest.size());
  std::partial_sort(newest.begin(), newest.begin() + static_cast<std::ptrdiff_t>(count),
                    newest.end(),
                    [](const SearchOf* a, const SearchOf* b) { return a->order > b->order; });
  json list = json::array();
  for (std::size_t i = 0; i < count; ++i) list.push_back(search_summary(*newest[i]));
  return list;
}

json Engine::Impl::trial_view(const Trial& trial) const {
  json legs = json::array();
  for (const JobId& leg : trial.legs) legs.push_back(leg.str());
  const auto job = trial.legs.empty() ? jobs.end() : jobs.find(trial.legs.back());
  json metrics = json::object();
  if (job != jobs.end()) {
    for (const auto& [name, last] : job->second.metrics.items()) metrics[name] = last.at("value");
  }
  json checkpoint;
  if (trial.checkpoint) {
    checkpoint = {{"job", trial.checkpoint->job.str()},
                  {"number", trial.checkpoint->number},
                  {"step", trial.checkpoint->step},
                  {"iteration", trial.checkpoint->iteration}};
  }
  return {{"trial", trial.number},
          {"state", shown_state(trial)},
          {"reason", trial.reason},
          {"params", tune::nested(trial.params)},
          {"iteration", trial.iteration},
          {"step", trial.step ? json(*trial.step) : json()},
          {"time", trial.time},
          {"value", number_json(trial.value)},
          {"best", number_json(trial.best)},
          {"best_iteration", trial.best_iteration},
          {"metrics", std::move(metrics)},
          {"job", trial.legs.empty() ? json() : json(trial.legs.back().str())},
          {"job_state", job == jobs.end() ? json() : json(to_string(job->second.shown.state))},
          {"legs", std::move(legs)},
          {"checkpoint", std::move(checkpoint)},
          {"exploits", trial.exploits}};
}

// Of one that has ended once it has been read.
void Engine::Impl::with_search(SearchOf& search, Answer done,
                               std::function<json(const SearchOf&, const Search&)> view) {
  if (search.state) {
    done(view(search, *search.state));
    return;
  }
  read_searches({search.row}, [this, id = search.row.id, done = std::move(done),
                               view = std::move(view)](const ReadSearches& read) {
    try {
      if (read.error) throw *read.error;
      done(view(known_search(id), *read.searches.front()));
    } catch (const Error& error) {
      done(wire::error_to_json(error));
    }
  });
}

json Engine::searches(std::optional<std::size_t> most) const {
  json answer;
  answer["searches"] = impl_->search_list(most.value_or(impl_->searches.size()));
  return answer;
}

void Engine::search(const SearchId& id, std::size_t most_trials, Answer done) const {
  const std::size_t most = std::min(most_trials, kMostTrialsShown);
  impl_->with_search(
      impl_->known_search(id), std::move(done),
      [impl = impl_.get(), most](const SearchOf& search, const Search& state) {
        json all = impl->search_summary(search);
        all["spec"] = json::parse(search.row.spec, nullptr, false);
        all["scheduler_state"] = state.scheduler_state();
        // It grows as long as the search runs, and whoever wants trials looks often.
        json exploits = most == 0 ? state.exploitations() : json();
        if (!exploits.is_null()) all["exploitations"] = std::move(exploits);
        std::vector<const Trial*> order;
        for (const Trial& trial : state.trials()) order.push_back(&trial);
        const bool max = state.spec().objective.mode == tune::Mode::max;
        const auto rank = [impl, max](const Trial* trial) {
          const double value = trial->value.value_or(NAN);
          const double worst = std::isfinite(value) ? (max ? -value : value) : INFINITY;
          const std::string_view shown = impl->shown_state(*trial);
          const int place = shown == "running" ? 0 : shown == "waiting" ? 1 : 2;
          return std::tuple(place, place == 2 ? worst : 0.0, trial->number);
        };
        const std::size_t count = std::min(most, order.size());
        std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                          order.end(),
                          [&](const Trial* a, const Trial* b) { return rank(a) < rank(b); });
        json list = json::array();
        for (std::size_t i = 0; i < count; ++i) list.push_back(impl->trial_view(*order[i]));
        all["trials"] = std::move(list);
        return all;
      });
}

void Engine::search_trials(const SearchId& id, std::uint64_t from, std::size_t count,
                           Answer done) const {
  const std::size_t most = std::min(count, kMostTrialsShown);
  impl_->with_search(impl_->known_search(id), std::move(done),
                     [impl = impl_.get(), from, most](const SearchOf&, const Search& state) {
                       json list = json::array();
                       const auto& trials = state.trials();
                       for (std::uint64_t i = from; i < trials.size() && list.size() < most; ++i) {
                         list.push_back(impl->trial_view(trials[i]));
                         if (trials[i].exploits > 0) {
                           list.back()["schedule"] = state.schedule_of(i);
                         }
                       }
                       return json{{"trials", std::move(list)}, {"count", trials.size()}};
                     });
}

}  // namespace dtrain::head
