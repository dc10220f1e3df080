#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// What users ask for: submit, stop, remove.
namespace dtrain::head {
namespace {

constexpr std::size_t kMaxWaitingSubmitters = 100;  // of one submission_id that is being written
constexpr std::size_t kLongestSubmission = 256;

}  // namespace

Error error_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return as_defect(error);
  }
}

void check_submission_id(const std::string& id) {
  if (id.size() > kLongestSubmission) {
    throw Error(ErrorCode::invalid, "\"submission_id\" is longer than 256 bytes");
  }
}

void wait_for_submission(std::vector<Engine::Answer>& waiting, Engine::Answer done) {
  if (waiting.size() >= kMaxWaitingSubmitters) {
    throw Error(ErrorCode::conflict, "this submission is being written already");
  }
  waiting.push_back(std::move(done));
}

void Engine::Impl::submit(const std::string& submission_id, JobSpec spec,
                          const std::map<std::string, std::string>& secrets, Answer done) {
  if (const auto known = submissions.find(submission_id);
      !submission_id.empty() && known != submissions.end()) {
    Job& job = jobs.at(known->second);
    if (!job.durable) {
      wait_for_submission(job.submitters, std::move(done));
      return;
    }
    done({{"job", job.row.id.str()},
          {"name", job.spec.name},
          {"state", to_string(job.shown.state)}});
    return;
  }
  check_open();
  check_submission_id(submission_id);
  if (spec.trial) own_trial(spec);
  if (const std::vector<Error> problems = validate(spec); !problems.empty()) {
    Error error = problems.front();
    if (problems.size() > 1) {
      error.while_doing("checking the job (and " + std::to_string(problems.size() - 1) +
                        " more problems)");
    }
    throw error;
  }
  check_secrets(spec, secrets);
  for (const std::string& other : spec.after) {
    const Job* before = find(JobId(other));
    if (before == nullptr || !before->durable) {
      throw Error(ErrorCode::not_found,
                  "there is no job " + printable(other, false) + " to come after")
          .with_hint("\"after\" takes whole job ids; dtrain status lists them");
    }
  }

  check_launcher(spec);
  check_origin(spec);

  Job& job = add_job(std::move(spec), submission_id);
  job.submitters.push_back(std::move(done));
  if (secrets.empty()) {
    prepare_submitted(job);
  } else {
    keep_secrets(job, wire::dump(nlohmann::json(secrets)));
  }
}

// What a search began, a person may go on with; it is no part of the search then.
void Engine::Impl::own_trial(JobSpec& spec) {
  const Job* old = find(JobId(spec.resumes));
  if (old == nullptr || !old->spec.trial || old->spec.trial->search != spec.trial->search ||
      old->spec.trial->number != spec.trial->number) {
    throw Error(ErrorCode::invalid, "trial: is set by a search for the jobs that it begins");
  }
  spec.trial = old->spec.trial;
  spec.trial->leg = 0;
}

void Engine::Impl::check_open() const {
  if (shutting_down) throw Error(ErrorCode::conflict, "the cluster is being shut down");
  if (closed.empty()) return;
  throw Error(ErrorCode::conflict, "the cluster is going down: " + closed)
      .with_hint("dtrain up CLUSTER.yaml brings it back");
}

void Engine::Impl::check_secrets(const JobSpec& spec,
                                 const std::map<std::string, std::string>& secrets) {
  std::set<std::string> names;
  for (const SecretSpec& secret : spec.secrets) {
    names.insert(secret.name);
    if (!secrets.contains(secret.name)) {
      throw Error(ErrorCode::invalid, "the value of the secret " + secret.name + " is missing");
    }
  }
  for (const auto& [name, value] : secrets) {
    if (!names.contains(name)) {
      throw Error(ErrorCode::invalid,
                  "a secret " + printable(name, false) + " is not in the job's list");
    }
    if (value.find('\0') != std::string::npos) {
      throw Error(ErrorCode::invalid, "the secret " + name + " has a NUL byte in it");
    }
  }
}

Job& Engine::Impl::add_job(JobSpec spec, const std::string& submission_id) {
  JobId id = make_job_id(spec.name);
  while (jobs.contains(id) || forgotten.contains(id) || unknown.contains(id)) {
    id = make_job_id(spec.name);
  }
  Job& job = jobs[id];
  job.row.id = id;
  job.row.submission_id = submission_id;
  job.row.spec = wire::dump(to_json(spec));
  see_clock();
  job.row.created = clock.wall();
  job.row.metrics = "{}";
  job.spec = std::move(spec);
  job.order = ++last_order;
  job.created_at = clock.now();
  submitting.insert(id);
  if (!submission_id.empty()) submissions[submission_id] = id;
  return job;
}

void Engine::Impl::write_secrets(const fs::path& path, std::string text,
                                 std::function<void(std::optional<Error>)> done) {
  work<std::optional<Error>>(
      quick,
      [path, text = std::move(text)]() -> std::optional<Error> {
        try {
          make_folders(path.parent_path());
          write_file_atomic(path, text, 0600);
          return std::nullopt;
        } catch (const std::exception& error) {
          return as_error(error);
        }
      },
      std::move(done));
}

void Engine::Impl::keep_secrets(Job& job, std::string text) {
  write_secrets(options.root.secrets(job.row.id), std::move(text),
                [this, id = job.row.id](std::optional<Error> failure) {
                  if (failure) {
                    submitted(id, std::make_exception_ptr(*failure));
                  } else if (Job* kept = find(id)) {
                    prepare_submitted(*kept);
                  }
                });
}

void Engine::Impl::prepare_submitted(Job& job) {
  if (job.spec.resumes.empty() && !job.spec.start) {
    keep_submitted(job, {});
  } else {
    take_over(job);
  }
}

void Engine::Impl::keep_submitted(Job& job, Tx tx) {
  const JobId id = job.row.id;
  note(tx, job, EventLevel::info, "submitted");
  EventRow state;
  state.id = ++last_event;
  state.job = id;
  state.time = job.row.created;
  state.kind = EventKind::state;
  state.message = to_string(job.row.state);
  tx.changes.events.push_back(state);
  tx.changes.jobs.push_back(job.row);
  const bool is_leg = job.spec.is_leg();
  if (is_leg) note_leg(tx, job);
  const std::weak_ptr<int> guard = alive;
  // Its effects are not in the outbox yet: they are dropped if the store refuses. A search counts
  // on what it has begun.
  store->commit(std::move(tx.changes), Urgency::now, is_leg ? OnFailure::retry : OnFailure::refuse,
                [this, guard, id, post_out = hooks.post,
                 effects = std::move(tx.effects)](std::exception_ptr failure) {
                  post_out([this, guard, id, failure, effects] {
                    if (!guard.lock()) return;
                    submitted(id, failure);
                    if (failure) return;
                    for (const auto& effect : effects) effect();
                    schedule();
                    rearm();
                  });
                });
}

void Engine::Impl::submitted(const JobId& id, std::exception_ptr failure) {
  Job* job = find(id);
  if (job == nullptr) return;
  const std::vector<Answer> answers = std::move(job->submitters);
  job->submitters.clear();
  submitting.erase(id);
  nlohmann::json answer;
  if (failure) {
    note_no_leg(*job, error_of(failure));
    std::error_code ignored;
    fs::remove(options.root.secrets(id), ignored);
    submissions.erase(job->row.submission_id);
    drop_storage(*job);
    jobs.erase(id);
    answer = wire::error_to_json(error_of(failure));
  } else {
    job->durable = true;
    live.emplace(id, job);
    if (const SearchOf* search = search_of(*job)) post_look(search->row.id);
    answer = {{"job", id.str()}, {"name", job->spec.name}, {"state", to_string(job->row.state)}};
  }
  failpoint("submit.answer.before");
  for (const Answer& each : answers) each(answer);
  failpoint("submit.answer.after");
  if (failure) {
    check_drained();
  } else if (shutting_down) {
    stop(*job, std::nullopt, StopCause::user, "the cluster is being shut down", nullptr);
  }
}

void Engine::Impl::stop(Job& job, std::optional<std::chrono::seconds> grace, StopCause cause,
                        const std::string& reason, Answer done) {
  const JobId id = job.row.id;
  const auto answer = [this, id, done] {
    Job* stopped = find(id);
    if (done && stopped != nullptr) done(summary(*stopped));
  };
  if (job.ended()) {
    // It may be on its way to the disk: the answer comes after what it says is durable.
    Tx tx;
    tx.effects.push_back(answer);
    commit(job, std::move(tx), Urgency::now);
    return;
  }
  Tx tx;
  if (job.row.stop_cause == StopCause::none) job.row.stop_cause = cause;
  if (grace) job.row.stop_grace_s = grace->count();
  tx.job = true;
  const bool waits = job.row.state == JobState::queued || job.row.state == JobState::restarting;
  if (waits) {
    if (job.preparing) {
      job.attempts.pop_back();
      job.preparing = false;
    }
    const bool timed_out = cause == StopCause::timeout;
    note(tx, job, timed_out ? EventLevel::error : EventLevel::info, reason);
    if (timed_out) {
      job.row.error = wire::dump(error_without_rank(reason, job.row.attempt));
    }
    enter(tx, job, timed_out ? JobEvent::fail : JobEvent::end_stopped, reason);
  } else if (job.row.state != JobState::stopping) {
    note(tx, job, EventLevel::info, reason);
    enter(tx, job, JobEvent::stop, reason);
    Attempt* attempt = job.live_attempt();
    if (attempt != nullptr && !attempt->ending()) enter(tx, *attempt, AttemptEvent::stop);
  }
  // Told to the ranks only when it is durable: else a head that dies now would start them again.
  tx.effects.push_back([this, id] {
    Job* stopped = find(id);
    if (stopped == nullptr) return;
    if (Attempt* attempt = stopped->live_attempt(); attempt != nullptr && attempt->durable) {
      send_stops(*stopped, *attempt, NodeId());
      advance(*stopped, *attempt);
    }
  });
  tx.effects.push_back(answer);
  commit(job, std::move(tx), Urgency::now);
  schedule();
  rearm();
}

void Engine::Impl::remove(Job& job, const std::string& reason, const Holds& held, Answer done) {
  const JobId id = job.row.id;
  if (!is_final(job.shown.state)) {
    throw Error(ErrorCode::conflict, id.str() + " is " + to_string(job.shown.state))
        .with_hint("dtrain stop " + id.str() + " ends it");
  }
  if (const auto why = held_by(job, held)) throw Error(ErrorCode::conflict, *why);
  std::set<NodeId> used;
  for (const Attempt& attempt : job.attempts) {
    for (const Share& share : attempt.shares) used.insert(share.row.node);
  }
  used.insert(job.spared.begin(), job.spared.end());
  // Out of sight at once; a head that dies before the commit shows it again.
  submissions.erase(job.row.submission_id);
  jobs.erase(id);
  forget(id, used, reason, std::move(done));
}

// Its ranks have the time to end that their job would give them.
void Engine::Impl::stop_unread(const JobId& id, std::optional<std::chrono::seconds> grace,
                               const Answer& done) {
  wire::StopRanks stop;
  stop.grace = grace;
  stop.reason = "stopped by the user";
  for (const auto& [node, state] : nodes) {
    for (const auto& [job, attempt] : state.leftovers) {
      if (job == id) nodes_out.send(node, job, attempt, stop);
    }
  }
  if (done) done({{"job", id.str()}, {"state", "stopping"}});
}

void Engine::Impl::remove_unknown(const JobId& id, Answer done) {
  std::set<NodeId> used;
  for (const std::string& where : unknown.at(id)) {
    if (nodes.contains(NodeId(where))) used.insert(NodeId(where));
  }
  for (const auto& [node, state] : nodes) {
    for (const auto& [job, attempt] : state.leftovers) {
      if (job != id) continue;
      throw Error(ErrorCode::conflict, id.str() + " still runs on " + node.str())
          .with_hint("dtrain stop " + id.str() + " ends its ranks");
    }
  }
  unknown.erase(id);
  if (unread.erase(id) > 0) end_leg(id, id.str() + " was removed");
  std::error_code ignored;
  fs::remove(options.root.secrets(id), ignored);
  forget(id, used, "", std::move(done));
}

void Engine::Impl::forget(const JobId& id, const std::set<NodeId>& used, const std::string& reason,
                          Answer done) {
  const ForgottenRow row{id, clock.wall(), reason};
  forgotten[id] = row;
  Changes changes;
  changes.jobs_forgotten.push_back(row);
  const std::weak_ptr<int> guard = alive;
  store->commit(
      std::move(changes), Urgency::now, OnFailure::retry,
      [this, guard, id, used, done, post_out = hooks.post](std::exception_ptr) {
        post_out([this, guard, id, used, done] {
          if (!guard.lock()) return;
          for (const NodeId& node : used) clear_forgotten(node, {id});
          // Checkpoints elsewhere than in the head's own storage are the user's.
          tidy.add([storage = options.root.storage(id), mirror = options.root.mirror(id), id] {
            try {
              remove_tree(storage);
              remove_tree(mirror);
            } catch (const Error& error) {
              log::warn("a job's files stay", {{"job", id.str()}, {"why", error.what()}});
            }
          });
          if (done) done({{"job", id.str()}, {"removed", true}});
        });
      });
}

void Engine::Impl::stop_all(Answer done) {
  shutting_down = true;
  drained.push_back(std::move(done));
  for (const auto& [id, search] : live_searches) {
    if (search->state->halt() == Search::Halt::none) {
      halt_search(*search, Search::Halt::person, "the cluster is being shut down");
    }
  }
  const std::map<JobId, Job*> now = live;
  for (const auto& [id, each] : now) {
    Job& job = *each;
    if (job.durable && job.row.state != JobState::stopping) {
      stop(job, std::nullopt, StopCause::user, "the cluster is being shut down", nullptr);
    }
  }
  check_drained();
}

// All jobs have ended, and the world has been told so.
void Engine::Impl::check_drained() {
  if (drained.empty()) return;
  for (const auto& [id, job] : jobs) {
    if (!is_final(job.shown.state)) return;
  }
  const std::vector<Answer> answers = std::move(drained);
  drained.clear();
  for (const Answer& answer : answers) answer({{"stopped", true}});
}

}  // namespace dtrain::head
