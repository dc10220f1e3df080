#pragma once

#include <filesystem>
#include <memory>

namespace dtrain::train {

// Records the operations of this process while it lives, by LibTorch's profiler (on the CPU, and
// on a GPU where the build has CUPTI). One at a time in a process; made, saved and destroyed on the
// training's thread.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Ends the recording and writes a trace for chrome://tracing and Perfetto. Throws Error.
  void save(const std::filesystem::path& path);

 private:
  bool runs_ = true;
};

}  // namespace dtrain::train
