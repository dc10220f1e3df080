#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"

// What ranks say of where they are, and what follows when none of them gets any further.
namespace dtrain::head {
namespace {

// What a heartbeat may take until it is here.
constexpr std::chrono::seconds kLate{5};

}  // namespace

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RankBeats& body) {
  for (const wire::RankBeat& beat : body.beats) note_advance(job, attempt, share, beat, true);
  // Its supervisor has forgotten those before them.
  share.acks.erase(std::exchange(share.beats, seq));
  ack(job.row.id, attempt.row.attempt, share.row.node, seq, std::nullopt);
  // A checkpoint before them may be on its way for long: the next must not wait for that.
  if (share.acks.contains(seq)) {
    nodes_out.send(share.row.node, job.row.id, attempt.row.attempt, wire::BeatsHeard{seq});
  }
}

void Engine::Impl::note_advance(Job& job, Attempt& attempt, const Share& share,
                                const wire::RankBeat& beat, bool heartbeat) {
  const int local = beat.rank - share.row.first_rank;
  if (local < 0 || local >= share.row.nproc) return;
  if (beat.step) attempt.row.step = std::max(attempt.row.step.value_or(0), *beat.step);
  const Monotonic stood = attempt.advance.moved();
  const bool moved = attempt.advance.heard(share.row.node, beat, heartbeat, clock.now());
  if (!moved || attempt.hang.empty()) return;
  Tx tx;
  goes_on(tx, job, attempt, stood);
  commit(job, std::move(tx), Urgency::soon);
  rearm();
}

void Engine::Impl::goes_on(Tx& tx, Job& job, Attempt& attempt, Monotonic stood) {
  if (attempt.hang.empty()) return;
  attempt.hang.clear();
  note(tx, job, EventLevel::warning,
       "it goes on, after " + human_duration(clock.now() - stood) + " without progress");
  tx.effects.push_back([this, id = job.row.id] {
    if (const Job* told = find(id)) tell_state(*told);
  });
}

// When its ranks will have stood still for too long, if nothing comes until then.
std::optional<Monotonic> Engine::Impl::hang_due(const Job& job) const {
  if (job.spec.on_hang == OnHang::nothing || job.attempts.empty()) return std::nullopt;
  const Attempt& attempt = job.attempts.back();
  if (attempt.row.state != AttemptState::running) return std::nullopt;
  if (!attempt.hang.empty()) return attempt.hang_again;
  const auto limit = attempt.advance.limit(job.spec.hang_timeout);
  if (!limit) return std::nullopt;
  return attempt.advance.moved() + *limit;
}

void Engine::Impl::look_for_hang(Job& job, Attempt& attempt) {
  const std::optional<Monotonic> due = hang_due(job);
  const Monotonic now = clock.now();
  if (!due || now < *due) return;
  const bool again = !attempt.hang.empty();
  attempt.hang_again.reset();
  // Of ranks whose node is not heard nobody knows whether they go on.
  const bool all_here =
      std::all_of(attempt.shares.begin(), attempt.shares.end(), [&](const Share& share) {
        const auto node = nodes.find(share.row.node);
        return !share.live() || (node != nodes.end() && node->second.connected);
      });
  // They may wait for their checkpoint, which is being taken or has no room; and what is awaited
  // once all have ended is not theirs.
  const auto& ranks = attempt.advance.ranks();
  const bool runs =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& each) { return !each.second.ended; });
  if (!all_here || !runs || attempt.file_work > 0 || attempt.waits_for_room()) {
    attempt.advance.start(now);
    if (again) attempt.hang_again = now + kSilent + kLate;
    return;
  }
  const auto found = find_hang(ranks, attempt.advance.moved(),
                               attempt.advance.limit(job.spec.hang_timeout), now, clock.wall());
  if (!found) return;
  // Where the limit is short a rank may turn out to be silent only later.
  if (again && found->where == attempt.hang_where) return;
  if (!again && now - attempt.advance.moved() < kSilent + kLate) {
    attempt.hang_again = attempt.advance.moved() + kSilent + kLate;
  }
  attempt.hang_where = found->where;
  const std::string reason = printable("hang: " + found->str(), false);
  Tx tx;
  if (job.spec.on_hang == OnHang::restart) {
    attempt.hung = true;
    fail_attempt(tx, job, attempt, reason, NodeId());
    commit(job, std::move(tx), Urgency::soon);
    check_end(job.row.id);
    return;
  }
  attempt.hang = reason;
  // An error would be its end, of which followers hear otherwise.
  note(tx, job, EventLevel::warning, reason);
  tx.effects.push_back([this, id = job.row.id] {
    if (const Job* told = find(id)) tell_state(*told);
  });
  commit(job, std::move(tx), Urgency::soon);
}

}  // namespace dtrain::head
