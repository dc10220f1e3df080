#include "trainer/train/session.hpp"

#include <unistd.h>

#include <cstdio>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::chrono::milliseconds kDrawInterval{200};

void warn(const std::string& message) {
  std::fprintf(stderr, "warning: %s\n", message.c_str());
}

std::string text_of(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    char number[40];
    std::snprintf(number, sizeof number, "%.6g", value);
    text += (text.empty() ? "" : "  ") + name + " " + number;
  }
  return text;
}

}  // namespace

Session::Session(Context& context, Options options)
    : context_(context), options_(std::move(options)) {
  const Environment& env = context.environment();
  storage_ = env.storage_path ? env.storage_path : options_.storage;
  if (env.report_socket) {
    reporter_ = std::make_unique<Reporter>(*env.report_socket);
  } else if (context.is_first()) {
    draws_ = ::isatty(STDOUT_FILENO) == 1;
    if (storage_) remove_temporaries(*storage_);
  }
}

Session::~Session() {
  clear_line();
}

std::optional<Place> Session::resume(torch::nn::Module& model, Optimizer& optimizer) {
  std::string folder;
  const Environment& env = context_.environment();
  if (env.checkpoint) {
    folder = env.checkpoint->string();
  } else if (!reporter_) {
    // One rank looks, so that all take the same.
    if (context_.is_first() && storage_) {
      if (const auto newest = newest_checkpoint(*storage_, warn)) folder = newest->folder.string();
    }
    folder = context_.broadcast(folder);
  }
  if (folder.empty()) return std::nullopt;

  const Checkpoint checkpoint = open_checkpoint(folder);
  if (env.local_rank == 0) verify_checkpoint(checkpoint);
  const RestoredState restored = read_training_state(
      checkpoint.folder / shard_name(0, checkpoint.manifest.shards), model, optimizer);
  const auto rank = static_cast<std::size_t>(context_.rank());
  if (rank < restored.generators.size()) {
    set_generator_state(restored.generators[rank], context_.device());
  }
  say("resumed from " + folder + ", step " + std::to_string(restored.place.step));
  return restored.place;
}

void Session::report(std::int64_t step, const Metrics& metrics) {
  if (!context_.is_first()) return;
  if (options_.print_metrics) say("step " + std::to_string(step) + "  " + text_of(metrics));
  if (reporter_) reporter_->metrics(step, metrics);
}

std::filesystem::path Session::report(const Place& place, const Metrics& metrics,
                                      const torch::nn::Module& model, const Optimizer& optimizer) {
  report(place.step, metrics);
  const std::vector<at::Tensor> generators =
      context_.all_gather(generator_state(context_.device()));
  // Rank 0 tells the others how it went; "!" marks a failure, since a path may be anything else.
  std::string outcome;
  if (context_.is_first()) {
    try {
      outcome = "=" + save(place, metrics, model, optimizer, generators).string();
    } catch (const std::exception& error) {
      outcome = std::string("!") + error.what();
    }
  }
  outcome = context_.broadcast(outcome);
  if (outcome.front() == '!') throw Error(outcome.substr(1));
  return outcome.substr(1);
}

std::filesystem::path Session::save(const Place& place, const Metrics& metrics,
                                    const torch::nn::Module& model, const Optimizer& optimizer,
                                    const std::vector<at::Tensor>& generators) {
  if (!storage_) {
    throw Error(
        "there is nowhere to put checkpoints: give a storage path, or start the program "
        "with dtrain submit");
  }
  const Environment& env = context_.environment();
  ShardWriter shard(*storage_, env.attempt, place.step);
  write_training_state(shard, model, optimizer, place, generators);
  shard.finish();
  if (reporter_) return reporter_->checkpoint(place.step, shard.folder(), 0, 1, metrics);

  const std::filesystem::path committed =
      commit_checkpoint(*storage_, {.job = env.job,
                                    .attempt = env.attempt,
                                    .step = place.step,
                                    .world_size = env.world_size,
                                    .shards = 1,
                                    .metrics = metrics});
  remove_checkpoints(*storage_, options_.retention, warn);
  return committed;
}

void Session::progress(const Progress& progress) {
  if (reporter_) {
    reporter_->progress(progress);
    return;
  }
  if (!draws_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool last = progress.total && progress.step >= *progress.total;
  if (!last && drawn_at_ && now - *drawn_at_ < kDrawInterval) return;
  drawn_at_ = now;
  std::string line = "step " + std::to_string(progress.step);
  if (progress.total) line += "/" + std::to_string(*progress.total);
  if (progress.epoch) line += "  epoch " + std::to_string(*progress.epoch);
  if (!progress.metrics.empty()) line += "  " + text_of(progress.metrics);
  if (!progress.message.empty()) line += "  " + progress.message;
  std::printf("\r\033[K%s", line.c_str());
  std::fflush(stdout);
  line_drawn_ = true;
}

void Session::say(const std::string& line) {
  if (!context_.is_first()) return;
  clear_line();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Session::clear_line() {
  if (!line_drawn_) return;
  std::printf("\r\033[K");
  std::fflush(stdout);
  line_drawn_ = false;
}

}  // namespace dtrain::train
