#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// What users ask of searches: docs/api.md.
namespace dtrain::head {
namespace {

using nlohmann::json;

json answer_to(const SearchOf& search) {
  return {{"search", search.row.id.str()},
          {"name", search.name},
          {"state", to_string(search.row.state)}};
}

std::uint64_t drawn_seed() {
  constexpr std::size_t kBytes = 4;  // that a person can type
  return std::stoull(random_hex(kBytes), nullptr, 16);
}

// "accuracy (max)", of a search's spec: by it values are compared.
std::string aim_of(const json& spec) {
  return printable(wire::get_string(spec, "metric"), false) + " (" +
         wire::get_string(spec, "mode") + ")";
}

// What a new search learns of an old one.
std::vector<std::pair<Params, tune::Outcome>> outcomes_of(const Search& search) {
  std::vector<std::pair<Params, tune::Outcome>> all;
  for (const Trial& trial : search.trials()) {
    // Where parameters changed under way, nobody knows what the value is of.
    const auto outcome = Search::outcome_of(trial);
    if (outcome && trial.exploits == 0) all.emplace_back(trial.params, *outcome);
  }
  return all;
}

}  // namespace

// ---- Asked for.

void Engine::Impl::submit_search(const std::string& submission_id, tune::SearchSpec spec,
                                 const std::map<std::string, std::string>& secrets, Answer done) {
  if (const auto known = search_submissions.find(submission_id);
      !submission_id.empty() && known != search_submissions.end()) {
    SearchOf& search = searches.at(known->second);
    if (search.durable) {
      done(answer_to(search));
    } else {
      wait_for_submission(search.waiting, std::move(done));
    }
    return;
  }
  check_open();
  check_submission_id(submission_id);
  if (!spec.search.seed) spec.search.seed = drawn_seed();
  const JobSpec first = first_trial(spec);
  check_secrets(spec.job, secrets);
  check_launcher(first);
  check_origin(first);
  std::vector<SearchRow> teachers;
  for (const std::string& name : spec.warm_start) {
    const SearchOf& teacher = known_search(SearchId(name));
    if (!is_final(teacher.row.state)) {
      throw Error(ErrorCode::conflict, name + " is " + to_string(teacher.row.state) +
                                           ": only of a search that has ended can be learned");
    }
    const std::string aim = aim_of(wire::parse_json(teacher.row.spec, "the spec of " + name));
    if (const std::string own = aim_of(tune::to_json(spec)); aim != own) {
      throw Error(ErrorCode::conflict, "nothing can be learned of " + name + ", which is for " +
                                           aim + ", by a search for " + own);
    }
    teachers.push_back(teacher.row);
  }

  SearchId id = make_search_id(spec.name);
  const auto is_known = [this](const SearchId& each) {
    const JobId as_job(each.str());
    return searches.contains(each) || jobs.contains(as_job) || forgotten.contains(as_job);
  };
  while (is_known(id)) id = make_search_id(spec.name);
  see_clock();
  SearchOf& search = searches[id];
  search.row.id = id;
  search.row.submission_id = submission_id;
  search.row.spec = wire::dump(tune::to_json(spec));
  search.row.created = search.row.since = clock.wall();
  search.since = clock.now();
  search.name = spec.name;
  search.order = ++last_order;
  for (const std::string& tree : content_wanted(spec.job)) search.trees.insert(tree);
  if (!secrets.empty()) search.secrets = wire::dump(json(secrets));
  search.waiting.push_back(std::move(done));
  search.state = std::make_shared<Search>(std::move(spec));
  if (!submission_id.empty()) search_submissions[submission_id] = id;

  const auto learn = [this, id, teachers](const std::optional<Error>& failure) {
    if (failure || teachers.empty()) {
      failure ? search_submitted(id, std::make_exception_ptr(*failure)) : keep_search(id, {});
      return;
    }
    read_searches(teachers, [this, id](const ReadSearches& read) {
      SearchOf* learning = find_search(id);
      if (read.error) {
        search_submitted(id, std::make_exception_ptr(*read.error));
        return;
      }
      std::vector<SearchRecord> records;
      for (const auto& teacher : read.searches) {
        for (const auto& [params, outcome] : outcomes_of(*teacher)) {
          records.push_back(learning->state->learned(params, outcome));
        }
      }
      keep_search(id, std::move(records));
    });
  };
  if (search.secrets.empty()) {
    learn(std::nullopt);
  } else {
    write_secrets(options.root.secrets(JobId(id.str())), search.secrets, learn);
  }
}

void Engine::Impl::keep_search(const SearchId& id, std::vector<SearchRecord> learned) {
  Changes changes;
  for (SearchRecord& record : learned) {
    record.search = id;
    changes.search_records.push_back(std::move(record));
  }
  changes.searches.push_back(searches.at(id).row);
  const std::weak_ptr<int> guard = alive;
  store->commit(std::move(changes), Urgency::now, OnFailure::refuse,
                [this, guard, id, post_out = hooks.post](std::exception_ptr failure) {
                  post_out([this, guard, id, failure] {
                    if (guard.lock()) search_submitted(id, failure);
                  });
                });
}

void Engine::Impl::search_submitted(const SearchId& id, std::exception_ptr failure) {
  SearchOf& search = searches.at(id);
  const std::vector<Answer> answers = std::exchange(search.waiting, {});
  json answer;
  if (failure) {
    std::error_code ignored;
    fs::remove(options.root.secrets(JobId(id.str())), ignored);
    search_submissions.erase(search.row.submission_id);
    searches.erase(id);
    answer = wire::error_to_json(error_of(failure));
  } else {
    search.durable = true;
    live_searches.emplace(id, &search);
    answer = answer_to(search);
  }
  for (const Answer& each : answers) each(answer);
  if (failure) return;
  if (shutting_down) {
    halt_search(search, Search::Halt::person, "the cluster is being shut down");
  }
  post_look(id);
  rearm();
}

void Engine::Impl::stop_search(SearchOf& search, std::optional<std::chrono::seconds> grace,
                               const std::string& reason, Answer done) {
  const auto answer = [this, id = search.row.id, done] {
    const SearchOf* stopped = find_search(id);
    if (done && stopped != nullptr) done(search_summary(*stopped));
  };
  if (search.being_read) {
    throw Error(ErrorCode::conflict,
                search.row.id.str() + " is about to go on: it can be stopped then");
  }
  const bool ends = is_final(search.row.state) || search.state->halt() != Search::Halt::none;
  if (!ends) {
    halt_search(search, Search::Halt::person, reason, grace, answer);
    return;
  }
  // It may be on its way to the disk. Those of its trials that still end may be hurried.
  std::vector<SearchRecord> records;
  if (grace && search.state) {
    records.push_back(
        search.state->halted(search.state->halt(), search.state->halt_reason(), grace));
    search.told_to_stop.clear();
    post_look(search.row.id);
  }
  commit_search(search, {}, std::move(records), Urgency::now, answer);
}

void Engine::Impl::resume_search(SearchOf& search,
                                 const std::map<std::string, std::string>& secrets, Answer done) {
  check_open();
  const SearchId id = search.row.id;
  if (search.row.state != SearchState::stopped || search.being_read) {
    throw Error(ErrorCode::conflict,
                id.str() + " is " +
                    (search.being_read ? "going on already" : to_string(search.row.state)) +
                    ": only one that was stopped can go on");
  }
  search.being_read = true;
  const auto refuse = [this, id, done](const Error& why) {
    find_search(id)->being_read = false;
    std::error_code ignored;
    fs::remove(options.root.secrets(JobId(id.str())), ignored);
    done(wire::error_to_json(why));
  };
  read_searches({search.row}, [this, id, secrets, done, refuse](const ReadSearches& read) {
    try {
      if (read.error) throw *read.error;
      check_secrets(read.searches.front()->spec().job, secrets);
    } catch (const Error& error) {
      refuse(error);
      return;
    }
    const std::string text = secrets.empty() ? "" : wire::dump(json(secrets));
    const auto go_on = [this, id, state = read.searches.front(), text, done,
                        refuse](const std::optional<Error>& failure) {
      try {
        if (failure) throw *failure;
        check_open();  // it has been a while
      } catch (const Error& error) {
        refuse(error);
        return;
      }
      go_on_with(id, state, text, done);
    };
    if (text.empty()) {
      go_on(std::nullopt);
    } else {
      write_secrets(options.root.secrets(JobId(id.str())), text, go_on);
    }
  });
}

void Engine::Impl::go_on_with(const SearchId& id, std::shared_ptr<Search> state,
                              std::string secrets, Answer done) {
  SearchOf* search = find_search(id);  // nobody removes it while it is read
  search->being_read = false;
  search->state = std::move(state);
  search->secrets = std::move(secrets);
  live_searches.emplace(id, search);
  std::vector<SearchRecord> records;
  records.push_back(search->state->continued());
  search->row.state = SearchState::running;
  search->row.reason.clear();
  search->row.summary.clear();
  search->row.ended.reset();
  search->row.since = clock.wall();
  search->since = clock.now();
  Changes changes;
  changes.searches.push_back(search->row);
  commit_search(*search, std::move(changes), std::move(records), Urgency::now, [this, id, done] {
    const SearchOf* told = find_search(id);
    if (told != nullptr) done(search_summary(*told));
  });
  post_look(id);
  rearm();
}

// Its jobs first: a head that dies in between has the search yet, and can be asked again.
void Engine::Impl::remove_search(SearchOf& search, Answer done) {
  const SearchId id = search.row.id;
  if (!is_final(search.row.state) || search.being_read) {
    throw Error(ErrorCode::conflict, id.str() + " is " + to_string(search.row.state))
        .with_hint("dtrain tune stop " + id.str() + " ends it");
  }
  const Holds held = holds();
  std::vector<Job*> legs;
  for (auto& [job_id, job] : jobs) {
    if (!job.spec.is_leg() || job.spec.trial->search != id.str()) continue;
    if (!is_final(job.shown.state)) {
      throw Error(ErrorCode::conflict, job_id.str() + " is " + to_string(job.shown.state));
    }
    if (const auto why = held_by(job, held)) throw Error(ErrorCode::conflict, *why);
    legs.push_back(&job);
  }
  for (Job* job : legs) remove(*job, "", held, nullptr);
  search_submissions.erase(search.row.submission_id);
  searches.erase(id);
  Changes changes;
  changes.searches_forgotten.push_back(id);
  // Nor does its id come again.
  const ForgottenRow gone{JobId(id.str()), clock.wall(), ""};
  forgotten[gone.job] = gone;
  changes.jobs_forgotten.push_back(gone);
  store->commit(std::move(changes), Urgency::now, OnFailure::retry,
                when_stored("the end of " + id.str(), [id, done] {
                  if (done) done({{"search", id.str()}, {"removed", true}});
                }));
}

// ---- The public face.

json Engine::plan_search(const tune::SearchSpec& spec) const {
  tune::SearchSpec seeded = spec;
  if (!seeded.search.seed) seeded.search.seed = 0;
  const JobSpec first = first_trial(seeded);
  json answer = plan(first);
  answer["total"] = spec.trials();
  answer["params"] = json::parse(first.trial->params);
  return answer;
}

void Engine::submit_search(const std::string& submission_id, tune::SearchSpec spec,
                           const std::map<std::string, std::string>& secrets, Answer done) {
  impl_->submit_search(submission_id, std::move(spec), secrets, std::move(done));
}

void Engine::stop_search(const SearchId& id, std::optional<std::chrono::seconds> grace,
                         Answer done) {
  impl_->stop_search(impl_->known_search(id), grace, "stopped by the user", std::move(done));
}

void Engine::resume_search(const SearchId& id, const std::map<std::string, std::string>& secrets,
                           Answer done) {
  impl_->resume_search(impl_->known_search(id), secrets, std::move(done));
}

void Engine::remove_search(const SearchId& id, Answer done) {
  impl_->remove_search(impl_->known_search(id), std::move(done));
}

std::optional<SearchId> Engine::open_search() const {
  if (impl_->live_searches.empty()) return std::nullopt;
  return impl_->live_searches.begin()->first;
}

}  // namespace dtrain::head
