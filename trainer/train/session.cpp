#include "trainer/train/session.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "trainer/core/error.hpp"
#include "trainer/report/json_lines_logger.hpp"
#include "trainer/report/tensorboard_logger.hpp"
#include "trainer/train/checkpoint_writer.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/session_start.hpp"

namespace dtrain::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kDrawInterval{200};
constexpr std::chrono::milliseconds kAskInterval{500};

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
    : context_(context),
      options_(std::move(options)),
      exceptions_at_birth_(std::uncaught_exceptions()) {
  const Environment& env = context.environment();
  if (options_.retention.num_to_keep.value_or(1) < 1) {
    throw Error("session: retention.num_to_keep must be at least 1");
  }
  storage_ = env.storage_path ? env.storage_path : options_.storage;
  if (env.report_socket) {
    reporter_ = std::make_unique<Reporter>(*env.report_socket);
  } else {
    draws_ = context.is_first() && ::isatty(STDOUT_FILENO) == 1;
    if (storage_) {
      std::optional<std::string> trouble;
      try {
        if (context.is_first()) remove_temporaries(*storage_);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
      agree(context_, trouble);
      probe_storage(context_, *storage_, options_.storage_probe);
    }
  }
  if (storage_) {
    writer_ = std::make_unique<CheckpointWriter>(context, *storage_, options_.retention);
  }
  if (!context.is_first()) return;
  std::vector<std::shared_ptr<Logger>> loggers = options_.loggers;
  if (options_.metrics_file) {
    loggers.push_back(std::make_shared<JsonLinesLogger>(*options_.metrics_file));
  }
  if (options_.tensorboard) {
    loggers.push_back(std::make_shared<TensorBoardLogger>(*options_.tensorboard));
  }
  loggers_.emplace(std::move(loggers));
  at_failure_.emplace([this] { loggers_->finalize(Logger::Status::failed); });
}

Session::~Session() {
  const bool failed = std::uncaught_exceptions() > exceptions_at_birth_;
  if (loggers_) loggers_->finalize(failed ? Logger::Status::failed : Logger::Status::success);
  if (writer_) {
    if (failed) {
      writer_->stop();
    } else if (const auto trouble = writer_->wait()) {
      warn_on_stderr(*trouble);
    }
  }
  clear_line();
}

void Session::keep(const std::string& name, Kept kept) {
  if (!states_.emplace(name, std::move(kept)).second) {
    throw Error("session: there are two states '" + name + "' to keep");
  }
}

void Session::keep_tensors(const std::string& name, std::function<TensorMap()> tensors, bool alike,
                           std::function<void()> begin) {
  if (!is_plain_path(name) || name == "model" || name == "optimizer" ||
      !tensors_.emplace(name, KeptTensorMap{std::move(tensors), alike, std::move(begin)}).second) {
    throw Error("session: '" + name + "' cannot be a name of tensors to keep");
  }
}

std::optional<Checkpoint> Session::newest() {
  ResumeFrom from{.checkpoint = context_.environment().checkpoint,
                  .storage = {},
                  .falls_back = reporter_ != nullptr};
  if (!from.checkpoint && !reporter_) from.storage = storage_;
  std::optional<Checkpoint> chosen = choose_checkpoint(context_, from, warn_on_stderr);
  // One that DTRAIN_CHECKPOINT names may be of another run's storage.
  if (chosen && writer_ &&
      std::filesystem::weakly_canonical(chosen->folder.parent_path()) ==
          std::filesystem::weakly_canonical(checkpoints_folder(*storage_))) {
    writer_->began_from(chosen->manifest.number);
  }
  return chosen;
}

std::optional<Place> Session::resume(torch::nn::Module& model, Optimizer& optimizer) {
  const Training training{model, optimizer, states_, tensors_};
  const std::optional<Checkpoint> checkpoint = newest();
  std::optional<Place> place;
  std::optional<std::string> trouble;
  try {
    if (checkpoint) {
      place = load_training(*checkpoint, training, context_, [this](const std::string& text) {
        if (context_.is_first()) warn_on_stderr(text);
      });
    }
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  agree(context_, std::exchange(trouble, std::nullopt));  // what follows may be done together
  try {
    if (writer_) writer_->reserve(training);
    if (loggers_) {
      if (place && loggers_->started()) {
        warn_on_stderr(
            "metrics were reported before the checkpoint was asked for: the loggers' files begin "
            "anew, where they would have gone on");
      }
      loggers_->start(place ? std::optional(place->step) : std::nullopt, options_.hyperparameters);
    }
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  agree(context_, trouble);
  if (!place) return std::nullopt;
  say("resumed from " + checkpoint->folder.string() + ", step " + std::to_string(place->step));
  return place;
}

CheckpointWriter& Session::writer() {
  if (writer_) return *writer_;
  throw Error(
      "there is nowhere to put checkpoints: give a storage path, or start the program "
      "with dtrain submit");
}

std::optional<std::filesystem::path> Session::report(std::int64_t step, const Metrics& metrics,
                                                     const std::optional<Checkpoint>& files) {
  const InPhase phase(context_, "checkpoint");
  int shard = 0;
  int shards = 0;
  const std::vector<nlohmann::json> given = all_gather_objects(context_, files.has_value());
  for (int rank = 0; rank < context_.world_size(); ++rank) {
    if (rank == context_.rank()) shard = shards;
    if (given[static_cast<std::size_t>(rank)].get<bool>()) ++shards;
  }
  std::optional<std::filesystem::path> path;
  if (shards > 0) {
    agree(context_, writer().wait());
    const std::optional<std::filesystem::path> folder =
        files ? std::optional(files->folder) : std::nullopt;
    path = writer().write_files(folder, {step, shard, shards}, metrics);
  }
  report(step, metrics);
  return path;
}

std::optional<std::filesystem::path> Session::checkpoint_directory() {
  const std::optional<Checkpoint> checkpoint = newest();
  if (!checkpoint) return std::nullopt;
  std::optional<std::string> trouble;
  try {
    if (loggers_) loggers_->start(checkpoint->manifest.step, options_.hyperparameters);
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  agree(context_, trouble);
  const int shards = checkpoint->manifest.shards;
  return checkpoint->folder /
         shard_name(shards == context_.world_size() ? context_.rank() : 0, shards);
}

void Session::report(std::int64_t step, const Metrics& metrics, std::optional<std::int64_t> epoch) {
  for (const auto& [name, value] : metrics) last_metrics_[name] = value;
  if (!context_.is_first()) return;
  if (options_.print_metrics) say("step " + std::to_string(step) + "  " + text_of(metrics));
  record(step, epoch, metrics);
}

void Session::record(std::int64_t step, std::optional<std::int64_t> epoch, const Metrics& metrics) {
  if (reporter_) reporter_->metrics(step, metrics);
  if (!loggers_->started()) loggers_->start(std::nullopt, options_.hyperparameters);
  loggers_->log_metrics(step, epoch, metrics);
}

void Session::report(const Place& place, const Metrics& metrics, torch::nn::Module& model,
                     Optimizer& optimizer) {
  const auto started = Clock::now();
  const InPhase phase(context_, "checkpoint");
  agree(context_, writer().wait());
  for (const auto& [name, value] : metrics) last_metrics_[name] = value;
  writer().start({model, optimizer, states_, tensors_}, place, metrics, options_.hyperparameters);
  blocked_.last = Clock::now() - started;
  blocked_.total += blocked_.last;
  ++blocked_.checkpoints;
  if (!context_.is_first()) return;
  if (options_.print_metrics) say("step " + std::to_string(place.step) + "  " + text_of(metrics));
  Metrics with_time = metrics;
  with_time["checkpoint_blocked_ms"] =
      std::chrono::duration<double, std::milli>(blocked_.last).count();
  // A place at an epoch's very beginning is the end of the one before, whose metrics these are.
  const bool at_end = place.position == 0 && place.epoch > 0;
  record(place.step, at_end ? place.epoch - 1 : place.epoch, with_time);
}

std::optional<std::filesystem::path> Session::finish() {
  const InPhase phase(context_, "checkpoint");
  std::optional<std::string> trouble;
  if (writer_) trouble = writer_->wait();
  agree(context_, trouble);
  if (!writer_) return std::nullopt;
  if (const auto path = writer_->newly_committed()) say("checkpoint " + path->string());
  return writer_->committed();
}

std::optional<std::filesystem::path> Session::last_checkpoint() const {
  return writer_ ? writer_->committed() : std::nullopt;
}

bool Session::preempted() {
  if (!preemption_) {
    preemption_ = std::make_unique<Preemption>(context_);
    told_note_ = context_.new_note();
  }
  return preemption_->agreed(wants_stop_);
}

bool Session::told_to_go() {
  if (!preemption_ || told_) return told_;
  if (preemption_->told()) {
    context_.write_note(told_note_, "told");
    return told_ = true;
  }
  const auto now = Clock::now();
  if (now - asked_at_ < kAskInterval) return false;
  asked_at_ = now;
  return told_ = context_.read_note(told_note_).has_value();
}

bool Session::stop_agreed() const {
  return preemption_ && preemption_->stop_agreed();
}

void Session::check_loss(std::int64_t step, double loss) {
  if (std::isfinite(loss)) {
    loss_is_bad_ = false;
    return;
  }
  char value[40];
  std::snprintf(value, sizeof value, "%g", loss);
  const std::string text = "the loss is " + std::string(value) + " at step " +
                           std::to_string(step) + " on rank " + std::to_string(context_.rank());
  if (options_.stop_on_bad_loss) throw Error(text);
  if (!loss_is_bad_) warn_on_stderr(text);
  loss_is_bad_ = true;
}

bool Session::progress_due(std::int64_t step, std::optional<std::int64_t> total) const {
  if (reporter_) return reporter_->progress_due(step, total);
  return draws_ &&
         ((total && step >= *total) || !drawn_at_ || Clock::now() - *drawn_at_ >= kDrawInterval);
}

void Session::progress(const Progress& progress) {
  context_.set_step(progress.step);
  if (writer_ && context_.is_first()) {
    if (const auto path = writer_->newly_committed()) say("checkpoint " + path->string());
  }
  if (reporter_) {
    reporter_->progress(progress);
    return;
  }
  if (!progress_due(progress.step, progress.total)) return;
  drawn_at_ = Clock::now();
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
