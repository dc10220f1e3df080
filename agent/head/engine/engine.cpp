#include "agent/head/engine/engine.hpp"

#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

const char* level_name(EventLevel level) {
  switch (level) {
    case EventLevel::info:
      return "info";
    case EventLevel::warning:
      return "warning";
    case EventLevel::error:
      return "error";
  }
  return "error";
}

}  // namespace

const Share* Attempt::share(const NodeId& node) const {
  for (std::size_t i = places.size(); i < shares.size(); ++i) places.emplace(shares[i].row.node, i);
  const auto found = places.find(node);
  return found == places.end() ? nullptr : &shares[found->second];
}

Share* Attempt::share(const NodeId& node) {
  return const_cast<Share*>(std::as_const(*this).share(node));
}

void Attempt::lose(const NodeId& node, Monotonic heard) {
  if (!lost.empty() && lost_since <= heard) return;
  lost = node;
  lost_since = heard;
}

const Attempt* Job::live_attempt() const {
  if (attempts.empty() || attempts.back().row.ended) return nullptr;
  return &attempts.back();
}

Attempt* Job::live_attempt() {
  return const_cast<Attempt*>(std::as_const(*this).live_attempt());
}

Attempt* Job::find_attempt(int number) {
  for (Attempt& attempt : attempts) {
    if (attempt.row.attempt == number) return &attempt;
  }
  return nullptr;
}

namespace {

// Of a file that only helps: what cannot be read is not there.
std::string text_of(const fs::path& file) {
  try {
    return read_file_if_there(file).value_or("");
  } catch (const Error& error) {
    log::warn("what was known of the clock cannot be read", {{"why", error.what()}});
    return {};
  }
}

}  // namespace

Engine::Impl::Impl(EngineOptions o, const Clock& c, Nodes& n, Hooks h, std::unique_ptr<Store> s)
    : options(std::move(o)),
      clock(c),
      nodes_out(n),
      hooks(std::move(h)),
      started(clock.wall()),
      head_epoch(started.time_since_epoch() - clock.boot()),
      moments(boot_id(), text_of(options.root.clock())),
      next_housekeeping(clock.now()),
      next_disk_look(clock.now()),
      store(std::move(s)) {}

Engine::Impl::~Impl() {
  alive.reset();
}

Job* Engine::Impl::find(const JobId& id) {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : &found->second;
}

std::vector<JobId> Engine::Impl::jobs_on(const NodeId& node) const {
  std::vector<JobId> there;
  for (const auto& [id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt != nullptr && attempt->share(node) != nullptr) there.push_back(id);
  }
  return there;
}

const Job& Engine::Impl::known(const JobId& id) const {
  const auto found = jobs.find(id);
  if (const auto gone = forgotten.find(id); gone != forgotten.end()) {
    const std::string why = gone->second.reason;
    throw Error(ErrorCode::not_found, "the job " + id.str() + " was removed on " +
                                          rfc3339(gone->second.time) +
                                          (why.empty() ? "" : ": " + why));
  }
  if (found == jobs.end() || !found->second.durable) {
    throw Error(ErrorCode::not_found, "there is no job " + printable(id.str(), false))
        .with_hint("dtrain status lists the jobs");
  }
  return found->second;
}

Job& Engine::Impl::known(const JobId& id) {
  return const_cast<Job&>(std::as_const(*this).known(id));
}

// ---- What happened goes to the store, and from there to the world.

void Engine::Impl::post(std::function<void()> task) {
  hooks.post([guard = std::weak_ptr<int>(alive), task = std::move(task)] {
    if (guard.lock()) task();
  });
}

std::function<void(std::exception_ptr)> Engine::Impl::when_stored(const std::string& what,
                                                                  std::function<void()> task) {
  return [guard = std::weak_ptr<int>(alive), what, task = std::move(task),
          post_out = hooks.post](std::exception_ptr failure) {
    // Not the disk's fault, or it would be tried again: our defect. What happened still happened.
    if (failure) log::error("a change could not be kept", {{"what", what}});
    post_out([guard, task] {
      if (guard.lock()) task();
    });
  };
}

void Engine::Impl::commit(Job& job, Tx tx, Urgency urgency) {
  see_clock();
  if (tx.job) {
    job.row.metrics = wire::dump(job.metrics);
    tx.changes.jobs.push_back(job.row);
  }
  const std::uint64_t number = ++commits;
  const bool gates = urgency == Urgency::now;
  for (std::function<void()>& effect : tx.effects) {
    job.outbox.push_back({gates ? number : 0, std::move(effect)});
  }
  const JobId id = job.row.id;
  store->commit(std::move(tx.changes), urgency, OnFailure::retry,
                when_stored("a change of " + id.str(),
                            [this, id, number, gates, tasks = std::move(tx.when_durable)] {
                              if (gates) durable = std::max(durable, number);
                              for (const auto& task : tasks) task();
                              flush(id);
                            }));
  flush(id);
}

void Engine::Impl::flush(const JobId& id) {
  while (true) {
    Job* job = find(id);
    if (job == nullptr || job->outbox.empty() || job->outbox.front().gate > durable) return;
    const Effect effect = std::move(job->outbox.front());
    job->outbox.pop_front();
    effect.run();
  }
}

void Engine::Impl::note(Tx& tx, Job& job, EventLevel level, const std::string& message) {
  EventRow row;
  row.id = ++last_event;
  row.job = job.row.id;
  row.attempt = job.row.attempt;
  row.time = clock.wall();
  row.level = level;
  row.message = printable(message);
  tx.effects.push_back([this, row] {
    Job* told = find(row.job);
    if (told == nullptr) return;
    told->shown.event = row.id;
    hooks.news({row.job,
                {{"type", "event"},
                 {"event", row.id},
                 {"time", rfc3339(row.time)},
                 {"level", level_name(row.level)},
                 {"message", row.message}}});
  });
  tx.changes.events.push_back(std::move(row));
}

void Engine::Impl::tell_state(const Job& job) const {
  hooks.news({job.row.id,
              {{"type", "state"},
               {"job", job.row.id.str()},
               {"state", to_string(job.shown.state)},
               {"reason", reason_of(job)},
               {"attempt", job.row.attempt},
               {"time", rfc3339(clock.wall())}}});
}

void Engine::Impl::enter(Tx& tx, Job& job, JobEvent event, const std::string& reason) {
  const std::optional<JobState> state = next(job.row.state, event);
  if (!state) {
    throw Error(ErrorCode::internal, std::string("a job that is ") + to_string(job.row.state) +
                                         " cannot do that (event " +
                                         std::to_string(static_cast<int>(event)) + ")");
  }
  job.row.state = *state;
  job.row.reason = printable(reason);
  tx.job = true;
  if (is_final(*state)) {
    job.row.ended = clock.wall();
    set_spares(tx, job, {}, "");
  }
  EventRow row;
  row.id = ++last_event;
  row.job = job.row.id;
  row.attempt = job.row.attempt;
  row.time = clock.wall();
  row.kind = EventKind::state;
  row.message = to_string(*state);
  tx.changes.events.push_back(row);

  Job::Shown shown{*state, job.row.reason, job.row.exit_code, job.row.ended, job.row.error, 0};
  tx.effects.push_back([this, id = job.row.id, shown] {
    Job* told = find(id);
    if (told == nullptr) return;
    const std::int64_t last = told->shown.event;
    told->shown = shown;
    told->shown.event = last;
    tell_state(*told);
    if (!is_final(shown.state)) return;
    std::error_code ignored;
    fs::remove(options.root.secrets(id), ignored);
    hooks.news(
        {id,
         {{"type", "end"},
          {"state", to_string(shown.state)},
          {"exit_code", shown.exit_code ? nlohmann::json(*shown.exit_code) : nlohmann::json()}}});
    check_drained();
  });
  if (is_final(*state)) {
    live.erase(job.row.id);
    note_leg_end(tx, job);
  } else if (const SearchOf* search = search_of(job)) {
    post_look(search->row.id);  // one that no longer waits makes room for another
  }
}

void Engine::Impl::enter(Tx& tx, Attempt& attempt, AttemptEvent event) {
  const std::optional<AttemptState> state = next(attempt.row.state, event);
  if (!state) {
    throw Error(ErrorCode::internal, std::string("an attempt that is ") +
                                         to_string(attempt.row.state) + " cannot do that");
  }
  attempt.row.state = *state;
  if (*state != AttemptState::running) attempt.hang.clear();
  if (is_final(*state)) attempt.row.ended = clock.wall();
  tx.changes.attempts.push_back(attempt.row);
}

// ---- The public face.

Engine::Engine(const EngineOptions& options, const Clock& clock, Nodes& nodes, const Hooks& hooks)
    // Not moved: which of the two is made first is nobody's to say.
    : Engine(options, clock, nodes, hooks,
             open_store({.path = options.root.database(),
                         .on_damage = hooks.damaged,
                         .shared = options.shared_storage})) {}

Engine::Engine(EngineOptions options, const Clock& clock, Nodes& nodes, Hooks hooks,
               std::unique_ptr<Store> store)
    : impl_(std::make_unique<Impl>(std::move(options), clock, nodes, std::move(hooks),
                                   std::move(store))) {
  impl_->load();
}

Engine::~Engine() = default;

void Engine::submit(const std::string& submission_id, JobSpec spec,
                    const std::map<std::string, std::string>& secrets, Answer done) {
  impl_->submit(submission_id, std::move(spec), secrets, std::move(done));
}

void Engine::stop(const JobId& id, std::optional<std::chrono::seconds> grace, Answer done) {
  if (impl_->unread.contains(id)) return impl_->stop_unread(id, grace, done);
  impl_->stop(impl_->known(id), grace, StopCause::user, "stopped by the user", std::move(done));
}

void Engine::remove(const JobId& id, Answer done) {
  if (!impl_->jobs.contains(id) && impl_->unknown.contains(id)) {
    impl_->remove_unknown(id, std::move(done));
  } else {
    impl_->remove(impl_->known(id), "", impl_->holds(), std::move(done));
  }
}

void Engine::stop_all(Answer done) {
  impl_->stop_all(std::move(done));
}

void Engine::joined(const NodeInfo& info) {
  impl_->joined(info);
}
void Engine::heard(const NodeId& node) {
  impl_->heard(node);
}
void Engine::preparing(const NodeId& node, const std::string& what, bool waits) {
  impl_->preparing(node, what, waits);
}
void Engine::gone(const NodeId& node) {
  impl_->gone(node);
}

void Engine::event(const NodeId& node, const JobId& job, int attempt,
                   const wire::AttemptEvent& event) {
  impl_->event(node, job, attempt, event);
}

void Engine::supervisor_lost(const NodeId& node, const JobId& job, int attempt,
                             const std::string& reason, const std::vector<pid_t>& unkillable) {
  impl_->share_broken(node, job, attempt, reason, Impl::Broken::supervisor_gone, unkillable);
}

void Engine::start_failed(const NodeId& node, const JobId& job, int attempt, const Error& error) {
  if (impl_->spare_failed(node, job, attempt, error.what())) return;
  impl_->share_broken(node, job, attempt, error.what(), Impl::Broken::not_started, {});
}

}  // namespace dtrain::head
