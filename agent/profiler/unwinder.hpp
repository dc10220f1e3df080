#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/profiler/snapshot.hpp"

// Names the frames of a snapshot, by elfutils' libdw: from each file's unwinding tables, symbols
// and lines. Files are those that the process has mapped, as it sees them now.
namespace dtrain::profiler {

struct Frame {
  std::uint64_t address = 0;
  std::string function;  // demangled; empty: nothing is known of it
  std::string library;   // the file that it is in, without folders
  std::string file;      // source, where the code has lines
  int line = 0;
};

// One process. One thread.
class Unwinder {
 public:
  static constexpr std::size_t kMostFrames = 256;

  // Throws Error(failed) when its files cannot be read.
  explicit Unwinder(pid_t pid);
  ~Unwinder();
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;

  // Innermost first. `cut`: why they do not reach the thread's beginning; empty when they do.
  std::vector<Frame> frames(const ThreadSnapshot& thread, std::string& cut);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtrain::profiler
