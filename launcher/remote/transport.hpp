#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/capture.hpp"
#include "launcher/core/files.hpp"

namespace dtrain {

// How it stands with reaching a machine.
struct ReachTry {
  std::string why;  // it is not reached yet
  int tries = 0;    // that have ended so
  std::chrono::steady_clock::time_point begun;
  std::chrono::steady_clock::time_point until;  // the latest that it is given up
};

// A program that runs there, with a socket here as its stdin and stdout. Destroying it closes the
// socket; what the program makes of that is its affair (a shell and our agent end).
class Channel {
 public:
  virtual ~Channel() = default;

  // Both ways; shutdown(SHUT_WR) is the end of its input. Belongs to the channel.
  virtual int fd() const = 0;
  // The last 16 KiB of its stderr so far.
  virtual std::string errors() = 0;
  // Its exit, as a shell shows it, once it has ended and its output is read; absent after `limit`.
  // Throws Error(unreachable) when the connection broke before that.
  virtual std::optional<int> wait(std::chrono::milliseconds limit) = 0;
};

// What is known of the head's socket on its own machine.
struct HeadPlace {
  fs::path root;
  fs::path socket;                  // empty: it is looked for, by the root
  std::vector<std::string> bridge;  // a command whose stdio is joined to it; empty: there is none
};

// How one machine is reached: run something there, put a file there, meet its head's socket. The
// plans of launcher/cluster know machines only through this. Safe to use from several threads at
// once. Every method throws Error that names the machine's side of what failed.
class Transport {
 public:
  virtual ~Transport() = default;

  // Runs argv to its end with `input` as its stdin. A code other than 0 is not an exception: the
  // caller knows what it means; Error(timeout) after `deadline`.
  virtual Captured run(const std::vector<std::string>& argv, std::string_view input,
                       std::chrono::milliseconds deadline) = 0;

  // Starts argv; words are quoted for the shell there, whichever it is.
  virtual std::unique_ptr<Channel> open(const std::vector<std::string>& argv) = 0;

  // Puts `content` there as a whole file, or not at all; makes the folders above it, 0700.
  virtual void put(std::string_view content, const fs::path& path, mode_t mode) = 0;

  // Starts argv in a session of its own, stdio on /dev/null; it outlives us. Throws when it cannot
  // be started; what becomes of it later is the caller's to observe.
  virtual void start_detached(const std::vector<std::string>& argv) = 0;

  // Where on this machine the socket of the head that runs there can be met: for a local head the
  // socket itself, else one that is tunnelled.
  virtual fs::path head_socket(const HeadPlace& head) = 0;
};

// run() for a program that must succeed: gives its stdout, else throws Error(failed) with `what`
// and the last lines that it said.
std::string run_or_throw(Transport& transport, const std::vector<std::string>& argv,
                         std::string_view input, std::chrono::milliseconds deadline,
                         const std::string& what);

// put() by a shell there, which starts in the home folder.
void put_by_shell(Transport& transport, std::string_view content, const fs::path& path, mode_t mode,
                  std::chrono::milliseconds deadline);

}  // namespace dtrain
