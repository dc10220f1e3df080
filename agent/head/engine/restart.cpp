#include "agent/head/engine/restart.hpp"

#include "launcher/core/process_exit.hpp"

namespace dtrain::head {
namespace {

double failed_at(const RankRow& rank) {
  if (rank.error_time > 0) return rank.error_time;
  return rank.ended ? static_cast<double>(to_millis(*rank.ended)) / 1000.0 : 0;
}

}  // namespace

std::optional<RankRow> root_cause(const std::vector<RankRow>& ranks) {
  const RankRow* first = nullptr;
  for (const RankRow& rank : ranks) {
    const bool ended = rank.state == RankState::exited || rank.state == RankState::killed;
    if (!ended || rank.stopped || (rank.code == 0 && rank.signal == 0)) continue;
    if (first == nullptr || failed_at(rank) < failed_at(*first)) first = &rank;
  }
  if (first == nullptr) return std::nullopt;
  return *first;
}

std::string describe(const RankRow& rank) {
  return "rank " + std::to_string(rank.rank) + " on " + rank.node.str() + ": " +
         ProcessExit{rank.code, rank.signal}.str() + (rank.cause.empty() ? "" : ", " + rank.cause);
}

RestartDecision decide_restart(const AttemptEnd& end, StopCause cause, RestartsSoFar so_far,
                               int max_restarts) {
  using What = RestartDecision::What;
  if (end.state == AttemptState::succeeded) return {What::succeed, so_far, ""};
  if (cause == StopCause::timeout) return {What::fail, so_far, end.reason};
  if (cause == StopCause::user) return {What::stop, so_far, end.reason};
  if (end.lasting) return {What::fail, so_far, end.reason};
  if (end.left) return {What::restart, so_far, "begins anew, for " + end.reason};
  if (end.address_in_use && so_far.port_retries == 0) {
    ++so_far.port_retries;
    return {What::restart, so_far, "the master port was taken; trying once more on another"};
  }
  if (so_far.restarts < max_restarts) {
    ++so_far.restarts;
    return {What::restart, so_far,
            "restart " + std::to_string(so_far.restarts) + " of " + std::to_string(max_restarts) +
                " after " + end.reason};
  }
  return {What::fail, so_far, end.reason};
}

}  // namespace dtrain::head
