#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "trainer/core/files.hpp"
#include "trainer/core/metrics.hpp"
#include "trainer/report/step_clock.hpp"

namespace dtrain::train {

// Where a rank stands, for the live line.
struct Progress {
  std::int64_t step = 0;
  std::optional<std::int64_t> total;  // steps
  std::optional<std::int64_t> epoch;
  std::string message;
  Metrics metrics;
};

// Where a rank is, for whoever looks for the one that hangs.
struct Heartbeat {
  struct Collective {
    std::uint64_t sequence = 0;  // how many it has begun
    std::string name;            // "all_reduce"
    std::uint64_t bytes = 0;     // of its contribution; 0: none, or not known
    double entered = 0;          // seconds since 1970
    std::optional<bool> done;    // it has come out of it; absent: not known

    bool operator==(const Collective&) const = default;
  };
  std::int64_t step = 0;
  std::string phase;  // what it is at: "data", "validation"; empty: not known
  std::optional<Collective> collective;
  std::optional<StepSums> step_times{};

  bool operator==(const Heartbeat&) const = default;
};

// Writes a rank's reports as JSON lines to the launcher's unix socket (docs/rank_contract.md).
//
// Metrics, progress and heartbeats are best effort: a socket that is gone, or full for longer
// than `send_timeout`, is told to `warn` once, tried again every `retry_after`, and never stops
// the training. A checkpoint that nobody confirms is an Error. One thread at a time.
class Reporter {
 public:
  struct Options {
    std::chrono::milliseconds send_timeout{5000};
    std::chrono::milliseconds retry_after{5000};
    std::chrono::milliseconds progress_interval{200};  // at most one progress report in this time
    std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
    std::function<void(const std::string& message)> warn;  // stderr if empty
  };

  // Connects at the first report.
  explicit Reporter(std::filesystem::path socket);
  Reporter(std::filesystem::path socket, Options options);

  void metrics(std::int64_t step, const Metrics& metrics);
  // Drops what comes too soon after the last one; the last step (step == total) always goes.
  void progress(const Progress& progress);
  // Whether progress() would send this one now.
  bool progress_due(std::int64_t step, std::optional<std::int64_t> total) const;
  void heartbeat(const Heartbeat& heartbeat);
  // Reports a finished shard and waits until the checkpoint is committed, which may be after the
  // other shards have come, or a head that was away is back, or has room: for as long as the
  // connection stands. Returns its final path. Throws Error with the head's reason, when it is
  // asked to stop, or with the words of `trouble`, which is asked ten times a second what keeps
  // another shard from coming.
  std::filesystem::path checkpoint(std::int64_t step, const std::filesystem::path& folder,
                                   int shard, int shards, const Metrics& metrics,
                                   const std::stop_token& stop = {},
                                   const std::function<std::optional<std::string>()>& trouble = {});

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void send_quietly(const std::string& line);
  void deliver(const std::string& line);  // throws Error
  void connect();                         // throws Error
  void send(const std::string& line);     // throws Error
  std::string receive_line(const std::stop_token& stop,
                           const std::function<std::optional<std::string>()>& trouble);  // Error

  std::filesystem::path path_;
  Options options_;
  FileDescriptor socket_;
  bool warned_ = false;
  std::optional<TimePoint> failed_at_;
  std::optional<TimePoint> last_progress_;
};

}  // namespace dtrain::train
