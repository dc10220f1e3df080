#pragma once

#include <optional>

#include "launcher/core/paths.hpp"
#include "launcher/core/unique_fd.hpp"

// That an attempt is supervised once. The lock (flock on the attempt's folder) is held exactly as
// long as its supervisor lives: who starts one takes the lock first, and the supervisor inherits
// it. So who can take it knows, without any waiting, that none lives and that none comes later.
namespace dtrain::supervise {

class AttemptLock {
 public:
  // The number of the descriptor in a supervisor that is started with it.
  static constexpr int kInherited = 3;

  // Absent while another holds it. Error(not_found) without the attempt's folder.
  static std::optional<AttemptLock> take(const paths::AttemptRoot& root);
  // What the starter of this process left open as `fd`. Error(invalid) when that is no lock of
  // this attempt.
  static AttemptLock inherit(const paths::AttemptRoot& root, int fd);

  // To be inherited by a supervisor; ours for this object's life.
  int fd() const noexcept { return fd_.get(); }

 private:
  explicit AttemptLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace dtrain::supervise
