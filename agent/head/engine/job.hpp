#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/engine/hang.hpp"
#include "agent/head/engine/placement.hpp"
#include "agent/head/engine/stragglers.hpp"
#include "agent/head/store/checkpoints.hpp"
#include "agent/head/store/rows.hpp"

// A job with its attempts and their shares, as the engine has them in memory: the rows that the
// store keeps, and what is known beside them. For the engine's own files only (impl.hpp).
namespace dtrain::head {

// An event of a supervisor that is not acknowledged yet. Acknowledgements go out in order, each for
// all before it: of a row of events that are ready the last is kept, and those with an answer.
struct PendingAck {
  bool ready = false;
  std::optional<nlohmann::json> answer;
};

struct Share {
  ShareRow row;
  bool start_sent = false;
  bool met = false;  // it has spoken since the head began, or its node has named it
  // Its machine was started anew, and was heard last then: nothing of the share lives.
  std::optional<Monotonic> machine_gone;
  std::optional<Monotonic> failed;  // it is lost, and was heard last then, or it was heard to fail
  bool prepare_sent = false;
  bool prepared = false;
  // Of the attempt's content there.
  bool stage_sent = false;
  bool staged = false;
  std::uint64_t stage_done = 0;  // bytes
  std::uint64_t stage_total = 0;
  std::uint64_t seen = 0;                    // the newest event, durable or not
  std::set<std::uint64_t> open_checkpoints;  // reports that are being worked on, by seq
  std::optional<std::uint64_t> finish_seq;   // of NodeFinished, until a commit has it
  std::map<std::uint64_t, PendingAck> acks;  // the first is never ready

  bool was_spare = false;

  bool live() const { return row.state == ShareState::waiting || row.state == ShareState::running; }
};

// The shards of one step, until the checkpoint is committed.
struct Collecting {
  struct Shard {
    NodeId node;
    std::uint64_t seq = 0;
    ShardReport report;
    bool placed = false;
    bool waits = false;  // for room, with the rest
  };
  int order = 0;  // of its first report, among the steps of its attempt
  int shards = 1;
  nlohmann::json metrics = nlohmann::json::object();
  std::map<int, Shard> reported;
  Monotonic heard{};  // of the last of them
  bool committing = false;
  bool held = false;    // until one that was reported later, and is being committed, is or is not
  std::string no_room;  // why there was none; empty: there was
  std::chrono::seconds room_look{0};  // the last pause before another try
  std::optional<Monotonic> again;     // when it is tried again; absent: it does not wait for room

  // Until when the others are waited for; absent: none is.
  std::optional<Monotonic> shards_due() const;
};

// A checkpoint that a dead head had committed, and of which not all shards were reported again.
struct Adopted {
  std::string path;
  std::set<int> unheard;  // the shards
};

// "the checkpoint of step 7 waits for room: …"
std::string room_words(std::int64_t step, const Collecting& collecting);

// The stacks of an attempt's ranks that their nodes are to keep, until all have said that they did.
struct StackLook {
  WallTime at;
  Monotonic until;  // it is waited for no longer
  std::set<NodeId> awaited;
  int kept = 0;         // nodes that have kept some
  int not_kept = 0;     // nodes that have not kept all
  std::string why_not;  // of the first of these, with its name

  void miss(const NodeId& node, const std::string& why);
};

struct Attempt {
  AttemptRow row;
  bool durable = false;
  bool from_store = false;                                 // it was there when the engine started
  std::vector<Share> shares;                               // by node rank; none is ever taken away
  mutable std::unordered_map<NodeId, std::size_t> places;  // of those that were looked for
  std::map<int, RankRow> ranks;                            // those that have started or ended
  std::map<std::int64_t, Collecting> collecting;           // by step
  int last_order = 0;                                      // of a Collecting
  int newest_order = 0;                                    // of those that are committed
  std::int64_t newest_step = 0;                            // its step
  std::map<std::int64_t, Adopted> adopted;                 // the same
  int file_work = 0;                                       // tasks of its checkpoints at the worker
  int warnings = 0;
  std::string failure;  // why it is being ended, other than a stop
  bool left = false;    // for that reason: a node was told to leave
  // Of its nodes that were lost the one that was silent first, and since when.
  NodeId lost;
  Monotonic lost_since;
  Advance advance;         // while it lives
  Stragglers stragglers;   // the same
  std::string hang;        // that it makes no progress, and where its ranks are; empty: it does
  std::string hang_where;  // the second half of that
  bool hung = false;       // it was ended for that
  std::optional<Monotonic> hang_again;  // when it is looked once more for who is silent
  std::optional<StackLook> look;        // what its ranks do, which their nodes are to keep
  // Before its ranks start.
  std::string token_file;  // in a storage that all nodes must see
  std::string token;
  bool pairs_asked = false;
  bool pairs_passed = false;

  Share* share(const NodeId& node);
  const Share* share(const NodeId& node) const;
  bool ending() const { return row.state == AttemptState::stopping; }
  bool waits_for_room() const;
  void note_committed(const Collecting& which, std::int64_t step);
  void lose(const NodeId& node, Monotonic heard);
};

// A node that is kept for a job beyond its own.
struct Spare {
  PlacedShare share;
  int number = 0;  // of the attempt that it is prepared for; 0: not yet
  bool stage_sent = false;
  bool staged = false;
  bool pairs_asked = false;
  bool pairs_passed = false;
  std::optional<Monotonic> pairs_again;  // not before that: others were in the way
  bool ready = false;
};

struct Effect {
  std::uint64_t gate = 0;  // number of the commit that must be durable first; 0: none
  std::function<void()> run;
};

struct Job {
  JobRow row;
  JobSpec spec;
  bool durable = false;
  std::int64_t order = 0;
  Monotonic created_at;
  std::optional<Monotonic> started_at;
  std::deque<Attempt> attempts;            // a new one leaves references to the others as they are
  std::vector<CheckpointRow> checkpoints;  // by number
  std::set<int> removing;                  // CheckpointRow::removing; those too that are gone
  int least_number = 0;                    // of the next checkpoint
  std::set<int> found;                     // of those that a restored head has found in storage
  int named = 0;  // the highest number of an attempt that something beside the rows has named
  nlohmann::json metrics = nlohmann::json::object();  // {name: {"value", "rank"}}, kNamesMax
  bool names_told = false;                            // that it has reported more
  nlohmann::json progress;                            // the newest, or null
  std::string waits;                                  // the queue's reason
  std::string overtakes;                              // why its attempt starts before another's
  int waits_noted = 0;
  std::optional<Monotonic> not_before;     // a lost node's lease runs until then
  std::optional<Monotonic> backoff_until;  // its restart.backoff_s
  WallTime backoff_ends;                   // the same, for people
  std::optional<Monotonic> storage_look;   // its storage was not there: held; looked for then
  NodeId suspect;                          // where its last two attempts failed; empty: nowhere
  std::vector<Spare> spares;
  std::string lacks;                    // why there are not as many as it asks for
  std::map<NodeId, std::string> unfit;  // nodes that could not be prepared as such, and why
  std::set<NodeId> spared;              // that have, or had, files of it and none of its ranks
  int spares_noted = 0;
  bool gave_up_kept = false;   // nothing is kept for it until an attempt has begun
  bool preparing = false;      // the newest attempt is with the worker
  bool releases_told = false;  // that the oldest output goes
  bool grows_told = false;     // that it cannot
  Monotonic staging_told;      // when followers last heard how far it is
  std::vector<Engine::Answer> submitters;

  // What the world has been told.
  struct Shown {
    JobState state = JobState::queued;
    std::string reason;
    std::optional<int> exit_code;
    std::optional<WallTime> ended;
    std::string error;
    std::int64_t event = 0;
  } shown;
  std::deque<Effect> outbox;

  bool ended() const { return is_final(row.state); }
  // The attempt that is under way; null when there is none.
  Attempt* live_attempt();
  const Attempt* live_attempt() const;
  Attempt* find_attempt(int number);
};

}  // namespace dtrain::head
