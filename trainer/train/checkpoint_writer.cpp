#include "trainer/train/checkpoint_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "trainer/core/error.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/session_start.hpp"

namespace dtrain::train {
namespace {

constexpr std::chrono::seconds kFirstLookForRoom{2};
constexpr std::chrono::seconds kLastLookForRoom{60};
// Of a disk of the nodes' own: for the head's room Reporter waits, without a limit.
constexpr std::chrono::minutes kRoomPatience{25};
constexpr std::chrono::milliseconds kLookForTrouble{100};  // of another rank

std::optional<std::string> trouble_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

Error given_up(std::int64_t step) {
  return Error("the checkpoint of step " + std::to_string(step) + " was given up");
}

void write_document(ShardWriter& shard, const std::string& name, const nlohmann::json& document) {
  FileSink sink = shard.create(name);
  sink.write(document.dump(1) + "\n");
  shard.close(sink);
}

}  // namespace

struct CheckpointWriter::Task {
  Part part;
  Metrics metrics;
  nlohmann::json common;  // rank 0's only
  nlohmann::json own;
  std::string note;  // where a rank that fails says why
};

CheckpointWriter::CheckpointWriter(Context& context, std::filesystem::path storage,
                                   Retention retention)
    : environment_(context.environment()),
      on_gpu_(!context.device().is_cpu()),
      context_(context),
      storage_(std::move(storage)),
      retention_(std::move(retention)) {
  if (environment_.report_socket) reporter_.emplace(*environment_.report_socket);
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::reserve(const Training& training) {
  snapshot_.reserve(tensors_to_write(training, context_), on_gpu_);
}

void CheckpointWriter::start(const Training& training, const Place& place, const Metrics& metrics,
                             const nlohmann::json& hyperparameters) {
  snapshot_.take(tensors_to_write(training, context_), on_gpu_);
  Task task{{place.step, environment_.rank, environment_.world_size},
            metrics,
            nullptr,
            rank_state(training, context_),
            context_.new_note()};
  // By every rank: what is kept may take a collective to tell (the layout of DDP's buckets).
  nlohmann::json common = common_state(training, place, hyperparameters);
  if (context_.is_first()) task.common = std::move(common);
  background_.start(
      [this, task = std::move(task)](const std::stop_token& stop) { write(task, stop); });
}

std::optional<std::string> CheckpointWriter::wait() {
  return trouble_of([&] { background_.wait(); });
}

// A rank that fails says so at once: the others would wait for its shard.
void CheckpointWriter::write(const Task& task, const std::stop_token& stop) {
  try {
    std::filesystem::path folder;
    const Clock::time_point until = Clock::now() + kRoomPatience;
    with_room(task, stop, until, [&] { folder = write_shard(task, stop); });
    if (const auto path = commit(task, folder, stop, until)) note_committed(*path);
  } catch (const std::exception& error) {
    if (!context_.read_note(task.note)) {
      context_.write_note(task.note,
                          "rank " + std::to_string(environment_.rank) + ": " + error.what());
    }
    throw;
  }
}

void CheckpointWriter::with_room(const Task& task, const std::stop_token& stop,
                                 Clock::time_point until, const std::function<void()>& work) {
  std::chrono::seconds pause = kFirstLookForRoom;
  for (bool told = false;; told = true) {
    try {
      return work();
    } catch (const Error& error) {
      const bool no_room = error.error_number() == ENOSPC || error.error_number() == EDQUOT;
      if (!no_room || Clock::now() >= until) throw;
      if (!told) {
        warn_on_stderr("the checkpoint of step " + std::to_string(task.part.step) +
                       " waits for room: " + error.what());
      }
    }
    const Clock::time_point again =
        std::min(until, Clock::now() + std::exchange(pause, std::min(2 * pause, kLastLookForRoom)));
    while (Clock::now() < again) {
      if (stop.stop_requested()) throw given_up(task.part.step);
      if (const auto trouble = context_.read_note(task.note)) throw Error(*trouble);
      std::this_thread::sleep_for(kLookForTrouble);
    }
  }
}

std::filesystem::path CheckpointWriter::write_shard(const Task& task, const std::stop_token& stop) {
  ShardWriter shard(storage_, environment_.attempt, task.part.step, task.part.shard,
                    task.part.shards);
  const auto go_on = [&] {
    if (stop.stop_requested()) throw given_up(task.part.step);
  };
  for (const auto& [name, tensors] : snapshot_.sources()) {
    FileSink sink = shard.create(name);
    write_safetensors(sink, tensors, {}, go_on);
    go_on();  // closing waits for the disk
    shard.close(sink);
  }
  if (!task.common.is_null()) write_document(shard, "state.json", task.common);
  write_document(shard, "rank.json", task.own);
  shard.finish();
  return shard.folder();
}

std::optional<std::filesystem::path> CheckpointWriter::commit(const Task& task,
                                                              const std::filesystem::path& folder,
                                                              const std::stop_token& stop,
                                                              Clock::time_point until) {
  const auto trouble = [&] { return context_.read_note(task.note); };
  if (reporter_) {
    return reporter_->checkpoint(task.part.step, folder, task.part.shard, task.part.shards,
                                 task.metrics, stop, trouble);
  }
  if (environment_.rank != 0) return std::nullopt;
  wait_for_shards(storage_, environment_.attempt, task.part.step, task.part.shards, stop, trouble);
  std::filesystem::path path;
  with_room(task, stop, until, [&] {
    path = commit_checkpoint(storage_, {.job = environment_.job,
                                        .attempt = environment_.attempt,
                                        .step = task.part.step,
                                        .world_size = environment_.world_size,
                                        .shards = task.part.shards,
                                        .metrics = task.metrics});
  });
  std::optional<std::int64_t> in_use;
  {
    const std::lock_guard lock(mutex_);
    in_use = began_from_;
  }
  remove_checkpoints(storage_, retention_, in_use, warn_on_stderr);
  return path;
}

void CheckpointWriter::began_from(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  began_from_ = number;
}

std::filesystem::path CheckpointWriter::write_files(
    const std::optional<std::filesystem::path>& folder, const Part& part, const Metrics& metrics) {
  const Task task{part, metrics, nullptr, nullptr, context_.new_note()};
  std::optional<std::filesystem::path> written;
  std::optional<std::filesystem::path> path;
  // All parts are there before anyone commits: nobody waits for one that cannot come.
  agree(context_, trouble_of([&] {
          if (folder) written = copy_folder(*folder, part);
        }));
  const auto failed = trouble_of([&] {
    if (written || !reporter_) path = commit(task, written.value_or(""), {}, Clock::now());
  });
  // Who waits for the whole hears it by the note.
  if (failed && !context_.read_note(task.note)) {
    context_.write_note(task.note, "rank " + std::to_string(environment_.rank) + ": " + *failed);
  }
  agree(context_, failed);
  for (const nlohmann::json& each :
       all_gather_objects(context_, path ? path->string() : std::string())) {
    if (!path && !each.get<std::string>().empty()) path = each.get<std::string>();
  }
  note_committed(path.value());
  return *path;
}

std::filesystem::path CheckpointWriter::copy_folder(const std::filesystem::path& folder,
                                                    const Part& part) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error(folder.string() + ": a checkpoint's files lie in a folder of their own");
  }
  ShardWriter shard(storage_, environment_.attempt, part.step, part.shard, part.shards);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const auto type = entry.symlink_status().type();
    if (type == std::filesystem::file_type::directory) continue;
    if (type != std::filesystem::file_type::regular) {
      throw Error(entry.path().string() + ": a checkpoint has regular files only");
    }
    FileSink sink = shard.create(entry.path().lexically_relative(folder).generic_string());
    sink.write(MappedFile(entry.path()).bytes());
    shard.close(sink);
  }
  shard.finish();
  return shard.folder();
}

void CheckpointWriter::note_committed(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  committed_ = path;
  told_ = false;
}

std::optional<std::filesystem::path> CheckpointWriter::committed() const {
  const std::lock_guard lock(mutex_);
  return committed_;
}

std::optional<std::filesystem::path> CheckpointWriter::newly_committed() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(told_, true)) return std::nullopt;
  return committed_;
}

}  // namespace dtrain::train
