#include "agent/head/engine/restart.hpp"

#include <algorithm>

#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/wire/attempt.hpp"

namespace dtrain::head {
namespace {

using What = RestartDecision::What;

constexpr std::size_t kWords = 300;  // bytes of a failure's words that are compared

// Times, pids and addresses differ each time.
std::string without_digits(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, kWords)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      out += c;
    } else if (!out.ends_with('#')) {
      out += '#';
    }
  }
  return out;
}

bool is_of_machines(FaultKind kind) {
  return kind == FaultKind::node_lost || kind == FaultKind::preempted;
}

bool has(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool names(const std::vector<std::string>& on, const Fault& fault) {
  return has(on, to_string(fault.kind)) ||
         (fault.kind == FaultKind::exit_code && has(on, std::to_string(fault.code))) ||
         (fault.signal != 0 && has(on, signal_name(fault.signal)));
}

// With their words, so that one failure is not taken for another; a step that is not known says
// nothing. What has no kind of its own (a supervisor killed, say) is not the program's doing.
bool is_same(const AttemptRow& a, const AttemptRow& b) {
  const bool same = a.fault.kind == b.fault.kind && a.fault.code == b.fault.code &&
                    a.fault.signal == b.fault.signal && a.fault.words == b.fault.words;
  return same && a.fault.kind != FaultKind::other && a.step && a.step == b.step;
}

// Of the last attempts: how many ended so, without a new checkpoint between them.
template <typename Predicate>
int in_a_row(const PastAttempts& past, Predicate ended_so) {
  int count = 0;
  for (auto each = past.rbegin(); each != past.rend(); ++each, ++count) {
    if (!ended_so(**each) || (*each)->checkpoint != past.back()->checkpoint) break;
  }
  return count;
}

int counted_within(std::chrono::seconds window, const PastAttempts& past) {
  const WallTime from = past.back()->ended.value_or(past.back()->created) - window;
  return static_cast<int>(std::count_if(past.begin(), past.end(), [&](const AttemptRow* attempt) {
    return attempt->counted && attempt->ended && *attempt->ended > from;
  }));
}

std::string times(int count) {
  return std::to_string(count) + (count == 1 ? " restart" : " restarts");
}

// One of which nothing counts: it is no failure of the job's.
RestartDecision begin_anew(const AttemptEnd& end, RestartsSoFar so_far, const JobSpec& spec,
                           const PastAttempts& past) {
  const int lost = in_a_row(
      past, [](const AttemptRow& attempt) { return attempt.fault.kind == FaultKind::node_lost; });
  if (lost >= kLostNodesInARow) {
    return {What::fail, so_far,
            end.reason + "; " + std::to_string(lost) +
                " attempts in a row ended by lost nodes, without a checkpoint between them "
                "(restart.count: [node_lost] leaves that to max_restarts)"};
  }
  return {What::restart, so_far, "begins anew, for " + end.reason, backoff(spec.restart, past)};
}

}  // namespace

WallTime failed_at(const RankRow& rank) {
  if (is_time(rank.error_time)) {
    return from_millis(static_cast<std::int64_t>(rank.error_time * 1000));
  }
  return rank.ended.value_or(WallTime());
}

bool failed_by_itself(const RankRow& rank) {
  const bool ended = rank.state == RankState::exited || rank.state == RankState::killed;
  return ended && !rank.stopped && (rank.code != 0 || rank.signal != 0);
}

std::string describe(const RankRow& rank) {
  return "rank " + std::to_string(rank.rank) + " on " + rank.node.str() + ": " +
         ProcessExit{rank.code, rank.signal}.str() + (rank.cause.empty() ? "" : ", " + rank.cause);
}

Fault fault_of(const RankRow& rank) {
  Fault fault;
  fault.kind = rank.signal != 0 ? FaultKind::signal : FaultKind::exit_code;
  if (rank.cause.starts_with(wire::RankExited::kKilledForMemory)) {
    fault.kind = FaultKind::out_of_memory;
  }
  fault.code = rank.code;
  fault.signal = rank.signal;
  fault.node = rank.node;
  fault.words = rank.error_message;
  if (fault.words.empty() && !rank.last_lines.empty()) fault.words = rank.last_lines.back();
  fault.words = printable(without_digits(fault.words), false);
  return fault;
}

std::chrono::seconds backoff(const RestartSpec& restart, const PastAttempts& past) {
  if (past.empty() || past.back()->fault.kind == FaultKind::preempted) return {};
  const int failures = in_a_row(past, [](const AttemptRow& attempt) {
    return attempt.fault.kind != FaultKind::none && attempt.fault.kind != FaultKind::preempted;
  });
  std::chrono::seconds wait = restart.backoff;
  for (int i = 1; i < failures && wait.count() < limits::kBackoffSeconds; ++i) wait *= 2;
  return std::min(wait, std::chrono::seconds(limits::kBackoffSeconds));
}

NodeId suspect(const PastAttempts& past) {
  if (past.size() < 2) return {};
  const Fault& last = past.back()->fault;
  const Fault& before = past[past.size() - 2]->fault;
  const bool is_one = last.kind != FaultKind::none && before.kind != FaultKind::none &&
                      !is_of_machines(last.kind) && !is_of_machines(before.kind) &&
                      last.node == before.node;
  return is_one ? last.node : NodeId();
}

RestartDecision decide_restart(const AttemptEnd& end, StopCause cause, RestartsSoFar so_far,
                               const JobSpec& spec, const PastAttempts& past) {
  if (end.state == AttemptState::succeeded) return {What::succeed, so_far, ""};
  if (cause == StopCause::timeout) return {What::fail, so_far, end.reason};
  if (cause == StopCause::user) return {What::stop, so_far, end.reason};
  if (end.lasting) return {What::fail, so_far, end.reason};
  if (end.address_in_use && so_far.port_retries == 0) {
    ++so_far.port_retries;
    return {What::restart, so_far, "the master port was taken; trying once more on another"};
  }
  const AttemptRow& last = *past.back();
  const std::string kind = to_string(last.fault.kind);
  const bool counts = !is_of_machines(last.fault.kind) || has(spec.restart.count, kind);
  if (spec.restart.on && !names(*spec.restart.on, last.fault)) {
    const bool matters = !counts || spec.max_restarts > 0;
    return {What::fail, so_far,
            end.reason + (matters ? "; restart.on does not name it (" + kind + ")" : "")};
  }
  if (!counts) return begin_anew(end, so_far, spec, past);

  const std::optional<std::chrono::seconds> window = spec.restart.window;
  const int used = window ? counted_within(*window, past) : so_far.restarts;
  const std::string within = window ? " within " + human_duration(*window) : "";
  if (used >= spec.max_restarts) {
    return {What::fail, so_far,
            end.reason + (window && used > 0 ? "; " + times(used) + within + " were all" : "")};
  }
  const bool again = past.size() > 1 && is_same(*past[past.size() - 2], last);
  if (again && spec.restart.same_failure == SameFailure::stop) {
    return {What::fail, so_far,
            end.reason + "; the same at step " + std::to_string(*last.step) +
                " as the attempt before, so it is not tried again (restart.same_failure)"};
  }
  ++so_far.restarts;
  return {What::restart, so_far,
          "restart " + std::to_string(used + 1) + " of " + std::to_string(spec.max_restarts) +
              within + " after " + end.reason,
          backoff(spec.restart, past)};
}

}  // namespace dtrain::head
