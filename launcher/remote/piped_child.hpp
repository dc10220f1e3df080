#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/process_exit.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain {

// A program with a socket here as its stdin and stdout, and a pipe as its stderr, which is read
// whenever somebody asks. Used by one thread at a time.
class PipedChild {
 public:
  // Of its stderr the last `errors_kept` bytes are held. `new_session`: a Ctrl-C is not for it, and
  // it ends with all that it started. Throws as spawn().
  PipedChild(const std::vector<std::string>& argv, bool new_session, std::size_t errors_kept);
  // Closes the socket and waits a second; one with a session is told SIGTERM. Then SIGKILL.
  ~PipedChild();
  PipedChild(const PipedChild&) = delete;
  PipedChild& operator=(const PipedChild&) = delete;

  UniqueFd stdio;  // may be taken

  int errors_fd() const { return errors_from_.get(); }  // -1 after its end
  const std::string& errors();                          // so far
  // Reaps it, if it ends within `limit`; its stderr is read meanwhile.
  std::optional<ProcessExit> wait(std::chrono::milliseconds limit);

 private:
  pid_t pid_ = 0;
  bool has_session_;
  std::size_t errors_kept_;
  UniqueFd errors_from_;
  std::string errors_;
  std::optional<ProcessExit> exit_;
};

}  // namespace dtrain
