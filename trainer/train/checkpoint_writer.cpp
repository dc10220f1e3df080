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
};

CheckpointWriter::CheckpointWriter(const Context& context, std::filesystem::path storage,
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
  Task task{place.step, metrics, nullptr, rank_state(training, context_)};
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

void CheckpointWriter::write(const Task& task, const std::stop_token& stop) {
  const int rank = environment_.rank;
  const int ranks = environment_.world_size;
  std::filesystem::path folder;
  try {
    ShardWriter shard(storage_, environment_.attempt, task.step, rank, ranks);
    for (const auto& [name, tensors] : snapshot_.sources()) {
      if (stop.stop_requested()) return;
      FileSink sink = shard.create(name);
      write_safetensors(sink, tensors);
      shard.close(sink);
    }
    if (!task.common.is_null()) write_document(shard, "state.json", task.common);
    write_document(shard, "rank.json", task.own);
    shard.finish();
    folder = shard.folder();
  } catch (const std::exception& error) {
    if (!reporter_) {
      mark_shard_failed(storage_, environment_.attempt, task.step, rank, ranks, error.what());
    }
    throw;
  }

  std::filesystem::path path;
  if (reporter_) {
    path = reporter_->checkpoint(task.step, folder, rank, ranks, task.metrics);
  } else {
    if (rank != 0) return;
    if (!wait_for_shards(storage_, environment_.attempt, task.step, ranks, stop)) return;
    path = commit_checkpoint(storage_, {.job = environment_.job,
                                        .attempt = environment_.attempt,
                                        .step = task.step,
                                        .world_size = ranks,
                                        .shards = ranks,
                                        .metrics = task.metrics});
    remove_checkpoints(storage_, retention_, warn);
  }
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
