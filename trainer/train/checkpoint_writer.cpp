#include "trainer/train/checkpoint_writer.hpp"

#include <cstdio>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

void warn(const std::string& message) {
  std::fprintf(stderr, "warning: %s\n", message.c_str());
}

void write_document(ShardWriter& shard, const std::string& name, const nlohmann::json& document) {
  FileSink sink = shard.create(name);
  sink.write(document.dump(1) + "\n");
  shard.close(sink);
}

}  // namespace

struct CheckpointWriter::Task {
  std::int64_t step = 0;
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
  Task task{place.step, metrics, nullptr, rank_state(training, context_), context_.new_note()};
  // By every rank: what is kept may take a collective to tell (the layout of DDP's buckets).
  nlohmann::json common = common_state(training, place, hyperparameters);
  if (context_.is_first()) task.common = std::move(common);
  background_.start(
      [this, task = std::move(task)](const std::stop_token& stop) { write(task, stop); });
}

std::optional<std::string> CheckpointWriter::wait() {
  try {
    background_.wait();
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A rank that fails says so at once: the others would wait for its shard.
void CheckpointWriter::write(const Task& task, const std::stop_token& stop) {
  try {
    const std::filesystem::path folder = write_shard(task, stop);
    const std::optional<std::filesystem::path> path = commit(task, folder, stop);
    if (!path) return;
    const std::lock_guard lock(mutex_);
    committed_ = path;
    told_ = false;
  } catch (const std::exception& error) {
    if (!context_.read_note(task.note)) {
      context_.write_note(task.note,
                          "rank " + std::to_string(environment_.rank) + ": " + error.what());
    }
    throw;
  }
}

std::filesystem::path CheckpointWriter::write_shard(const Task& task, const std::stop_token& stop) {
  ShardWriter shard(storage_, environment_.attempt, task.step, environment_.rank,
                    environment_.world_size);
  const auto go_on = [&] {
    if (stop.stop_requested()) {
      throw Error("the checkpoint of step " + std::to_string(task.step) + " was given up");
    }
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
                                                              const std::stop_token& stop) {
  const int ranks = environment_.world_size;
  const auto trouble = [&] { return context_.read_note(task.note); };
  if (reporter_) {
    return reporter_->checkpoint(task.step, folder, environment_.rank, ranks, task.metrics, stop,
                                 trouble);
  }
  if (environment_.rank != 0) return std::nullopt;
  wait_for_shards(storage_, environment_.attempt, task.step, ranks, stop, trouble);
  const std::filesystem::path path = commit_checkpoint(storage_, {.job = environment_.job,
                                                                  .attempt = environment_.attempt,
                                                                  .step = task.step,
                                                                  .world_size = ranks,
                                                                  .shards = ranks,
                                                                  .metrics = task.metrics});
  remove_checkpoints(storage_, retention_, warn);
  return path;
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
