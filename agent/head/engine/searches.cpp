#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "agent/head/store/sqlite.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/tune/trial_job.hpp"
#include "launcher/wire/json.hpp"

// Searches: what happens to trials' jobs becomes a record in the same transaction, and what a
// search wants follows from its records, once what goes on now is done.
namespace dtrain::head {
namespace {

constexpr std::chrono::seconds kRoomLook{10};  // until a leg is tried again that had no room
constexpr std::size_t kLegsAtOnce = 100;       // told to stop in one turn, or on their way to begin

// "mnist-12", cut so that it is a job's name.
std::string trial_name(const std::string& search, TrialNumber number) {
  const std::string tail = "-" + std::to_string(number);
  return std::string(cut(search, limits::kNameLength - tail.size())) + tail;
}

// Throws Error where no such job can be.
JobSpec job_of(const tune::SearchSpec& search, const SearchId& id, TrialNumber number,
               const Params& params, int leg) {
  JobSpec spec = tune::trial_job(search.job, search.space, params);
  spec.name = trial_name(search.name, number);
  spec.trial = TrialOfSearch{id.str(), number, leg, wire::dump(tune::nested(params))};
  if (const std::vector<Error> problems = validate(spec); !problems.empty()) {
    throw problems.front();
  }
  return spec;
}

}  // namespace

JobSpec Engine::first_trial(const tune::SearchSpec& spec) {
  return job_of(spec, SearchId("search"), 0, Search(spec).suggest(), 1);
}

// ---- Which searches there are.

SearchOf* Engine::Impl::find_search(const SearchId& id) {
  const auto found = searches.find(id);
  return found == searches.end() ? nullptr : &found->second;
}

SearchOf& Engine::Impl::known_search(const SearchId& id) {
  SearchOf* search = find_search(id);
  if (search != nullptr && search->durable) return *search;
  throw Error(ErrorCode::not_found, "there is no search " + printable(id.str(), false))
      .with_hint("dtrain tune status lists the searches");
}

SearchOf* Engine::Impl::search_of(const Job& job) {
  if (!job.spec.is_leg()) return nullptr;
  const auto found = live_searches.find(SearchId(job.spec.trial->search));
  if (found == live_searches.end()) return nullptr;
  const Trial* trial = found->second->state->find(job.spec.trial->number);
  const bool is_newest =
      trial != nullptr && !trial->legs.empty() && trial->legs.back() == job.row.id;
  return is_newest ? found->second : nullptr;
}

std::optional<std::string> Engine::Impl::held_by_search(const Job& job) const {
  if (!job.spec.is_leg()) return std::nullopt;
  const auto found = live_searches.find(SearchId(job.spec.trial->search));
  if (found == live_searches.end()) return std::nullopt;
  return job.row.id.str() + " is of trial " + std::to_string(job.spec.trial->number) + " of " +
         found->first.str() + ", which has not ended (dtrain tune stop " + found->first.str() +
         " ends it)";
}

void Engine::Impl::load_searches(std::vector<SearchRow> rows) {
  for (SearchRow& row : rows) {
    const SearchId id = row.id;
    SearchOf& search = searches[id];
    search.row = std::move(row);
    search.order = ++last_order;
    search.durable = true;
    search.since = moments.of(search.row.since, clock.now());
    if (!search.row.submission_id.empty()) search_submissions[search.row.submission_id] = id;
    try {
      const nlohmann::json json = wire::parse_json(search.row.spec, "its spec");
      search.name = wire::get_string(json, "name");
      if (is_final(search.row.state) && search.row.state != SearchState::stopped) continue;
      tune::Problems problems;
      tune::SearchSpec spec = tune::search_spec_from_json(json, problems, UnknownKeys::ignore);
      problems.check();
      for (const std::string& tree : content_wanted(spec.job)) search.trees.insert(tree);
      if (search.row.state == SearchState::stopped) continue;
      if (!spec.job.secrets.empty()) {
        search.secrets = read_file_if_there(options.root.secrets(JobId(id.str()))).value_or("");
      }
      auto state = std::make_shared<Search>(std::move(spec));
      for (const SearchRecord& record : store->search_records(id)) state->apply(record);
      search.state = std::move(state);
      live_searches.emplace(id, &search);
    } catch (const std::exception& error) {  // one search is no reason to be without all others
      const auto* refused = dynamic_cast<const SqliteError*>(&error);
      if (refused != nullptr && refused->may_pass()) throw;
      log::error("a search cannot be read from the database",
                 {{"search", id.str()}, {"why", error.what()}});
      search.is_unread = true;
      search.row.state = SearchState::failed;
      search.row.reason = std::string("it cannot be read from the database: ") + error.what();
    }
  }
  // A database that is a copy may know one and not the other.
  for (const auto& [id, search] : live_searches) {
    const std::set<TrialNumber> now = search->state->alive();
    std::vector<SearchRecord> records;
    for (const TrialNumber number : now) {
      const Trial& trial = *search->state->find(number);
      const Job* job = trial.leg_lives ? find(trial.legs.back()) : nullptr;
      if (!trial.leg_lives || (job != nullptr && !job->ended())) continue;
      if (unread.contains(trial.legs.back())) continue;
      records.push_back(
          job == nullptr
              ? search->state->leg_ended(number, JobState::failed,
                                         trial.legs.back().str() + " is not known any more")
              : search->state->leg_ended(number, job->row.state, job->row.reason));
    }
    if (!records.empty()) commit_search(*search, {}, std::move(records), Urgency::soon);
  }
  post([this] {
    const std::map<JobId, Job*> open = live;
    for (const auto& [id, job] : open) {
      if (!job->spec.is_leg()) continue;
      const TrialOfSearch& of = *job->spec.trial;
      const SearchOf* named = find_search(SearchId(of.search));
      // Another head may be able to read it, and finds how its jobs have ended.
      if (named != nullptr && named->is_unread) continue;
      const SearchOf* its = search_of(*job);
      if (its != nullptr && its->state->find(of.number)->leg_lives) continue;
      stop(
          *job, std::nullopt, StopCause::user,
          "its search, " + of.search + (its == nullptr ? ", does not know of it" : ", has its end"),
          nullptr);
    }
    for (const auto& [id, search] : live_searches) {
      const bool lacks = !search->state->spec().job.secrets.empty() && search->secrets.empty();
      if (lacks && search->state->halt() == Search::Halt::none) {
        halt_search(*search, Search::Halt::person, "its secrets are not there any more");
      }
    }
    for (const auto& [id, search] : live_searches) post_look(id);
  });
}

// Of a job that no head can tell the end of any more.
void Engine::Impl::end_leg(const JobId& id, const std::string& reason) {
  for (const auto& [search_id, search] : live_searches) {
    const std::set<TrialNumber> now = search->state->alive();
    for (const TrialNumber number : now) {
      const Trial& trial = *search->state->find(number);
      if (!trial.leg_lives || trial.legs.back() != id) continue;
      commit_search(*search, {}, {search->state->leg_ended(number, JobState::failed, reason)},
                    Urgency::soon);
      post_look(search_id);
      return;
    }
  }
}

// ---- Records.

void Engine::Impl::keep(Tx& tx, const SearchOf& search, SearchRecord record) {
  record.search = search.row.id;
  tx.changes.search_records.push_back(std::move(record));
}

void Engine::Impl::commit_search(SearchOf& search, Changes changes,
                                 std::vector<SearchRecord> records, Urgency urgency,
                                 std::function<void()> then) {
  for (SearchRecord& record : records) {
    record.search = search.row.id;
    changes.search_records.push_back(std::move(record));
  }
  store->commit(std::move(changes), urgency, OnFailure::retry,
                when_stored("a change of " + search.row.id.str(), [then = std::move(then)] {
                  if (then) then();
                }));
}

void Engine::Impl::note_report(Tx& tx, Job& job, std::optional<std::int64_t> step,
                               const nlohmann::json& metrics) {
  SearchOf* search = search_of(job);
  if (search == nullptr) return;
  const TrialNumber number = job.spec.trial->number;
  auto record = search->state->reported(number, step, metrics);
  if (!record) return;
  keep(tx, *search, std::move(*record));
  if (search->state->to_stop().contains(number)) post_look(search->row.id);
}

void Engine::Impl::note_checkpoint(Tx& tx, Job& job, const CheckpointRow& row) {
  SearchOf* search = search_of(job);
  if (search == nullptr) return;
  auto record = search->state->checkpointed(job.spec.trial->number, row.number, row.step);
  if (record) keep(tx, *search, std::move(*record));
}

void Engine::Impl::note_leg_end(Tx& tx, Job& job) {
  SearchOf* search = search_of(job);
  if (search == nullptr) return;
  post_look(search->row.id);
  const TrialNumber number = job.spec.trial->number;
  search->told_to_stop.erase(number);
  // A search may have it already, and the job be of a copy of the database from before.
  if (!search->state->find(number)->leg_lives) return;
  keep(tx, *search, search->state->leg_ended(number, job.row.state, job.row.reason));
}

void Engine::Impl::note_leg(Tx& tx, Job& job) {
  const TrialOfSearch& of = *job.spec.trial;
  SearchOf* search = find_search(SearchId(of.search));
  if (search == nullptr || !search->state) return;
  const bool is_new = of.number == search->state->trials().size();
  if (is_new) {
    keep(tx, *search, search->state->started(search->starting.value(), job.row.id));
    search->starting.reset();
  } else {
    keep(tx, *search, search->state->goes_on_as(of.number, job.row.id));
    search->going_on.erase(of.number);
  }
  search->no_room.clear();
  post_look(search->row.id);
}

void Engine::Impl::note_no_leg(const Job& job, const Error& why) {
  if (!job.spec.is_leg()) return;
  SearchOf* search = find_search(SearchId(job.spec.trial->search));
  if (search == nullptr || !search->state) return;
  const TrialNumber number = job.spec.trial->number;
  const bool is_new = number == search->state->trials().size();
  is_new ? search->starting.reset() : void(search->going_on.erase(number));
  if (why.code() == ErrorCode::exhausted) {  // a full disk ends no trial
    search->again = clock.now() + kRoomLook;
    search->no_room = printable(why.what(), false);
    rearm();
    return;
  }
  std::vector<SearchRecord> records;
  if (is_new) records.push_back(search->state->started({}, JobId()));
  records.push_back(search->state->leg_ended(number, JobState::failed, why.what()));
  commit_search(*search, {}, std::move(records), Urgency::now);
  post_look(search->row.id);
}

// ---- What is to be done.

void Engine::Impl::post_look(const SearchId& id) {
  if (!search_looks.insert(id).second) return;
  post([this, id] {
    search_looks.erase(id);
    look_at_search(id);
  });
}

void Engine::Impl::look_at_search(const SearchId& id) {
  SearchOf* search = find_search(id);
  if (search == nullptr || !search->durable || !search->state) return;
  stop_legs(*search);
  if (search->again && *search->again > clock.now()) {
    if (search->state->halt() == Search::Halt::none) return;
  }
  search->again.reset();
  if (!shutting_down) begin_next_legs(*search);
  // One at a time: what chooses its parameters takes milliseconds.
  if (!shutting_down && has_place(*search)) {
    if (auto record = search->state->resumed()) {
      commit_search(*search, {}, {std::move(*record)}, Urgency::soon);
      post_look(id);
      return;
    }
    if (search->state->more()) {
      begin_trial(*search);
      return;
    }
  }
  if (search->starting || !search->going_on.empty() || !search->state->alive().empty()) return;
  if (auto record = search->state->resumed()) {
    commit_search(*search, {}, {std::move(*record)}, Urgency::soon);
    post_look(id);
  } else if (const auto ending = search->state->ending()) {
    end_search(*search, *ending);
  }
}

// Each that has begun, or cannot, has it looked at again.
void Engine::Impl::begin_next_legs(SearchOf& search) {
  std::vector<TrialNumber> next;
  for (const TrialNumber number : search.state->to_go_on()) {
    if (search.going_on.size() + next.size() >= kLegsAtOnce) break;
    if (search.going_on.contains(number)) continue;
    const Job* old = find(search.state->find(number)->legs.back());
    if (old != nullptr && !old->ended()) continue;  // load_searches(): it is being stopped
    next.push_back(number);
  }
  for (const TrialNumber number : next) begin_next_leg(search, number);
}

bool Engine::Impl::has_place(const SearchOf& search) {
  if (search.starting || search.state->halt() != Search::Halt::none || !closed.empty()) {
    return false;
  }
  const auto& alive_trials = search.state->alive();
  if (const auto most = search.state->spec().max_concurrent) {
    return alive_trials.size() < static_cast<std::size_t>(*most);
  }
  std::size_t wait = 0;
  for (const TrialNumber number : alive_trials) {
    const Trial& trial = *search.state->find(number);
    const Job* job = trial.leg_lives ? find(trial.legs.back()) : nullptr;
    wait += job == nullptr || job->row.state == JobState::queued ? 1 : 0;
  }
  constexpr std::size_t kLeastWaiting = 2;  // so that machines are asked for
  return wait < std::max(alive_trials.size() - wait, kLeastWaiting);
}

void Engine::Impl::stop_legs(SearchOf& search) {
  const std::set<TrialNumber>& all = search.state->to_stop();
  if (search.told_to_stop.size() == all.size()) return;  // none is told that is not among all
  std::vector<TrialNumber> next;
  for (const TrialNumber number : all) {
    const Job* job = find(search.state->find(number)->legs.back());
    if (search.told_to_stop.contains(number) || (job != nullptr && !job->durable)) continue;
    next.push_back(number);
    if (next.size() < kLegsAtOnce) continue;
    post_look(search.row.id);
    break;
  }
  const bool halted = search.state->halt() != Search::Halt::none;
  const auto grace = halted ? search.state->halt_grace() : std::nullopt;
  for (const TrialNumber number : next) {
    search.told_to_stop.insert(number);
    const Trial& trial = *search.state->find(number);
    Job* job = find(trial.legs.back());
    if (job == nullptr || job->ended()) continue;
    const bool is_told = job->row.stop_cause != StopCause::none;
    if (is_told && (!grace || job->row.stop_grace_s == grace->count())) continue;
    const std::string why = trial.fate == Trial::Fate::none || trial.reason.empty()
                                ? search.state->halt_reason()
                                : trial.reason;
    stop(*job, grace, StopCause::user, "stopped by its search: " + why, nullptr);
  }
}

void Engine::Impl::begin_trial(SearchOf& search) {
  const TrialNumber number = search.state->trials().size();
  try {
    const Params params = search.state->suggest();
    JobSpec spec = job_of(search.state->spec(), search.row.id, number, params, 1);
    if (spec.start) check_source(*spec.start);
    search.starting = params;
    add_leg(search, std::move(spec));
  } catch (const std::exception& error) {
    std::vector<SearchRecord> records;
    records.push_back(search.state->started({}, JobId()));
    records.push_back(search.state->leg_ended(number, JobState::failed, as_error(error).what()));
    commit_search(search, {}, std::move(records), Urgency::soon);
    post_look(search.row.id);
  }
}

void Engine::Impl::begin_next_leg(SearchOf& search, TrialNumber number) {
  const Trial& trial = *search.state->find(number);
  try {
    JobSpec spec =
        job_of(search.state->spec(), search.row.id, number,
               trial.next_params.value_or(trial.params), static_cast<int>(trial.legs.size()) + 1);
    const Job* old = find(trial.legs.back());
    if (trial.from) {
      spec.start = StartCheckpoint{trial.from->job.str(), trial.from->number, "", ""};
    } else if (old != nullptr && old->durable) {
      spec.resumes = old->row.id.str();
      spec.start = old->spec.start;
    }  // else it was removed, and the trial begins anew
    if (spec.start && spec.resumes.empty()) check_source(*spec.start);
    add_leg(search, std::move(spec));
  } catch (const std::exception& error) {
    commit_search(search, {},
                  {search.state->leg_ended(number, JobState::failed, as_error(error).what())},
                  Urgency::soon);
    post_look(search.row.id);
  }
}

void Engine::Impl::add_leg(SearchOf& search, JobSpec spec) {
  if (spec.trial->leg > 1) search.going_on.insert(spec.trial->number);
  Job& job = add_job(std::move(spec), "");
  if (search.secrets.empty()) {
    prepare_submitted(job);
  } else {
    keep_secrets(job, search.secrets);
  }
}

void Engine::Impl::end_search(SearchOf& search, const Search::Ending& ending) {
  std::vector<SearchRecord> records;
  records.push_back(search.state->ended(ending.state, ending.reason));
  search.row.state = ending.state;
  search.row.reason = printable(ending.reason);
  search.row.ended = clock.wall();
  search.row.summary = wire::dump(counted(search, *search.state));
  if (ending.state != SearchState::stopped) search.trees.clear();
  search.secrets.clear();
  search.told_to_stop.clear();
  Changes changes;
  changes.searches.push_back(search.row);
  commit_search(search, std::move(changes), std::move(records), Urgency::now,
                [this, id = search.row.id] {
                  // It may have been resumed since, with others.
                  const SearchOf* now = find_search(id);
                  if (now != nullptr && (now->state || now->being_read)) return;
                  std::error_code ignored;
                  fs::remove(options.root.secrets(JobId(id.str())), ignored);
                });
  live_searches.erase(search.row.id);
  search.state.reset();
  check_drained();
}

void Engine::Impl::halt_search(SearchOf& search, Search::Halt why, const std::string& reason,
                               std::optional<std::chrono::seconds> grace,
                               std::function<void()> then) {
  std::vector<SearchRecord> records;
  records.push_back(search.state->halted(why, reason, grace));
  search.told_to_stop.clear();  // those that the scheduler stops too
  search.row.state = SearchState::stopping;
  search.row.reason = printable(reason);
  Changes changes;
  changes.searches.push_back(search.row);
  commit_search(search, std::move(changes), std::move(records), Urgency::now, std::move(then));
  post_look(search.row.id);
}

std::optional<Monotonic> Engine::Impl::budget_ends(const SearchOf& search) const {
  if (!search.durable || !search.state->spec().time_budget ||
      search.state->halt() != Search::Halt::none) {
    return std::nullopt;
  }
  return search.since + *search.state->spec().time_budget;
}

}  // namespace dtrain::head
