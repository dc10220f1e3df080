#include <algorithm>
#include <utility>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"

// What ranks say of where they are, and what follows when none of them gets any further.
namespace dtrain::head {
namespace {

// What a heartbeat may take until it is here.
constexpr std::chrono::seconds kLate{5};
// What stacks may take until they are kept: a minute (agent/node/stacks.hpp), and the way.
constexpr std::chrono::seconds kStacksLate{70};

}  // namespace

void Engine::Impl::apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RankBeats& body) {
  for (const wire::RankBeat& beat : body.beats) note_advance(job, attempt, share, beat, true);
  tell_stragglers(job, attempt, share);
  ack(job.row.id, attempt.row.attempt, share.row.node, seq, std::nullopt);
}

void Engine::Impl::note_advance(Job& job, Attempt& attempt, const Share& share,
                                const wire::RankBeat& beat, bool heartbeat) {
  const int local = beat.rank - share.row.first_rank;
  if (local < 0 || local >= share.row.nproc) return;
  if (beat.step) attempt.row.step = std::max(attempt.row.step.value_or(0), *beat.step);
  if (heartbeat) attempt.stragglers.heard(beat, clock.now());
  const Monotonic stood = attempt.advance.moved();
  const bool moved = attempt.advance.heard(share.row.node, beat, heartbeat, clock.now());
  if (!moved || attempt.hang.empty()) return;
  Tx tx;
  goes_on(tx, job, attempt, stood);
  commit(job, std::move(tx), Urgency::soon);
  rearm();
}

void Engine::Impl::tell_stragglers(Job& job, Attempt& attempt, const Share& share) {
  if (attempt.row.state != AttemptState::running) return;
  const std::vector<std::string> words =
      attempt.stragglers.judge(share.row.node, share.row.first_rank, share.row.nproc);
  if (words.empty()) return;
  Tx tx;
  for (const std::string& each : words) warn(tx, job, attempt, each);
  commit(job, std::move(tx), Urgency::soon);
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

// When its ranks will have stood still for too long, if nothing comes until then, or are to be
// looked at again.
std::optional<Monotonic> Engine::Impl::hang_due(const Job& job) const {
  if (job.spec.on_hang == OnHang::nothing || job.attempts.empty()) return std::nullopt;
  const Attempt& attempt = job.attempts.back();
  if (attempt.row.state != AttemptState::running) return std::nullopt;
  std::optional<Monotonic> due;
  if (!attempt.hang.empty()) {
    due = attempt.hang_again;
  } else if (const auto limit = attempt.advance.limit(job.spec.hang_timeout)) {
    due = attempt.advance.moved() + *limit;
  }
  if (attempt.look) due = std::min(due.value_or(attempt.look->until), attempt.look->until);
  return due;
}

// Of ranks whose node is not heard nobody knows whether they go on.
bool Engine::Impl::all_are_heard(const Attempt& attempt) const {
  return std::all_of(attempt.shares.begin(), attempt.shares.end(), [&](const Share& share) {
    const auto node = nodes.find(share.row.node);
    return !share.live() || (node != nodes.end() && node->second.connected);
  });
}

void Engine::Impl::look_for_hang(Job& job, Attempt& attempt) {
  const std::optional<Monotonic> due = hang_due(job);
  const Monotonic now = clock.now();
  if (!due || now < *due) return;
  if (attempt.look && now >= attempt.look->until) return end_look(job, attempt);
  const bool again = !attempt.hang.empty();
  attempt.hang_again.reset();
  // They may wait for their checkpoint, which is being taken or has no room; and what is awaited
  // once all have ended is not theirs.
  const auto& ranks = attempt.advance.ranks();
  const bool runs =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& each) { return !each.second.ended; });
  if (!all_are_heard(attempt) || !runs || attempt.file_work > 0 || attempt.waits_for_room()) {
    attempt.advance.start(now);
    if (again) attempt.hang_again = now + kSilent + kLate;
    return;
  }
  const auto found = find_hang(ranks, attempt.advance.moved(),
                               attempt.advance.limit(job.spec.hang_timeout), now, clock.wall());
  if (!found) return;
  // Where the limit is short a rank may turn out to be silent only later.
  if (again && found->where == attempt.hang_where) return;
  const bool ends = job.spec.on_hang == OnHang::restart;
  if (!again && !ends && now - attempt.advance.moved() < kSilent + kLate) {
    attempt.hang_again = attempt.advance.moved() + kSilent + kLate;
  }
  attempt.hang_where = found->where;
  attempt.hang = printable("hang: " + found->str(), false);
  Tx tx;
  // An error would be its end, of which followers hear otherwise.
  if (!ends) note(tx, job, EventLevel::warning, attempt.hang);
  tx.effects.push_back([this, id = job.row.id] {
    if (const Job* told = find(id)) tell_state(*told);
  });
  if (!again) ask_for_stacks(job, attempt);
  const bool asked = attempt.look && !attempt.look->awaited.empty();
  commit(job, std::move(tx), Urgency::soon);
  if (!again && !asked) end_look(job, attempt);
}

void Engine::Impl::ask_for_stacks(const Job& job, Attempt& attempt) {
  StackLook& look = attempt.look.emplace();
  look.at = from_millis(to_millis(clock.wall()));  // as it comes back
  look.until = clock.now() + kStacksLate;
  wire::TakeStacks wanted{job.row.id, attempt.row.attempt, look.at, attempt.hang, {}, {}};
  if (job.spec.content) wanted.profiler = job.spec.content->profiler_tree;
  for (const Share& share : attempt.shares) {
    if (!share.live()) continue;
    const auto node = nodes.find(share.row.node);
    const bool is_here = node != nodes.end() && node->second.connected;
    if (!is_here || !node->second.features.contains("stacks")) {
      look.miss(share.row.node, is_here ? "its agent is too old" : "it is not connected");
      continue;
    }
    wanted.ranks.clear();
    for (int i = 0; i < share.row.nproc; ++i) {
      const int rank = share.row.first_rank + i;
      const auto place = attempt.advance.ranks().find(rank);
      if (place == attempt.advance.ranks().end() || !place->second.ended) {
        wanted.ranks.push_back(rank);
      }
    }
    if (wanted.ranks.empty()) continue;
    look.awaited.insert(share.row.node);
    nodes_out.take_stacks(share.row.node, wanted);
  }
}

void StackLook::miss(const NodeId& node, const std::string& why) {
  if (++not_kept == 1) why_not = node.str() + ": " + printable(why, false);
}

void Engine::Impl::stacks_taken(const NodeId& node, const wire::StacksTaken& news) {
  Job* job = find(news.job);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  if (attempt == nullptr || attempt->row.attempt != news.attempt || !attempt->look ||
      attempt->look->at != news.at || attempt->look->awaited.erase(node) == 0) {
    return;
  }
  if (news.kept) ++attempt->look->kept;
  if (news.error) attempt->look->miss(node, news.error->message());
  if (attempt->look->awaited.empty()) end_look(*job, *attempt);
}

// Nobody is awaited any longer: what is kept is said, and an attempt that is to end for its hang,
// and hangs still, does.
void Engine::Impl::end_look(Job& job, Attempt& attempt) {
  StackLook look = std::move(*attempt.look);
  attempt.look.reset();
  for (const NodeId& node : look.awaited) look.miss(node, "it has not answered");
  std::string text =
      look.kept == 0 ? "the stacks of its ranks are not kept"
                     : "the stacks of its ranks are kept: dtrain stack --kept " + job.row.id.str();
  if (look.not_kept > 0) {
    text += (look.kept == 0 ? ": " : "; not all: ") + look.why_not;
    if (look.not_kept > 1) text += ", and " + std::to_string(look.not_kept - 1) + " more";
  }
  const JobId id = job.row.id;
  const int number = attempt.row.attempt;
  Tx tx;
  // With the hang, which is a warning too.
  warn(tx, job, attempt, text);
  commit(job, std::move(tx), Urgency::soon);
  Job* after = find(id);
  Attempt* running = after == nullptr ? nullptr : after->live_attempt();
  if (running == nullptr || running->row.attempt != number || running->hang.empty() ||
      running->row.state != AttemptState::running || after->spec.on_hang != OnHang::restart) {
    return;
  }
  if (!all_are_heard(*running)) {
    // Its time begins anew.
    running->hang.clear();
    running->advance.start(clock.now());
    tell_state(*after);
    return rearm();
  }
  running->hung = true;
  Tx end;
  fail_attempt(end, *after, *running, std::string(running->hang), NodeId());
  commit(*after, std::move(end), Urgency::soon);
  check_end(id);
}

void Engine::stacks_taken(const NodeId& node, const wire::StacksTaken& news) {
  impl_->stacks_taken(node, news);
}

}  // namespace dtrain::head
