#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// The end of attempts: one rank's failure ends all, and what follows from the end of all.
namespace dtrain::head {
namespace {

bool has_share(const Attempt& attempt, const std::set<NodeId>& nodes) {
  return std::any_of(attempt.shares.begin(), attempt.shares.end(),
                     [&](const Share& share) { return nodes.contains(share.row.node); });
}

nlohmann::json error_json(const std::string& message, int attempt,
                          const std::optional<RankRow>& cause) {
  nlohmann::json error = {
      {"message", message}, {"attempt", attempt},   {"rank", nullptr},
      {"node", nullptr},    {"exit_code", nullptr}, {"signal", nullptr},
      {"cause", ""},        {"error_message", ""},  {"last_lines", nlohmann::json::array()}};
  if (!cause) return error;
  error["rank"] = cause->rank;
  error["node"] = cause->node.str();
  error["exit_code"] = ProcessExit{cause->code, cause->signal}.shell_code();
  if (cause->signal != 0) error["signal"] = cause->signal;
  error["cause"] = cause->cause;
  error["error_message"] = cause->error_message;
  error["last_lines"] = cause->last_lines;
  return error;
}

}  // namespace

nlohmann::json error_without_rank(const std::string& message, int attempt) {
  return error_json(message, attempt, std::nullopt);
}

PastAttempts past_of(const Job& job) {
  PastAttempts past;
  for (const Attempt& attempt : job.attempts) {
    if (attempt.row.ended) past.push_back(&attempt.row);
  }
  return past;
}

void Engine::Impl::fail_attempt(Tx& tx, Job& job, Attempt& attempt, const std::string& reason,
                                const NodeId& but) {
  const bool is_first = attempt.failure.empty();
  if (is_first) {
    attempt.failure = reason;
    attempt.row.reason = reason;
    note(tx, job, EventLevel::error, reason);
  }
  if (!attempt.ending()) enter(tx, attempt, AttemptEvent::stop);
  drop_unsent(job, attempt, tx);
  // At once, not when it is on disk: that a rank failed cannot be undone. Once: one rank's failure
  // makes all others fail, and who is away is told when it is back.
  if (is_first) send_stops(job, attempt, but);
}

void Engine::Impl::send_stops(const Job& job, const Attempt& attempt, const NodeId& but) {
  for (const Share& share : attempt.shares) {
    if (share.live() && share.start_sent && share.row.node != but) send_stop(job, attempt, share);
  }
}

void Engine::Impl::send_stop(const Job& job, const Attempt& attempt, const Share& share) {
  wire::StopRanks stop;
  stop.reason = job.row.stop_cause != StopCause::none ? job.row.reason : attempt.failure;
  if (job.row.stop_grace_s) stop.grace = std::chrono::seconds(*job.row.stop_grace_s);
  nodes_out.send(share.row.node, job.row.id, attempt.row.attempt, stop);
}

// Shares that were never told to start have nothing to end.
void Engine::Impl::drop_unsent(const Job& job, Attempt& attempt, Tx& tx) {
  if (!attempt.durable) return;
  for (Share& share : attempt.shares) {
    if (share.start_sent || !share.live()) continue;
    unstage(job, attempt, share);
    share.row.state = ShareState::finished;
    share.row.outcome = "stopped";
    share.row.reason = "it was not started";
    tx.changes.shares.push_back(share.row);
  }
}

void Engine::Impl::check_end(const JobId& id) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr || job->preparing ? nullptr : job->live_attempt();
  if (attempt == nullptr || !attempt->durable || attempt->file_work > 0) return;
  for (const Share& share : attempt->shares) {
    if (share.live()) return;
  }
  // What a training that went well has left is worth a wait; a stop ends it.
  const bool well =
      !attempt->ending() &&
      std::all_of(attempt->shares.begin(), attempt->shares.end(),
                  [](const Share& share) { return share.row.outcome == "succeeded"; });
  if (well && attempt->waits_for_room()) return;
  end_attempt(*job, *attempt);
}

bool Engine::Impl::was_taken_back(const NodeId& id) const {
  const auto node = nodes.find(id);
  return node != nodes.end() && node->second.taken_back;
}

// A node was told to leave, or its machine was taken from under it: others may have failed for that
// before it was known.
bool Engine::Impl::is_no_failure(const Attempt& attempt,
                                 const std::optional<RankRow>& cause) const {
  if (attempt.left && !cause) return true;
  if (cause && was_taken_back(cause->node)) return true;
  return std::any_of(attempt.shares.begin(), attempt.shares.end(), [&](const Share& share) {
    return share.row.state == ShareState::lost && was_taken_back(share.row.node);
  });
}

Fault Engine::Impl::fault_of_end(const Attempt& attempt,
                                 const std::optional<RankRow>& cause) const {
  Fault fault;
  fault.kind = FaultKind::other;
  for (const Share& share : attempt.shares) {
    if (share.row.outcome != "failed" && share.row.outcome != "lasting") continue;
    if (!share.row.ranks_started) fault.kind = FaultKind::not_started;
    fault.node = share.row.node;
    break;
  }
  if (!attempt.lost.empty()) {
    fault.kind = FaultKind::node_lost;
    fault.node = attempt.lost;
  }
  if (cause) fault = fault_of(*cause);
  if (attempt.hung) fault = {FaultKind::hang, 0, 0, NodeId(), ""};
  if (is_no_failure(attempt, cause)) fault.kind = FaultKind::preempted;
  return fault;
}

void Engine::Impl::wait_before(Job& job, std::chrono::seconds wait, WallTime from) {
  job.backoff_until.reset();
  const Monotonic until = moments.of(from, clock.now()) + wait;
  if (until <= clock.now()) return;
  job.backoff_until = until;
  job.backoff_ends =
      clock.wall() + std::chrono::duration_cast<WallTime::duration>(until - clock.now());
}

bool Engine::Impl::did_well(const NodeId& node, WallTime from) const {
  const std::set<NodeId> there{node};
  const Monotonic since = moments.of(from, clock.now());
  const auto is_later = [&](WallTime time) { return moments.of(time, clock.now()) >= since; };
  for (const auto& [id, job] : jobs) {
    for (const Attempt& attempt : job.attempts) {
      if (!has_share(attempt, there)) continue;
      if (attempt.row.state == AttemptState::succeeded && attempt.row.ended &&
          is_later(*attempt.row.ended))
        return true;
      for (const CheckpointRow& row : job.checkpoints) {
        if (row.attempt == attempt.row.attempt && is_later(row.created)) return true;
      }
    }
  }
  return false;
}

void Engine::Impl::set_suspect_aside(Tx& tx, Job& job, const Attempt& attempt) {
  const NodeId id = std::exchange(job.suspect, NodeId());
  const auto node = nodes.find(id);
  const Attempt* first = job.find_attempt(attempt.row.attempt - 2);
  if (id.empty() || node == nodes.end() || !next(node->second.row.state, NodeEvent::drain) ||
      first == nullptr || has_share(attempt, beside(id)) || did_well(id, first->row.created)) {
    return;
  }
  const std::string why = "set aside: attempts " + std::to_string(attempt.row.attempt - 2) +
                          " and " + std::to_string(attempt.row.attempt - 1) + " of " +
                          job.row.id.str() + " failed there, attempt " +
                          std::to_string(attempt.row.attempt) + " does not without it";
  set_node(tx, node->second, NodeEvent::drain, why);
  note(tx, job, EventLevel::warning, id.str() + " is " + why);
  tx.effects.push_back([this] { schedule(); });
}

void Engine::Impl::end_attempt(Job& job, Attempt& attempt) {
  Tx tx;
  bool lacks_one = false;  // a checkpoint that its ranks have left
  while (!attempt.collecting.empty()) {
    const auto& [step, collecting] = *attempt.collecting.begin();
    lacks_one = lacks_one || !collecting.no_room.empty();
    drop_collecting(tx, job, attempt, step,
                    "the attempt ended before " + (collecting.no_room.empty()
                                                       ? "all of its shards were reported"
                                                       : "there was room: " + collecting.no_room));
  }
  std::vector<RankRow> ranks;
  for (auto& [number, rank] : attempt.ranks) {
    if (const auto lost = next(rank.state, RankEvent::lose)) {
      rank.state = *lost;
      tx.changes.ranks.push_back(rank);
    }
    ranks.push_back(rank);
  }
  const std::vector<Failure> failures = failures_of(attempt);
  const Causes causes = decide_causes(failures);
  attempt.row.causes = causes_text(failures, causes);
  std::optional<RankRow> cause;
  if (!failures.empty()) {
    if (const auto rank = failures[causes.first.front()].rank) cause = attempt.ranks.at(*rank);
  }
  // That ranks could not be started is the cause, whatever others did meanwhile.
  const auto lasting =
      std::find_if(attempt.shares.begin(), attempt.shares.end(),
                   [](const Share& share) { return share.row.outcome == "lasting"; });
  if (lasting != attempt.shares.end()) cause.reset();
  bool lost = false;
  bool failed = cause.has_value();
  bool stopped = false;
  std::string reason = causes.reason;
  if (lasting != attempt.shares.end()) reason = lasting->row.reason;
  for (Share& share : attempt.shares) {
    const bool bad = share.row.outcome == "failed" || share.row.outcome == "lasting" ||
                     share.row.outcome == "lost";
    lost = lost || share.row.outcome == "lost";
    failed = failed || bad;
    stopped = stopped || share.row.outcome == "stopped";
    if (bad && reason.empty()) reason = share.row.reason;
    keep(tx, share);
  }
  // That nothing but a stop of ours ended it is the only case in which "stopped" is no failure.
  const bool by_us = job.row.stop_cause != StopCause::none;
  stopped = stopped || (by_us && lacks_one);
  if (!failed && stopped && !by_us) {
    failed = true;
    reason = attempt.failure;
    for (const Share& share : attempt.shares) {
      if (reason.empty() && share.row.outcome == "stopped") reason = share.row.reason;
    }
  }
  if (by_us && !(failed && !attempt.failure.empty())) reason = job.row.reason;
  if (reason.empty() && (failed || stopped)) reason = "it ended before it was done";

  AttemptEvent event = AttemptEvent::succeed;
  if (stopped) event = AttemptEvent::end_stopped;
  if (failed) event = lost && !cause ? AttemptEvent::lose : AttemptEvent::fail;
  // The word of the provider of a node that is the cause may have come, or come later: explain().
  for (const Share& share : attempt.shares) {
    const auto node = nodes.find(share.row.node);
    if (node == nodes.end() || !reason.starts_with(share.row.node.str() + " ")) continue;
    node->second.ended.insert({job.row.id, attempt.row.attempt});
    add_word(share.row.node, reason);
  }
  attempt.row.reason = event == AttemptEvent::succeed ? "" : printable(reason);
  enter(tx, attempt, event);

  AttemptEnd end{attempt.row.state, attempt.row.reason, false, lasting != attempt.shares.end()};
  for (const RankRow& rank : ranks) end.address_in_use = end.address_in_use || rank.address_in_use;
  if (!by_us && event != AttemptEvent::succeed) {
    attempt.row.fault = fault_of_end(attempt, cause);
  }
  const PastAttempts past = past_of(job);
  const RestartDecision decision = decide_restart(
      end, job.row.stop_cause, {job.row.restarts, job.row.port_retries}, job.spec, past);
  attempt.row.counted = decision.so_far.restarts > job.row.restarts;
  tx.changes.attempts.push_back(attempt.row);
  job.row.restarts = decision.so_far.restarts;
  job.row.port_retries = decision.so_far.port_retries;
  using What = RestartDecision::What;
  switch (decision.what) {
    case What::succeed:
      set_suspect_aside(tx, job, attempt);
      job.row.exit_code = 0;
      note(tx, job, EventLevel::info, "succeeded");
      enter(tx, job, JobEvent::succeed, "");
      break;
    case What::stop:
      note(tx, job, EventLevel::info, "stopped");
      enter(tx, job, JobEvent::end_stopped, decision.reason);
      break;
    case What::fail:
      if (cause) job.row.exit_code = ProcessExit{cause->code, cause->signal}.shell_code();
      job.row.error = wire::dump(error_json(decision.reason, attempt.row.attempt, cause));
      note(tx, job, EventLevel::error, "failed: " + decision.reason);
      enter(tx, job, JobEvent::fail, decision.reason);
      break;
    case What::restart:
      note(tx, job, EventLevel::warning, decision.reason);
      job.progress = nullptr;
      job.waits_noted = 0;
      job.suspect = suspect(past);
      wait_before(job, decision.wait, *attempt.row.ended);
      enter(tx, job, JobEvent::restart, decision.reason);
      break;
  }
  attempt.ranks.clear();
  attempt.advance = {};
  attempt.stragglers = {};
  attempt.hang.clear();
  const bool committed = attempt.row.checkpoint && !job.checkpoints.empty() &&
                         job.checkpoints.back().path != *attempt.row.checkpoint;
  if (committed) retain_checkpoints(tx, job, nullptr);  // what it began from may go now
  tx.effects.push_back([this] {
    schedule();  // those that come after it
    rearm();
  });
  commit(job, std::move(tx), Urgency::now);
  schedule();
  rearm();
}

}  // namespace dtrain::head
