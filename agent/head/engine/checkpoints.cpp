#include <cstdlib>

#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "agent/head/engine/retention.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// From a rank's report of a shard to a committed checkpoint, and what is deleted for it.
namespace dtrain::head {
namespace {

constexpr int kMaxShards = 100000;
constexpr std::size_t kMaxCollecting = 64;  // steps of an attempt whose shards are not all there
constexpr std::chrono::minutes kShardsPatience{30};  // more than a rank waits for room on its disk
// Where there was no room it is looked again, each time after twice as long: the node hashes it
// anew.
constexpr std::chrono::seconds kFirstLook{5};
constexpr std::chrono::seconds kLastLook{60};

}  // namespace

fs::path Engine::Impl::storage(const Job& job) const {
  if (job.spec.storage_path.empty()) return options.root.storage(job.row.id);
  return fs::path(job.spec.storage_path) / job.row.id.str();
}

CheckpointRow Engine::Impl::row_of(const JobId& job, const CommittedCheckpoint& checkpoint) {
  return {job,
          checkpoint.number,
          checkpoint.attempt,
          checkpoint.step,
          checkpoint.path.string(),
          wire::dump(checkpoint.metrics),
          checkpoint.created,
          checkpoint.size};
}

// What is on disk is what counts: committed ones that a dead head could not record are taken in,
// those that are not whole are dropped.
void Engine::Impl::reconcile(Tx& tx, Job& job, const StorageScan& scan) {
  for (const std::string& broken : scan.broken) note(tx, job, EventLevel::warning, broken);
  std::vector<CheckpointRow> rows;
  for (const CommittedCheckpoint& found : scan.whole) {
    if (!job.removing.contains(found.number)) rows.push_back(row_of(job.row.id, found));
  }
  for (const CheckpointRow& row : job.checkpoints) {
    const bool there = std::any_of(rows.begin(), rows.end(), [&](const CheckpointRow& other) {
      return other.number == row.number;
    });
    if (!there) tx.changes.checkpoints_deleted.emplace_back(job.row.id, row.number);
  }
  for (const CheckpointRow& row : rows) {
    if (std::find(job.checkpoints.begin(), job.checkpoints.end(), row) == job.checkpoints.end()) {
      tx.changes.checkpoints.push_back(row);
    }
  }
  job.checkpoints = std::move(rows);
  job.least_number = std::max(job.least_number, scan.highest + 1);
}

void Engine::Impl::checkpoint_report(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                                     const wire::RankReport& report) {
  const nlohmann::json& body = report.body;
  const std::int64_t step = body.value("step", std::int64_t{0});
  const int shard = body.value("shard", 0);
  const int shards = body.value("shards", 1);
  const auto refuse = [&](const std::string& why) {
    Tx tx;
    warn(tx, job, attempt,
         "rank " + std::to_string(report.rank) + ": its checkpoint of step " +
             std::to_string(step) + " is refused: " + why);
    keep(tx, share);
    ack_when_durable(tx, share, seq, nlohmann::json{{"error", why}});
    commit(job, std::move(tx), Urgency::now);
  };
  if (shards < 1 || shards > kMaxShards || shard < 0 || shard >= shards) {
    refuse("there is no shard " + std::to_string(shard) + " of " + std::to_string(shards));
    return;
  }
  if (const auto whole = attempt.adopted.find(step);
      whole != attempt.adopted.end() && whole->second.unheard.erase(shard) > 0) {
    Tx tx;
    keep(tx, share);
    ack_when_durable(tx, share, seq, nlohmann::json{{"ok", true}, {"path", whole->second.path}});
    commit(job, std::move(tx), Urgency::now);
    return;
  }
  auto found = attempt.collecting.find(step);
  if (found == attempt.collecting.end()) {
    if (attempt.collecting.size() >= kMaxCollecting) {
      refuse("too many other checkpoints wait for their shards");
      return;
    }
    found = attempt.collecting.emplace(step, Collecting{}).first;
    found->second.order = ++attempt.last_order;
    found->second.shards = shards;
  }
  Collecting& collecting = found->second;
  if (collecting.shards != shards) {
    refuse("other ranks said that it has " + std::to_string(collecting.shards) + " shards");
    return;
  }
  if (collecting.reported.contains(shard)) {
    refuse("shard " + std::to_string(shard) + " was reported already");
    return;
  }
  if (body.contains("metrics") && body["metrics"].is_object()) {
    for (const auto& [name, value] : body["metrics"].items()) {
      // Of several shards with the same name the first one counts.
      if (shard == 0 || !collecting.metrics.contains(name)) collecting.metrics[name] = value;
    }
  }
  share.open_checkpoints.insert(seq);

  ShardReport task;
  task.job = job.row.id;
  task.attempt = attempt.row.attempt;
  task.step = step;
  task.shard = shard;
  task.shards = shards;
  task.path = body.value("path", "");
  if (task.path.is_relative()) task.path = fs::path(job.spec.workdir) / task.path;
  task.keep = body.value("keep", false);
  collecting.reported[shard] = {share.row.node, seq, task, false, false};
  collecting.heard = clock.now();
  bring_shard(job, attempt, share, task);
}

// To where the shards of its step are collected.
void Engine::Impl::bring_shard(Job& job, Attempt& attempt, const Share& share,
                               const ShardReport& task) {
  const char* home = std::getenv("HOME");
  std::vector<fs::path> forbidden = {storage(job), options.root.root, job.spec.workdir,
                                     home != nullptr ? home : ""};
  for (const Share& each : attempt.shares) forbidden.emplace_back(each.row.root);
  // A path means the machine of the rank that named it. Of another machine's files the head knows
  // but one: what was written into its place in a storage that both see.
  const bool far = remote(share) && (job.spec.storage_path.empty() ||
                                     task.path.lexically_normal() !=
                                         shard_place(storage(job), task).lexically_normal());
  const bool in_place = remote(share);
  // Of an attempt that a head before this one began: the only case in which they are looked at. All
  // but those of which nothing is on record are left unread: a job has many, and reports more.
  std::set<int> known_numbers;
  fs::path recorded;
  if (attempt.from_store) {
    known_numbers = job.removing;
    for (const CheckpointRow& row : job.checkpoints) {
      // What a restored head has found may be this very one.
      if (job.found.contains(row.number)) continue;
      known_numbers.insert(row.number);
      if (row.attempt == task.attempt && row.step == task.step) recorded = row.path;
    }
  }
  ++attempt.file_work;
  work_in<Placed>(
      job.spec.storage_path, StorageWork::bulk,
      [task, forbidden, known_numbers, recorded, far, in_place, folder = storage(job),
       repeated = attempt.from_store]() -> Placed {
        try {
          if (repeated) {
            // The head may have died between the rename and the record of it.
            for (CommittedCheckpoint& whole : scan_storage(folder, known_numbers).whole) {
              if (whole.attempt == task.attempt && whole.step == task.step) {
                return {std::move(whole), std::nullopt, false};
              }
            }
            // Recorded by a head that died before it had heard of all shards again. What still
            // lies where it was reported is something newer.
            if (!recorded.empty() && task.shards > 1 && (task.keep || !fs::exists(task.path))) {
              return {std::nullopt, std::nullopt, false, recorded};
            }
          }
          if (far) return {std::nullopt, std::nullopt, !has_shard(folder, task)};
          if (in_place) {
            take_placed(folder, task);
          } else {
            place_shard(folder, task, forbidden);
          }
          return {};
        } catch (const std::exception& error) {
          return {std::nullopt, as_error(error), false};
        }
      },
      [this, task, node = share.row.node](Placed result) {
        if (result.fetch) {
          fetch_shard(task.job, task, node);
        } else {
          shard_placed(task.job, task.attempt, task.step, task.shard, std::move(result));
        }
      });
}

// The shard lies on another machine.
void Engine::Impl::fetch_shard(const JobId& id, const ShardReport& task, const NodeId& node) {
  const auto fail = [this, task](const Error& error) {
    shard_placed(task.job, task.attempt, task.step, task.shard, {std::nullopt, error, false});
  };
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(task.attempt);
  Share* share = attempt == nullptr ? nullptr : attempt->share(node);
  if (share == nullptr) return;
  // What is asked of a node that was given up nobody gives up once more.
  const auto its = nodes.find(node);
  if (share->row.state == ShareState::lost || its == nodes.end() ||
      its->second.row.state == NodeState::lost || !counts(its->second.row.state)) {
    fail(Error(ErrorCode::unreachable, node.str() + " was lost"));
    return;
  }
  wire::ShardAsk ask;
  ask.job = id;
  ask.path = task.path.string();
  ask.shard = task.shard;
  ask.shards = task.shards;
  ask.step = task.step;
  ask.keep = task.keep;
  ask.forbidden = {job->spec.workdir, storage_of(*job, *share)};
  if (!job->spec.storage_path.empty()) ask.storage = storage_of(*job, *share);
  const fs::path folder = storage(*job);
  const auto transfer = std::make_shared<std::string>();
  auto fetched = [this, task, folder, storage_path = job->spec.storage_path, fail, node, transfer,
                  guard = std::weak_ptr<int>(alive)](std::optional<Error> error,
                                                     std::vector<FileEntry> files) {
    if (!guard.lock()) return;
    if (error) {
      fail(*error);
      return;
    }
    work_in<Placed>(
        storage_path, StorageWork::bulk,
        [task, folder, files = std::move(files)]() -> Placed {
          try {
            take_incoming(folder, task, files);
            return {};
          } catch (const std::exception& failed) {
            return {std::nullopt, as_error(failed), false};
          }
        },
        [this, task, node, transfer](Placed result) {
          nodes_out.shard_taken(node, *transfer, result.error);
          shard_placed(task.job, task.attempt, task.step, task.shard, std::move(result));
        });
  };
  *transfer = nodes_out.fetch_shard(node, ask, incoming_folder(folder, task), std::move(fetched));
}

void Engine::Impl::shard_placed(const JobId& id, int number, std::int64_t step, int shard,
                                Placed result) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
  if (attempt == nullptr) return;
  --attempt->file_work;
  const auto found = attempt->collecting.find(step);
  const auto reported = found == attempt->collecting.end() ? nullptr : &found->second.reported;
  if (reported == nullptr || !reported->contains(shard)) {
    check_end(id);
    return;
  }
  if (result.adopted) {
    // All shards are in it, those too that are reported again only later.
    Adopted& whole = attempt->adopted[step];
    whole.path = result.adopted->path.string();
    for (int each = 0; each < found->second.shards; ++each) {
      if (!reported->contains(each)) whole.unheard.insert(each);
    }
    ++attempt->file_work;
    committed(id, number, step, {std::move(result.adopted), std::nullopt});
    return;
  }
  if (result.error && result.error->code() == ErrorCode::exhausted && !attempt->ending()) {
    reported->at(shard).waits = true;
    wait_for_room(*job, *attempt, step, *result.error);
    return;
  }
  if (result.error || !result.known.empty()) {
    const Collecting::Shard answered = reported->at(shard);
    nlohmann::json answer = {{"ok", true}, {"path", result.known.string()}};
    Tx tx;
    if (!result.error) {
      attempt->note_committed(found->second, step);
    } else {
      const std::string why = result.error->what();
      answer = nlohmann::json::object({{"error", why}});
      warn(tx, *job, *attempt,
           "shard " + std::to_string(shard) + " of the checkpoint of step " + std::to_string(step) +
               " is refused: " + why);
    }
    reported->erase(shard);
    if (reported->empty()) attempt->collecting.erase(found);
    if (Share* share = attempt->share(answered.node)) {
      share->open_checkpoints.erase(answered.seq);
      ack_when_durable(tx, *share, answered.seq, answer);
      keep(tx, *share);
    }
    commit(*job, std::move(tx), Urgency::now);
    check_end(id);
    return;
  }
  Collecting& collecting = found->second;
  collecting.reported[shard].placed = true;
  const bool all = static_cast<int>(collecting.reported.size()) == collecting.shards &&
                   std::all_of(collecting.reported.begin(), collecting.reported.end(),
                               [](const auto& each) { return each.second.placed; });
  if (all) {
    start_commit(*job, *attempt, step);
  } else {
    check_end(id);
  }
}

void Attempt::note_committed(const Collecting& which, std::int64_t step) {
  if (which.order < newest_order) return;
  newest_order = which.order;
  newest_step = step;
}

// The newest is the one with the highest number, and num_to_keep goes by it: what was reported
// earlier never gets a higher one. Steps say nothing of that: a program may go back.
void Engine::Impl::start_commit(Job& job, Attempt& attempt, std::int64_t step) {
  Collecting& collecting = attempt.collecting.at(step);
  if (attempt.newest_order > collecting.order) {
    Tx tx;
    drop_collecting(tx, job, attempt, step,
                    "that of step " + std::to_string(attempt.newest_step) +
                        ", which was reported after it, was here before it");
    commit(job, std::move(tx), Urgency::now);
    check_end(job.row.id);
    return;
  }
  collecting.held =
      std::any_of(attempt.collecting.begin(), attempt.collecting.end(), [&](const auto& other) {
        return other.second.committing && other.second.order > collecting.order;
      });
  if (collecting.held) return;
  collecting.committing = true;
  CommitRequest request;
  request.job = job.row.id;
  request.attempt = attempt.row.attempt;
  request.step = step;
  request.shards = collecting.shards;
  request.world_size = attempt.row.world_size;
  request.metrics = collecting.metrics;
  request.created = clock.wall();
  request.least_number = job.least_number;
  ++attempt.file_work;
  work_in<Committed>(
      job.spec.storage_path, StorageWork::bulk,
      [request, folder = storage(job)]() -> Committed {
        try {
          return {commit_checkpoint(folder, request), std::nullopt};
        } catch (const std::exception& error) {
          return {std::nullopt, as_error(error)};
        }
      },
      [this, id = job.row.id, number = attempt.row.attempt, step](Committed result) {
        committed(id, number, step, std::move(result));
      });
}

// Whether one that was reported later is committed is known now.
void Engine::Impl::commit_held(Job& job, Attempt& attempt) {
  std::vector<std::int64_t> steps;
  for (auto& [step, collecting] : attempt.collecting) {
    if (std::exchange(collecting.held, false)) steps.push_back(step);
  }
  for (const std::int64_t step : steps) {
    if (attempt.collecting.contains(step)) start_commit(job, attempt, step);
  }
}

std::string room_words(std::int64_t step, const Collecting& collecting) {
  return printable(
      "the checkpoint of step " + std::to_string(step) + " waits for room: " + collecting.no_room,
      false);
}

bool Attempt::waits_for_room() const {
  return std::any_of(collecting.begin(), collecting.end(),
                     [](const auto& each) { return each.second.again.has_value(); });
}

// A full disk ends no job: the ranks, which go on, have their answer once there is room.
void Engine::Impl::wait_for_room(Job& job, Attempt& attempt, std::int64_t step,
                                 const Error& error) {
  Collecting& collecting = attempt.collecting.at(step);
  if (!collecting.again) {  // the first of its shards to find none this time
    collecting.room_look = std::clamp(2 * collecting.room_look, kFirstLook, kLastLook);
    collecting.again = clock.now() + collecting.room_look;
  }
  if (std::exchange(collecting.no_room, error.what()).empty()) {
    Tx tx;
    warn(tx, job, attempt, room_words(step, collecting));
    commit(job, std::move(tx), Urgency::soon);
  }
  rearm();
  check_end(job.row.id);
}

void Engine::Impl::look_for_room(Job& job, Attempt& attempt) {
  std::vector<std::int64_t> placed;
  for (auto& [step, collecting] : attempt.collecting) {
    if (!collecting.again || *collecting.again > clock.now()) continue;
    collecting.again.reset();
    bool all_placed = static_cast<int>(collecting.reported.size()) == collecting.shards;
    for (auto& [number, shard] : collecting.reported) {
      all_placed = all_placed && shard.placed;
      const Share* share = attempt.share(shard.node);
      if (!std::exchange(shard.waits, false) || share == nullptr) continue;
      bring_shard(job, attempt, *share, shard.report);
    }
    if (all_placed) placed.push_back(step);
  }
  for (const std::int64_t step : placed) {
    if (attempt.collecting.contains(step)) start_commit(job, attempt, step);
  }
}

std::optional<Monotonic> Collecting::shards_due() const {
  if (static_cast<int>(reported.size()) >= shards) return std::nullopt;
  return heard + kShardsPatience;
}

// Ranks wait for as long as it takes until they have their answer: also those whose others have had
// an error, or ended, and never report theirs.
void Engine::Impl::look_for_shards(Job& job, Attempt& attempt) {
  std::vector<std::int64_t> late;
  for (auto& [step, collecting] : attempt.collecting) {
    const auto due = collecting.shards_due();
    if (!due || *due > clock.now()) continue;
    if (!all_are_heard(attempt) || attempt.file_work > 0 || attempt.waits_for_room()) {
      collecting.heard = clock.now();  // they may be on their way
    } else {
      late.push_back(step);
    }
  }
  if (late.empty()) return;
  Tx tx;
  for (const std::int64_t step : late) {
    drop_collecting(tx, job, attempt, step,
                    "not all of its shards came within " + human_duration(kShardsPatience));
  }
  commit(job, std::move(tx), Urgency::now);
  commit_held(job, attempt);
  check_end(job.row.id);
}

void Engine::Impl::committed(const JobId& id, int number, std::int64_t step, Committed result) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
  if (attempt == nullptr) return;
  --attempt->file_work;
  if (result.error && result.error->code() == ErrorCode::exhausted && !attempt->ending() &&
      attempt->collecting.contains(step)) {
    attempt->collecting.at(step).committing = false;
    commit_held(*job, *attempt);
    wait_for_room(*job, *attempt, step, *result.error);
    return;
  }
  Tx tx;
  if (result.error) {
    const std::string why = result.error->what();
    drop_collecting(tx, *job, *attempt, step, why);
    commit(*job, std::move(tx), Urgency::now);
    commit_held(*job, *attempt);
    check_end(id);
    return;
  }
  const CheckpointRow row = row_of(id, *result.checkpoint);
  job->least_number = std::max(job->least_number, row.number + 1);
  std::erase_if(job->checkpoints,
                [&](const CheckpointRow& other) { return other.number == row.number; });
  const auto later =
      std::find_if(job->checkpoints.begin(), job->checkpoints.end(),
                   [&](const CheckpointRow& other) { return other.number > row.number; });
  job->checkpoints.insert(later, row);
  tx.changes.checkpoints.push_back(row);
  note_checkpoint(tx, *job, row);
  note(tx, *job, EventLevel::info,
       fs::path(row.path).filename().string() + " committed at step " + std::to_string(row.step) +
           " (" + human_bytes(row.size) + ")");

  const auto found = attempt->collecting.find(step);
  if (found != attempt->collecting.end()) attempt->note_committed(found->second, step);
  // Those that wait for room need not come any more: start_commit() would drop them.
  std::vector<std::int64_t> late;
  for (const auto& [other, collecting] : attempt->collecting) {
    if (other != step && collecting.order < attempt->newest_order && !collecting.no_room.empty() &&
        !collecting.committing) {
      late.push_back(other);
    }
  }
  for (const std::int64_t other : late) {
    drop_collecting(tx, *job, *attempt, other,
                    "that of step " + std::to_string(step) + " came before there was room");
  }
  set_suspect_aside(tx, *job, *attempt);
  retain_checkpoints(tx, *job, attempt);
  if (found != attempt->collecting.end()) {
    const nlohmann::json answer = {{"ok", true}, {"path", row.path}};
    for (const auto& [shard, reported] : found->second.reported) {
      if (Share* share = attempt->share(reported.node)) {
        share->open_checkpoints.erase(reported.seq);
        ack_when_durable(tx, *share, reported.seq, answer);
      }
    }
    attempt->collecting.erase(found);
  }
  for (Share& share : attempt->shares) {
    // A finished one is kept with the attempt's end when nothing else is to be done.
    if (share.live() || attempt->file_work > 0) keep(tx, share);
  }
  commit(*job, std::move(tx), Urgency::now);
  commit_held(*job, *attempt);
  check_end(id);
}

void Engine::Impl::retain_checkpoints(Tx& tx, Job& job, const Attempt* running) {
  std::set<int> in_use;
  if (running != nullptr && running->row.checkpoint) {
    if (const auto number = checkpoint_number(job, *running->row.checkpoint)) {
      in_use.insert(*number);
    }
  }
  if (const SearchOf* search = search_of(job)) in_use.merge(search->state->pinned(job.row.id));
  const std::vector<int> old = checkpoints_to_delete(job.checkpoints, job.spec.checkpoint, in_use);
  for (const int each : old) {
    const auto row = std::find_if(job.checkpoints.begin(), job.checkpoints.end(),
                                  [&](const CheckpointRow& other) { return other.number == each; });
    row->removing = true;
    tx.changes.checkpoints.push_back(*row);
    job.checkpoints.erase(row);
    job.removing.insert(each);
    note(tx, job, EventLevel::info,
         checkpoint_folder(storage(job), each).filename().string() + " deleted: num_to_keep is " +
             std::to_string(*job.spec.checkpoint.num_to_keep));
  }
  if (old.empty()) return;
  tx.effects.push_back(
      [this, id = job.row.id, old, folder = storage(job)] { remove_marked(id, old, folder); });
}

// A row is what a deletion is known by: what has none is somebody's, and stays.
void Engine::Impl::remove_marked(const JobId& id, const std::vector<int>& numbers,
                                 const fs::path& folder) {
  const Job* its = find(id);
  if (numbers.empty() || its == nullptr) return;
  work_in<std::vector<int>>(
      its->spec.storage_path, StorageWork::bulk,
      [numbers, folder] {
        std::vector<int> gone;
        for (const int each : numbers) {
          try {
            if (!fs::exists(checkpoints_folder(folder))) break;  // it may not be mounted now
            remove_checkpoint(folder, each);
            gone.push_back(each);
          } catch (const std::exception& error) {
            log::warn("a checkpoint stays on disk", {{"why", error.what()}});
          }
        }
        return gone;
      },
      [this, id](const std::vector<int>& gone) {
        Job* job = find(id);
        if (job == nullptr || gone.empty()) return;
        Tx tx;
        for (const int each : gone) tx.changes.checkpoints_deleted.emplace_back(id, each);
        commit(*job, std::move(tx), Urgency::soon);
      });
}

void Engine::Impl::drop_collecting(Tx& tx, Job& job, Attempt& attempt, std::int64_t step,
                                   const std::string& why) {
  const auto found = attempt.collecting.find(step);
  if (found == attempt.collecting.end()) return;
  warn(tx, job, attempt,
       "the checkpoint of step " + std::to_string(step) + " is not committed: " + why);
  for (const auto& [shard, reported] : found->second.reported) {
    if (Share* share = attempt.share(reported.node)) {
      share->open_checkpoints.erase(reported.seq);
      ack_when_durable(tx, *share, reported.seq, nlohmann::json{{"error", why}});
      keep(tx, *share);
    }
  }
  attempt.collecting.erase(found);
}

}  // namespace dtrain::head
