#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "launcher/core/unique_fd.hpp"

namespace dtrain::supervise {

// Moves what ranks write from their pipes into files. It has threads of its own, about one a rank
// and at most four, so that a disk that hangs delays neither the lease nor a stop. A rank is never
// held up by a full disk: what cannot be written is read, counted and dropped, and writing is tried
// again each second. Before what comes after it stands missing_mark(), a line of its own, which may
// cut a line of the rank's in two. Without it, the file has what was not dropped, byte by byte.
//
// All functions are called from one thread, the supervisor's main one.
class Output {
 public:
  struct Note {
    int stream = 0;
    enum class What : std::uint8_t { ended, dropping } what = What::ended;
    std::string reason;  // dropping: what the file system said
  };

  Output();
  // Stops the threads. One that hangs in the kernel for a second is left to itself.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Takes over the reading end of a pipe and a file open for writing. Returns the stream's number,
  // from 0 upwards.
  int add(UniqueFd pipe, UniqueFd file);

  // Whether bytes of a stream that has not ended are still on their way to its file: in the pipe,
  // or in a write that has not returned. Else it is open only because some process holds its other
  // end.
  bool busy() const;

  // Readable when there are notes.
  int notify_fd() const noexcept { return notify_fd_; }
  // Each stream gives `ended` once, at EOF of its pipe with all of it written, and `dropping` each
  // time that it begins to drop.
  std::vector<Note> take_notes();

  std::uint64_t dropped_bytes() const noexcept;  // of what ranks wrote

 private:
  struct Stream;
  struct Shared;
  struct Pump;
  struct Watched;
  struct Worker {
    std::shared_ptr<Pump> pump;  // outlives this object when its thread hangs
    std::thread thread;
    std::future<void> done;
  };

  std::shared_ptr<Shared> shared_;
  int notify_fd_ = -1;
  int next_stream_ = 0;
  std::vector<Watched> open_;  // streams that have not ended, as busy() sees them
  std::vector<Worker> workers_;
};

// A pipe that holds up to 1 MiB (less where the kernel refuses); both ends close-on-exec, the
// reading end non-blocking.
struct OutputPipe {
  UniqueFd reader;
  UniqueFd writer;
};
OutputPipe make_output_pipe();

}  // namespace dtrain::supervise
