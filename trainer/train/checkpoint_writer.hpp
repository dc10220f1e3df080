#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/checkpoint/background.hpp"
#include "trainer/report/reporter.hpp"
#include "trainer/train/snapshot.hpp"
#include "trainer/train/training_state.hpp"

namespace dtrain::train {

// One rank's part in checkpoints: a copy of its share, then, behind the training, files, sums,
// fsync, and the commit. Under dtrain each rank tells the head of its shard; without, rank 0 waits
// for all shards and commits. A rank that fails leaves a note, so that the others do not wait for
// it: all of them fail soon, with its rank and reason. Where there is no room on the disk that is
// no failure of start()'s for 25 minutes: it is tried again, and told. Its methods belong to the
// training's thread.
class CheckpointWriter {
 public:
  CheckpointWriter(Context& context, std::filesystem::path storage, Retention retention);
  ~CheckpointWriter();

  // The checkpoint of this number stays while this run goes on, whatever the retention says: some
  // rank may still read it.
  void began_from(std::int64_t number);
  // Touches the memory that the first checkpoint will need.
  void reserve(const Training& training);
  // The last one must be done (wait()). Copies, and hands the copy over.
  void start(const Training& training, const Place& place, const Metrics& metrics,
             const nlohmann::json& hyperparameters);
  // One of a program's own files, now: what lies in `folder` becomes shard `part.shard`; nothing:
  // this rank has no part in it. Returns its path on all ranks. The last one must be done.
  // Collective. Throws Error on every rank if one failed.
  struct Part {
    std::int64_t step = 0;
    int shard = 0;
    int shards = 1;
  };
  std::filesystem::path write_files(const std::optional<std::filesystem::path>& folder,
                                    const Part& part, const Metrics& metrics);
  // Until the last one is done; its error text, if it failed. The error is told once.
  std::optional<std::string> wait();
  // Gives up what is going on, as soon as it can.
  void stop() { background_.stop(); }

  std::optional<std::filesystem::path> committed() const;
  // The same, once for each new one.
  std::optional<std::filesystem::path> newly_committed();

 private:
  using Clock = std::chrono::steady_clock;
  struct Task;
  void write(const Task& task, const std::stop_token& stop);
  std::filesystem::path write_shard(const Task& task, const std::stop_token& stop);
  // Does it, and until then again and again where the disk has no room for it.
  void with_room(const Task& task, const std::stop_token& stop, Clock::time_point until,
                 const std::function<void()>& work);
  std::filesystem::path copy_folder(const std::filesystem::path& folder, const Part& part);
  void note_committed(const std::filesystem::path& path);
  // Nothing where another rank commits.
  std::optional<std::filesystem::path> commit(const Task& task, const std::filesystem::path& folder,
                                              const std::stop_token& stop, Clock::time_point until);

  const Environment environment_;
  const bool on_gpu_;
  Context& context_;  // in the background: its notes only
  const std::filesystem::path storage_;
  const Retention retention_;
  Snapshot snapshot_;
  std::optional<Reporter> reporter_;  // a connection of its own, for the background

  mutable std::mutex mutex_;
  std::optional<std::filesystem::path> committed_;
  bool told_ = true;
  std::optional<std::int64_t> began_from_;
  Background background_;  // last: it ends before what it uses
};

}  // namespace dtrain::train
