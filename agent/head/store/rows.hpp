#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/head/store/state.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"

// What the head keeps, as plain data: one struct for a row of each table. A row is always written
// whole; JSON stands as text.
namespace dtrain::head {

enum class StopCause : std::uint8_t { none, user, timeout };

struct JobRow {
  JobId id;
  std::string submission_id;  // empty: none was given
  std::string spec;           // JSON, written once
  JobState state = JobState::queued;
  std::string reason;
  std::optional<int> exit_code;
  int attempt = 0;       // the newest, 0 before the first
  int restarts = 0;      // of max_restarts
  int port_retries = 0;  // restarts after "address in use": outside max_restarts
  StopCause stop_cause = StopCause::none;
  std::optional<std::int64_t> stop_grace_s;
  WallTime created;
  std::optional<WallTime> started;
  std::optional<WallTime> ended;
  std::string error;    // JSON object of docs/api.md, or empty
  std::string metrics;  // JSON: {name: {"value", "rank"}}, the last values
  std::optional<std::int64_t> step;
  std::vector<std::string> spares;  // nodes that are kept for it

  bool operator==(const JobRow&) const = default;
};

// What ended an attempt that did not end well.
struct Fault {
  FaultKind kind = FaultKind::none;
  int code = 0;
  int signal = 0;
  NodeId node;        // where; empty: not known
  std::string words;  // of the rank, each row of digits as one #: equal when it happens again

  bool operator==(const Fault&) const = default;
};

struct AttemptRow {
  JobId job;
  int attempt = 1;
  AttemptState state = AttemptState::starting;
  std::string reason;
  std::string token;
  int world_size = 0;
  int master_port = 0;  // 0: not known yet
  std::optional<std::string> checkpoint;
  WallTime created;
  std::optional<WallTime> started;
  std::optional<WallTime> ended;
  Fault fault;
  std::optional<std::int64_t> step;  // the last that its ranks reported
  bool counted = false;              // its end, among max_restarts
  std::string causes;                // JSON: which of its failures came first; empty: none

  bool operator==(const AttemptRow&) const = default;
};

enum class ShareState : std::uint8_t {
  waiting,   // its node has not been told to start it, or nothing was heard since
  running,   // its supervisor has spoken
  finished,  // nothing of it lives
  lost,      // its node was given up; something of it may live there
};

// One node's part of an attempt.
struct ShareRow {
  JobId job;
  int attempt = 1;
  NodeId node;
  int node_rank = 0;
  int first_rank = 0;
  int nproc = 1;
  double cpus = 0;
  std::uint64_t memory = 0;  // bytes
  std::vector<int> gpus;
  bool gpus_assigned = false;
  std::string address;
  std::string machine;
  std::string root;
  ShareState state = ShareState::waiting;
  bool ranks_started = false;
  // succeeded, failed, lasting (failed, as each further attempt would), stopped, lost; empty while
  // it lives
  std::string outcome;
  std::string reason;
  std::uint64_t seq = 0;  // of the last event that took effect

  bool operator==(const ShareRow&) const = default;
};

struct RankRow {
  JobId job;
  int attempt = 1;
  int rank = 0;
  NodeId node;
  RankState state = RankState::starting;
  int pid = 0;
  int code = 0;
  int signal = 0;
  std::optional<WallTime> ended;
  bool stopped = false;
  std::string error_message;
  double error_time = 0;  // seconds since 1970; 0: none
  std::vector<std::string> last_lines;
  bool address_in_use = false;
  std::string cause;  // what ended it, if its node knows more than its exit says
  // When it failed, in nanoseconds by CLOCK_BOOTTIME of its machine, at the latest, and how much
  // earlier it can have been; how far that clock was ahead of the head's, if that is known; and by
  // the head's, when that was heard.
  std::optional<std::int64_t> at;
  std::int64_t loose = 0;
  std::optional<std::int64_t> clock_by;
  std::int64_t clock_uncertain = 0;
  std::int64_t heard = 0;

  bool operator==(const RankRow&) const = default;
};

struct NodeRow {
  NodeId node;
  std::string address;
  std::string boot_id;
  std::string machine;
  std::string version;
  std::string root;
  std::string log;
  int cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes
  NodeState state = NodeState::joining;
  std::string reason;
  bool joined = false;  // by itself, with a join credential: no `up` logs in to it
  std::string type;     // what a node that joined was said to be; empty: nothing
  std::string drain;    // why it is to get nothing new, lost or not; empty: it may

  bool operator==(const NodeRow&) const = default;
};

enum class EventKind : std::uint8_t {
  message,  // for people
  state,    // a change of state; the message is the new one
};
enum class EventLevel : std::uint8_t { info, warning, error };

struct EventRow {
  std::int64_t id = 0;  // grows over all jobs
  JobId job;
  int attempt = 0;
  WallTime time;
  EventKind kind = EventKind::message;
  EventLevel level = EventLevel::info;
  std::string message;

  bool operator==(const EventRow&) const = default;
};

struct MetricsRow {
  JobId job;
  int attempt = 1;
  int rank = 0;
  std::uint64_t seq = 0;  // of the event that brought it: a repeat is not kept twice
  std::int64_t step = 0;
  WallTime time;
  std::string metrics;  // JSON

  bool operator==(const MetricsRow&) const = default;
};

struct CheckpointRow {
  JobId job;
  int number = 0;
  int attempt = 1;
  std::int64_t step = 0;
  std::string path;
  std::string metrics;  // JSON
  WallTime created;
  std::uint64_t size = 0;  // bytes of its files
  bool removing = false;   // num_to_keep lets it go: shown to nobody, and goes after its folder

  bool operator==(const CheckpointRow&) const = default;
};

// The metrics of `from` become `to`'s too, as of attempts that lie before its first.
struct MetricsInherited {
  JobId from;
  JobId to;
  int attempts = 0;  // of `from`: its newest becomes attempt 0
};

// A job that was removed, with all that is theirs: what of it lies on a node that is away, or was
// being deleted when the head died, still goes. Its id never comes again.
struct ForgottenRow {
  JobId job;
  WallTime time;
  std::string reason;  // why it went by itself; empty: somebody asked for it

  bool operator==(const ForgottenRow&) const = default;
};

// The database is a copy of an earlier time: what happened after it is not known here.
struct RestoredRow {
  // Ids of events may have been told since that stand in no row.
  static constexpr std::int64_t kEventsUnknown = 1000000;

  WallTime time;                 // when it took the place of another
  WallTime copied;               // what it holds is of then
  std::string why;               // what was wrong with the other
  std::string damaged;           // where that one is kept; empty: it was not there
  int salvaged = 0;              // jobs that could be read from that one, as they were later
  std::int64_t first_event = 0;  // ids from here on
  std::set<JobId> open;          // had not ended, and their next attempt has not begun since
  bool told = false;             // to these jobs
  bool settled = false;          // no attempt that is not known here may run any more

  bool operator==(const RestoredRow&) const = default;
};

struct SearchRow {
  SearchId id;
  std::string submission_id;  // empty: none was given
  std::string spec;           // JSON, written once
  SearchState state = SearchState::running;
  std::string reason;
  WallTime created;
  WallTime since;  // its time budget counts from here
  std::optional<WallTime> ended;
  std::string summary;  // JSON, of one that has ended; else empty

  bool operator==(const SearchRow&) const = default;
};

// One thing that happened in a search, or was decided where the decision does not follow from
// what happened (engine/search.hpp).
struct SearchRecord {
  enum class Kind : std::uint8_t {
    learned,       // from another search: `text` are parameters, `number` an Outcome::State
    started,       // the trial, with the parameters `text`, as `job`; empty: it could not begin
    leg,           // it goes on as `job`
    reported,      // `text`: which of the search's conditions to stop was met; empty: none
    met,           // one was met, by a report without the metric
    checkpointed,  // `number` of its newest leg
    leg_ended,     // `number` is a JobState, `text` the reason
    resumed,       // by the scheduler
    halted,        // `number` is a Search::Halt, `step` the grace of a person's stop in seconds
    continued,
    ended,  // `number` is a SearchState
  };

  SearchId search;
  std::int64_t seq = 0;  // a later one of the same number takes its place
  Kind kind = Kind::started;
  std::uint64_t trial = 0;
  std::int64_t number = 0;
  std::int64_t iteration = 0;
  std::optional<std::int64_t> step;
  std::optional<double> time;
  std::optional<double> value;  // absent: NaN
  std::optional<double> best;
  std::string job;
  std::string text;

  bool operator==(const SearchRecord&) const = default;
};

// What one thing that happened changes: written whole or not at all.
struct Changes {
  std::vector<JobRow> jobs;
  std::vector<AttemptRow> attempts;
  std::vector<ShareRow> shares;
  std::vector<RankRow> ranks;
  std::vector<NodeRow> nodes;
  std::vector<EventRow> events;
  std::vector<MetricsInherited> metrics_inherited;
  std::vector<MetricsRow> metrics;
  std::vector<CheckpointRow> checkpoints;
  std::vector<std::pair<JobId, int>> checkpoints_deleted;
  std::vector<ForgottenRow> jobs_forgotten;  // the rows of these jobs go
  std::vector<SearchRow> searches;
  std::vector<SearchRecord> search_records;
  std::vector<SearchId> searches_forgotten;  // with their records
  std::optional<RestoredRow> restored;
};

// All but events and metrics, which are read when asked for.
struct Loaded {
  std::vector<JobRow> jobs;  // oldest first
  std::vector<AttemptRow> attempts;
  std::vector<ShareRow> shares;
  std::vector<RankRow> ranks;  // of attempts that have not ended, and of those that failed
  std::vector<NodeRow> nodes;
  std::vector<CheckpointRow> checkpoints;  // by number
  std::vector<ForgottenRow> forgotten;
  std::vector<SearchRow> searches;  // oldest first; their records are read when asked for
  std::int64_t last_event = 0;
  std::optional<RestoredRow> restored;  // the last time, if there was one
};

}  // namespace dtrain::head
