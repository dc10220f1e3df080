#include <algorithm>
#include <utility>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// What supervisors say. Each event takes effect once, and is acknowledged when what follows from it
// is durable; acknowledgements of one node's attempt go out in order, because each covers all
// before it. One behind a checkpoint that is still worked on is told of by itself: what completes
// the checkpoint may be behind it.
namespace dtrain::head {
namespace {

constexpr int kWarningsOfAttempt = 1000;
// Of metrics of a job whose last values are kept: all of them are written with each report.
constexpr std::size_t kNamesMax = 4096;

bool wants_answer(const nlohmann::json& report) {
  const auto ack = report.find("ack");
  return ack != report.end() && ack->is_boolean() && ack->get<bool>();
}

// What its supervisor says by itself once it is acknowledged.
bool is_plain(const std::optional<nlohmann::json>& answer) {
  return !answer || *answer == nlohmann::json{{"ok", true}};
}

}  // namespace

void Engine::Impl::tell_heard(const Share& share, std::uint64_t seq,
                              const std::optional<nlohmann::json>& answer) {
  const auto node = nodes.find(share.row.node);
  if (node == nodes.end() || !node->second.features.contains("beats")) return;
  nodes_out.send(share.row.node, share.row.job, share.row.attempt, wire::EventHeard{seq, answer});
}

void Engine::Impl::ack(const JobId& job_id, int number, const NodeId& node, std::uint64_t seq,
                       std::optional<nlohmann::json> answer) {
  Job* job = find(job_id);
  Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
  Share* share = attempt == nullptr ? nullptr : attempt->share(node);
  if (share == nullptr) return;
  const auto pending = share->acks.find(seq);
  if (pending == share->acks.end()) return;
  pending->second.ready = true;
  pending->second.answer = std::move(answer);
  if (pending != share->acks.begin()) {
    tell_heard(*share, seq, pending->second.answer);
    const auto before = std::prev(pending);
    if (before->second.ready && is_plain(before->second.answer)) share->acks.erase(before);
    const auto behind = std::next(pending);
    const bool goes_with_it = behind != share->acks.end() && behind->second.ready;
    if (goes_with_it && is_plain(pending->second.answer)) share->acks.erase(pending);
    return;
  }
  // One for a row of events without answers.
  std::vector<wire::EventAck> out;
  while (!share->acks.empty() && share->acks.begin()->second.ready) {
    const auto first = share->acks.begin();
    if (!out.empty() && !out.back().answer) out.pop_back();
    out.push_back({first->first, std::move(first->second.answer)});
    share->acks.erase(first);
  }
  for (const wire::EventAck& each : out) nodes_out.send(node, job_id, number, each);
}

void Engine::Impl::ack_when_durable(Tx& tx, const Share& share, std::uint64_t seq,
                                    std::optional<nlohmann::json> answer) {
  tx.when_durable.push_back([this, job = share.row.job, number = share.row.attempt,
                             node = share.row.node, seq,
                             answer = std::move(answer)] { ack(job, number, node, seq, answer); });
}

void Engine::Impl::keep(Tx& tx, Share& share) {
  // A report that is still being worked on is sent again to a head that is started anew; so is
  // what came after it.
  share.row.seq = share.open_checkpoints.empty() ? share.seen : *share.open_checkpoints.begin() - 1;
  ShareRow kept = share.row;
  if (share.finish_seq && !share.open_checkpoints.empty()) {
    kept.state = ShareState::running;  // its end comes behind them
    kept.outcome.clear();
    kept.reason.clear();
  }
  tx.changes.shares.push_back(std::move(kept));
  if (share.finish_seq && share.open_checkpoints.empty()) {
    ack_when_durable(tx, share, *share.finish_seq);
    share.finish_seq.reset();
  }
}

// Of a checkpoint only what is on record counts: the first answer may have been a refusal, and one
// that was deleted since is no more to be relied on than one that never was.
nlohmann::json Engine::Impl::answer_again(const Job& job, int attempt,
                                          const nlohmann::json& report) const {
  if (report.value("type", "") != "checkpoint") return {{"ok", true}};
  const std::int64_t step = report.value("step", std::int64_t{0});
  const auto committed_one = std::find_if(
      job.checkpoints.rbegin(), job.checkpoints.rend(),
      [&](const CheckpointRow& row) { return row.attempt == attempt && row.step == step; });
  if (committed_one != job.checkpoints.rend()) {
    return {{"ok", true}, {"path", committed_one->path}};
  }
  const std::string why = "no checkpoint of step " + std::to_string(step) +
                          " is kept: it was refused, or deleted since";
  return nlohmann::json::object({{"error", why}});
}

void Engine::Impl::event(const NodeId& node_id, const JobId& job_id, int number,
                         const wire::AttemptEvent& event) {
  heard(node_id);
  Job* job = find(job_id);
  Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
  Share* share = attempt == nullptr ? nullptr : attempt->share(node_id);
  const auto node = nodes.find(node_id);
  const bool finished = std::holds_alternative<wire::NodeFinished>(event.body);
  const bool old = share == nullptr || attempt->row.ended || !share->live() ||
                   share->row.state == ShareState::lost;

  if (share != nullptr && event.seq <= share->seen) {
    // A repeat. If the first is still on its way to the disk, it is acknowledged then.
    if (finished && node != nodes.end()) node->second.leftovers.erase({job_id, number});
    const auto pending = share->acks.find(event.seq);
    if (pending == share->acks.end() || pending->second.ready) {
      std::optional<nlohmann::json> answer;
      if (const auto* report = std::get_if<wire::RankReport>(&event.body);
          report != nullptr && wants_answer(report->body)) {
        answer = pending != share->acks.end() ? pending->second.answer
                                              : answer_again(*job, number, report->body);
      }
      if (share->acks.empty() || event.seq < share->acks.begin()->first) {
        nodes_out.send(node_id, job_id, number, wire::EventAck{event.seq, answer});
      } else {
        tell_heard(*share, event.seq, answer);
      }
    }
    if (finished) schedule();
    return;
  }
  if (unread.contains(job_id)) {
    // It is told anew to a head that can read the job.
    if (finished && node != nodes.end() && node->second.leftovers.erase({job_id, number}) > 0) {
      schedule();
      rearm();
    }
    return;
  }
  if (old) {
    // Of an epoch that was given up, or of a job that is forgotten: no effect, but it may forget
    // it too.
    wire::EventAck refused{event.seq, std::nullopt};
    if (const auto* report = std::get_if<wire::RankReport>(&event.body);
        report != nullptr && wants_answer(report->body)) {
      refused.answer = nlohmann::json{{"error", "this attempt was given up"}};
    }
    nodes_out.send(node_id, job_id, number, refused);
    if (node == nodes.end()) return;
    if (finished) {
      drop_leftover(node->second, job_id, number);
      if (job != nullptr) look_at_lease(*job);
      schedule();
      rearm();
    } else if (share == nullptr || share->row.state != ShareState::finished) {
      const bool known_job = job != nullptr;
      if (!known_job || node->second.leftovers.insert({job_id, number}).second) {
        stop_leftover(node_id, job_id, number);
      }
    }
    return;
  }

  if (is_of_copy(job_id)) fill_gap(*job, *attempt, *share, event);
  share->seen = event.seq;
  share->acks[event.seq] = {};
  share->start_sent = share->met = true;
  if (share->row.state == ShareState::waiting) share->row.state = ShareState::running;
  std::visit([&](const auto& body) { apply(*job, *attempt, *share, event.seq, body); }, event.body);
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::MasterReady& body) {
  Tx tx;
  attempt.row.master_port = body.port;
  tx.changes.attempts.push_back(attempt.row);
  keep(tx, share);
  ack_when_durable(tx, share, seq);
  commit(job, std::move(tx), Urgency::soon);
  advance(job, attempt);
}

void Engine::Impl::apply(Job& job, Attempt&, Share& share, std::uint64_t seq,
                         const wire::SetupStarted&) {
  Tx tx;
  note(tx, job, EventLevel::info, "setup runs on " + share.row.node.str());
  keep(tx, share);
  ack_when_durable(tx, share, seq);
  commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RanksStarted& body) {
  Tx tx;
  // Begun by a head that died before it was durable that all files are in place.
  if (job.row.state == JobState::staging) enter(tx, job, JobEvent::place, job.overtakes);
  share.row.ranks_started = true;
  for (const wire::RanksStarted::Rank& started_rank : body.ranks) {
    RankRow& rank = attempt.ranks[started_rank.rank];
    rank.job = job.row.id;
    rank.attempt = attempt.row.attempt;
    rank.rank = started_rank.rank;
    rank.node = share.row.node;
    rank.state = next(rank.state, RankEvent::start).value_or(rank.state);
    rank.pid = started_rank.pid;
    attempt.advance.started(rank.rank, rank.node);
    tx.changes.ranks.push_back(rank);
  }
  const bool all = std::all_of(attempt.shares.begin(), attempt.shares.end(),
                               [](const Share& each) { return each.row.ranks_started; });
  if (all && !attempt.ending() && attempt.row.state == AttemptState::starting) {
    attempt.row.started = clock.wall();
    attempt.advance.start(clock.now());
    enter(tx, attempt, AttemptEvent::run);
    if (job.row.state == JobState::starting) enter(tx, job, JobEvent::run, job.overtakes);
    rearm();                              // from now on they may hang
    if (job.spec.spares > 0) schedule();  // and spares are prepared
  }
  keep(tx, share);
  ack_when_durable(tx, share, seq);
  commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RankReport& body) {
  const std::string type = body.body.value("type", "");
  note_advance(job, attempt, share, wire::beat_of(body.rank, body.body), type == "heartbeat");
  if (type == "heartbeat") tell_stragglers(job, attempt, share);
  if (type == "metrics") {
    metrics_report(job, attempt, share, seq, body);
    return;
  }
  if (type == "checkpoint") {
    checkpoint_report(job, attempt, share, seq, body);
    return;
  }
  if (type == "progress") {
    nlohmann::json progress = body.body;
    progress["rank"] = body.rank;
    progress.erase("ack");
    nlohmann::json frame = progress;
    progress.erase("type");
    const bool first = job.progress.is_null();
    if (first || body.rank == 0 || job.progress.value("rank", 0) != 0) {
      job.progress = std::move(progress);
    }
    hooks.news({job.row.id, std::move(frame)});
  }
  // Nothing of it is stored.
  std::optional<nlohmann::json> answer;
  if (wants_answer(body.body)) answer = nlohmann::json{{"ok", true}};
  ack(job.row.id, attempt.row.attempt, share.row.node, seq, std::move(answer));
}

void Engine::Impl::metrics_report(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                                  const wire::RankReport& report) {
  const nlohmann::json& values = report.body.at("metrics");
  const std::int64_t step = report.body.value("step", std::int64_t{0});
  Tx tx;
  MetricsRow row;
  row.job = job.row.id;
  row.attempt = attempt.row.attempt;
  row.rank = report.rank;
  row.seq = seq;
  row.step = step;
  row.time = clock.wall();
  row.metrics = wire::dump(values);
  tx.changes.metrics.push_back(std::move(row));
  // The last values are those of the lowest rank that reports the name.
  for (const auto& [name, value] : values.items()) {
    const auto known_value = job.metrics.find(name);
    if (known_value != job.metrics.end() && known_value->value("rank", 0) < report.rank) continue;
    if (known_value == job.metrics.end() && job.metrics.size() >= kNamesMax) {
      if (std::exchange(job.names_told, true)) continue;
      note(tx, job, EventLevel::warning,
           "its metrics have more than " + std::to_string(kNamesMax) +
               " names: of the others no last value is kept, as of \"" + name + "\"");
      continue;
    }
    job.metrics[name] = {{"value", value}, {"rank", report.rank}};
  }
  job.row.step = std::max(job.row.step.value_or(0), step);
  tx.job = true;
  if (report.rank == 0) {
    note_report(tx, job, report.body.contains("step") ? std::optional(step) : std::nullopt, values);
  }
  keep(tx, share);
  const bool answered = wants_answer(report.body);
  ack_when_durable(tx, share, seq,
                   answered ? std::optional(nlohmann::json{{"ok", true}}) : std::nullopt);
  commit(job, std::move(tx), answered ? Urgency::now : Urgency::soon);
  hooks.news({job.row.id,
              {{"type", "metrics"}, {"rank", report.rank}, {"step", step}, {"metrics", values}}});
}

void Engine::Impl::warn(Tx& tx, Job& job, Attempt& attempt, const std::string& message) {
  ++attempt.warnings;
  if (attempt.warnings > kWarningsOfAttempt) return;
  note(tx, job, EventLevel::warning,
       attempt.warnings == kWarningsOfAttempt
           ? "too many warnings of this attempt; the rest is not kept"
           : message);
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::AttemptWarning& body) {
  Tx tx;
  warn(tx, job, attempt,
       (body.rank ? "rank " + std::to_string(*body.rank) : share.row.node.str()) + ": " +
           body.message);
  keep(tx, share);
  ack_when_durable(tx, share, seq);
  commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RankExited& body) {
  Tx tx;
  RankRow& rank = attempt.ranks[body.rank];
  rank.job = job.row.id;
  rank.attempt = attempt.row.attempt;
  rank.rank = body.rank;
  rank.node = share.row.node;
  rank.state = next(rank.state, body.exit.signal != 0 ? RankEvent::kill : RankEvent::exit)
                   .value_or(rank.state);
  rank.code = body.exit.code;
  rank.signal = body.exit.signal;
  rank.ended = body.time;
  rank.stopped = body.stopped;
  rank.cause = printable(body.cause, false);
  rank.error_message = body.error_message;
  rank.error_time = body.error_time;
  rank.last_lines = body.last_lines;
  rank.address_in_use = body.address_in_use;
  date(rank, share, body);
  const Monotonic stood = attempt.advance.moved();
  attempt.advance.ended(body.rank, clock.now());
  attempt.stragglers.ended(body.rank);
  if (body.exit.ok()) goes_on(tx, job, attempt, stood);
  tx.changes.ranks.push_back(rank);
  keep(tx, share);
  ack_when_durable(tx, share, seq);
  if (!body.exit.ok() && !body.stopped) {
    const std::string what = describe(rank);
    if (!attempt.failure.empty()) note(tx, job, EventLevel::error, what);
    fail_attempt(tx, job, attempt, what, share.row.node);
  }
  commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::note_unkillable(Tx& tx, Job& job, const NodeId& node,
                                   const std::vector<pid_t>& unkillable) {
  if (unkillable.empty()) return;
  std::vector<std::string> pids;
  for (const pid_t pid : unkillable) pids.push_back(std::to_string(pid));
  note(tx, job, EventLevel::warning,
       "processes on " + node.str() + " cannot be killed: " + join(pids, ", "));
}

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::NodeFinished& body) {
  Tx tx;
  share.row.state = ShareState::finished;
  share.failed = clock.now();
  using Outcome = wire::NodeFinished::Outcome;
  switch (body.outcome) {
    case Outcome::succeeded:
      share.row.outcome = "succeeded";
      break;
    case Outcome::failed:
      share.row.outcome = body.lasting ? "lasting" : "failed";
      break;
    case Outcome::stopped:
      share.row.outcome = "stopped";
      break;
  }
  share.row.reason = body.reason;
  share.finish_seq = seq;
  if (body.dropped_bytes > 0) {
    note(tx, job, EventLevel::warning,
         human_bytes(body.dropped_bytes) + " of output were dropped on " + share.row.node.str() +
             " for want of disk space");
  }
  note_unkillable(tx, job, share.row.node, body.unkillable);
  const bool more_live = std::any_of(attempt.shares.begin(), attempt.shares.end(),
                                     [](const Share& each) { return each.live(); });
  // Stopped, and not from here: by a signal to its supervisor, or its lease.
  const bool failed =
      body.outcome == Outcome::failed || (body.outcome == Outcome::stopped && !attempt.ending());
  if (failed && more_live) {
    fail_attempt(tx, job, attempt,
                 body.reason.empty() ? "it failed on " + share.row.node.str() : body.reason,
                 share.row.node);
  }
  // While its checkpoints are being committed, its end is not kept: a head that is started anew
  // hears both again. The last end of all goes with what follows from it.
  if (attempt.file_work == 0 && !attempt.waits_for_room() && more_live) keep(tx, share);
  if (!tx.changes.events.empty() || !tx.changes.shares.empty() || !tx.changes.attempts.empty()) {
    commit(job, std::move(tx), Urgency::soon);
  }
  check_end(job.row.id);
}

}  // namespace dtrain::head
