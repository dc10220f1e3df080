#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

// The states of jobs, attempts, ranks and nodes, as tables: what is not in a table cannot happen.
// Pure data and look-ups, any thread.
namespace dtrain::head {

enum class JobState : std::uint8_t {
  queued,
  staging,
  starting,
  running,
  restarting,  // waits for its next attempt
  stopping,
  succeeded,
  failed,
  stopped,
};
enum class JobEvent : std::uint8_t {
  stage,    // files are being brought to its nodes
  place,    // an attempt was given nodes
  run,      // all ranks of the attempt have started
  restart,  // the attempt ended, another will follow
  stop,     // a stop was asked for while processes may live
  succeed,
  fail,
  end_stopped,  // nothing of it lives, because of a stop
};

enum class AttemptState : std::uint8_t {
  starting,
  running,
  stopping,
  succeeded,
  failed,
  stopped,
  lost
};
enum class AttemptEvent : std::uint8_t {
  run,
  stop,  // its ranks are being ended: by a stop, or since one failed
  succeed,
  fail,
  end_stopped,
  lose,  // a node of it was not heard of any more
};

enum class RankState : std::uint8_t { starting, running, exited, killed, lost };
enum class RankEvent : std::uint8_t {
  start,
  exit,  // by itself, whatever the code
  kill,  // by a signal
  lose,  // its supervisor or node is gone
};

enum class NodeState : std::uint8_t {
  joining,
  ready,
  draining,
  drained,
  lost,
  gone,  // removed
  left,  // by itself; it may come back
};
enum class NodeEvent : std::uint8_t {
  join,        // connected and said who it is
  disconnect,  // the connection closed; it is expected back
  silence,     // not heard of for too long
  drain,       // gets nothing new
  drained,     // and has nothing left
  resume,      // is taken back after all
  leave,       // by itself
  remove,      // given back
};

// Of a search. All but the first two are ends; a stopped one can be resumed.
enum class SearchState : std::uint8_t { running, stopping, succeeded, stopped, failed };

template <typename State, typename Event>
struct Transition {
  State from;
  Event on;
  State to;
};

// What ended an attempt that did not end well: by name kFailures of launcher/spec/values.hpp, in
// their order.
enum class FaultKind : std::uint8_t {
  none,
  exit_code,
  signal,
  out_of_memory,
  not_started,  // its setup failed, or a node could not start its ranks
  node_lost,    // silent for too long, or its machine was started anew
  preempted,    // a node was told to leave, or its provider has taken its machine back
  hang,
  other,
};

std::span<const Transition<JobState, JobEvent>> job_transitions();
std::span<const Transition<AttemptState, AttemptEvent>> attempt_transitions();
std::span<const Transition<RankState, RankEvent>> rank_transitions();
std::span<const Transition<NodeState, NodeEvent>> node_transitions();

// Absent: the event cannot happen in that state.
std::optional<JobState> next(JobState state, JobEvent event);
std::optional<AttemptState> next(AttemptState state, AttemptEvent event);
std::optional<RankState> next(RankState state, RankEvent event);
std::optional<NodeState> next(NodeState state, NodeEvent event);

// The cluster has it: it is neither gone nor has it left.
bool counts(NodeState state);

// No event leads out of it.
bool is_final(JobState state);
bool is_final(SearchState state);
bool is_final(AttemptState state);
bool is_final(RankState state);

const char* to_string(JobState state) noexcept;
const char* to_string(AttemptState state) noexcept;
const char* to_string(RankState state) noexcept;
const char* to_string(NodeState state) noexcept;
const char* to_string(FaultKind kind) noexcept;
const char* to_string(SearchState state) noexcept;
// To people and through the API, to whom one that has left is gone.
const char* shown(NodeState state) noexcept;

// The reverse, for what the database holds. Throws Error(invalid).
JobState job_state_from(const std::string& text);
AttemptState attempt_state_from(const std::string& text);
RankState rank_state_from(const std::string& text);
NodeState node_state_from(const std::string& text);
FaultKind fault_kind_from(const std::string& text);
SearchState search_state_from(const std::string& text);

}  // namespace dtrain::head
