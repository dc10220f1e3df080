#include "agent/head/store/state.hpp"

#include <array>

#include "launcher/core/error.hpp"
#include "launcher/spec/values.hpp"

namespace dtrain::head {
namespace {

using J = JobState;
using JE = JobEvent;
constexpr std::array kJob = std::to_array<Transition<J, JE>>({
    {J::queued, JE::stage, J::staging},
    {J::queued, JE::place, J::starting},
    {J::queued, JE::fail, J::failed},  // queue_timeout, or what it comes after failed
    {J::queued, JE::end_stopped, J::stopped},
    {J::staging, JE::place, J::starting},
    {J::staging, JE::restart, J::restarting},
    {J::staging, JE::stop, J::stopping},
    {J::staging, JE::fail, J::failed},
    {J::staging, JE::end_stopped, J::stopped},
    {J::starting, JE::run, J::running},
    {J::starting, JE::restart, J::restarting},
    {J::starting, JE::stop, J::stopping},
    {J::starting, JE::succeed, J::succeeded},
    {J::starting, JE::fail, J::failed},
    {J::running, JE::restart, J::restarting},
    {J::running, JE::stop, J::stopping},
    {J::running, JE::succeed, J::succeeded},
    {J::running, JE::fail, J::failed},
    {J::restarting, JE::stage, J::staging},
    {J::restarting, JE::place, J::starting},
    {J::restarting, JE::fail, J::failed},  // timeout_s
    {J::restarting, JE::end_stopped, J::stopped},
    {J::stopping, JE::end_stopped, J::stopped},
    {J::stopping, JE::succeed, J::succeeded},  // it was done before the stop reached it
    {J::stopping, JE::fail, J::failed},        // it failed before, or timeout_s stopped it
});

using A = AttemptState;
using AE = AttemptEvent;
constexpr std::array kAttempt = std::to_array<Transition<A, AE>>({
    {A::starting, AE::run, A::running},
    {A::starting, AE::stop, A::stopping},
    {A::starting, AE::succeed, A::succeeded},
    {A::starting, AE::fail, A::failed},
    {A::starting, AE::end_stopped, A::stopped},
    {A::starting, AE::lose, A::lost},
    {A::running, AE::stop, A::stopping},
    {A::running, AE::succeed, A::succeeded},
    {A::running, AE::fail, A::failed},
    {A::running, AE::end_stopped, A::stopped},
    {A::running, AE::lose, A::lost},
    {A::stopping, AE::succeed, A::succeeded},
    {A::stopping, AE::fail, A::failed},
    {A::stopping, AE::end_stopped, A::stopped},
    {A::stopping, AE::lose, A::lost},
});

using R = RankState;
using RE = RankEvent;
constexpr std::array kRank = std::to_array<Transition<R, RE>>({
    {R::starting, RE::start, R::running},
    {R::starting, RE::exit, R::exited},
    {R::starting, RE::kill, R::killed},
    {R::starting, RE::lose, R::lost},
    {R::running, RE::exit, R::exited},
    {R::running, RE::kill, R::killed},
    {R::running, RE::lose, R::lost},
});

using N = NodeState;
using NE = NodeEvent;
constexpr std::array kNode = std::to_array<Transition<N, NE>>({
    {N::joining, NE::join, N::ready},       {N::joining, NE::silence, N::lost},
    {N::joining, NE::drain, N::draining},   {N::joining, NE::leave, N::left},
    {N::joining, NE::remove, N::gone},      {N::ready, NE::join, N::ready},
    {N::ready, NE::disconnect, N::joining}, {N::ready, NE::silence, N::lost},
    {N::ready, NE::drain, N::draining},     {N::ready, NE::leave, N::left},
    {N::ready, NE::remove, N::gone},        {N::draining, NE::join, N::draining},
    {N::draining, NE::drain, N::draining},  {N::draining, NE::resume, N::ready},
    {N::draining, NE::drained, N::drained}, {N::draining, NE::silence, N::lost},
    {N::draining, NE::leave, N::left},      {N::draining, NE::remove, N::gone},
    {N::drained, NE::join, N::drained},     {N::drained, NE::drain, N::drained},
    {N::drained, NE::resume, N::ready},     {N::drained, NE::silence, N::lost},
    {N::drained, NE::leave, N::left},       {N::drained, NE::remove, N::gone},
    {N::lost, NE::join, N::ready},          {N::lost, NE::leave, N::left},
    {N::lost, NE::remove, N::gone},         {N::left, NE::join, N::ready},
    {N::left, NE::leave, N::left},          {N::left, NE::remove, N::gone},
    {N::gone, NE::join, N::ready},
});

template <typename Table, typename State, typename Event>
std::optional<State> find(const Table& table, State state, Event event) {
  for (const auto& row : table) {
    if (row.from == state && row.on == event) return row.to;
  }
  return std::nullopt;
}

template <typename Table, typename State>
bool leads_nowhere(const Table& table, State state) {
  for (const auto& row : table) {
    if (row.from == state) return false;
  }
  return true;
}

constexpr std::array kJobNames{"queued",   "staging",   "starting", "running", "restarting",
                               "stopping", "succeeded", "failed",   "stopped"};
constexpr std::array kAttemptNames{"starting", "running", "stopping", "succeeded",
                                   "failed",   "stopped", "lost"};
constexpr std::array kRankNames{"starting", "running", "exited", "killed", "lost"};
constexpr std::array kSearchNames{"running", "stopping", "succeeded", "stopped", "failed"};
constexpr std::array kNodeNames{"joining", "ready", "draining", "drained", "lost", "gone", "left"};

// In the order of FaultKind, behind none.
constexpr const char* kNoFault = "none";
static_assert(kFailures.size() == static_cast<std::size_t>(FaultKind::other));

template <typename State, typename Names>
State from_name(const Names& names, const std::string& text) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<State>(i);
  }
  throw Error(ErrorCode::invalid, "\"" + text + "\" is not a state");
}

}  // namespace

std::span<const Transition<JobState, JobEvent>> job_transitions() {
  return kJob;
}
std::span<const Transition<AttemptState, AttemptEvent>> attempt_transitions() {
  return kAttempt;
}
std::span<const Transition<RankState, RankEvent>> rank_transitions() {
  return kRank;
}
std::span<const Transition<NodeState, NodeEvent>> node_transitions() {
  return kNode;
}

std::optional<JobState> next(JobState state, JobEvent event) {
  return find(kJob, state, event);
}
std::optional<AttemptState> next(AttemptState state, AttemptEvent event) {
  return find(kAttempt, state, event);
}
std::optional<RankState> next(RankState state, RankEvent event) {
  return find(kRank, state, event);
}
std::optional<NodeState> next(NodeState state, NodeEvent event) {
  return find(kNode, state, event);
}

bool counts(NodeState state) {
  return state != NodeState::gone && state != NodeState::left;
}

bool is_final(JobState state) {
  return leads_nowhere(kJob, state);
}
bool is_final(SearchState state) {
  return state != SearchState::running && state != SearchState::stopping;
}
bool is_final(AttemptState state) {
  return leads_nowhere(kAttempt, state);
}
bool is_final(RankState state) {
  return leads_nowhere(kRank, state);
}

const char* to_string(JobState state) noexcept {
  return kJobNames[static_cast<std::size_t>(state)];
}
const char* to_string(AttemptState state) noexcept {
  return kAttemptNames[static_cast<std::size_t>(state)];
}
const char* to_string(RankState state) noexcept {
  return kRankNames[static_cast<std::size_t>(state)];
}
const char* to_string(NodeState state) noexcept {
  return kNodeNames[static_cast<std::size_t>(state)];
}

const char* to_string(FaultKind kind) noexcept {
  return kind == FaultKind::none ? kNoFault : kFailures[static_cast<std::size_t>(kind) - 1];
}

const char* to_string(SearchState state) noexcept {
  return kSearchNames[static_cast<std::size_t>(state)];
}

const char* shown(NodeState state) noexcept {
  return to_string(counts(state) ? state : NodeState::gone);
}

JobState job_state_from(const std::string& text) {
  return from_name<JobState>(kJobNames, text);
}
AttemptState attempt_state_from(const std::string& text) {
  return from_name<AttemptState>(kAttemptNames, text);
}
RankState rank_state_from(const std::string& text) {
  return from_name<RankState>(kRankNames, text);
}
NodeState node_state_from(const std::string& text) {
  return from_name<NodeState>(kNodeNames, text);
}
SearchState search_state_from(const std::string& text) {
  return from_name<SearchState>(kSearchNames, text);
}
FaultKind fault_kind_from(const std::string& text) {
  if (text == kNoFault) return FaultKind::none;
  const int place = static_cast<int>(from_name<FaultKind>(kFailures, text));
  return static_cast<FaultKind>(place + 1);
}

}  // namespace dtrain::head
