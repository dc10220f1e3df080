#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"

// What an ended rank left behind that says why. The files are a rank's: any bytes, any size, even
// no plain file. Nothing here throws or blocks; what cannot be read is empty.
namespace dtrain::supervise {

// The last lines of a file, as they may be shown: at most 20, each at most 500 bytes, control
// characters escaped. Of a line that was drawn over (\r) its last state.
std::vector<std::string> last_lines(const fs::path& file);

struct ErrorFile {
  std::string message;  // at most 16 KiB; empty: none
  double time = 0;      // seconds since 1970; 0: none
};
// TORCHELASTIC_ERROR_FILE: torchrun's JSON, with or without the inner object, else plain text.
ErrorFile read_error_file(const fs::path& file);

// The lines say that a port was taken, in the words of libc, Python or libuv.
bool says_address_in_use(std::span<const std::string> lines);

// "its shared library libx.so.1 is missing", where a line of the dynamic loader (glibc's) says so;
// else empty.
std::string missing_library(std::span<const std::string> lines);

// What the kernel's log says from this object's beginning on, where this process may read it and
// the kernel's pids are ours (not in a container).
class KernelLog {
 public:
  explicit KernelLog(const fs::path& log = "/dev/kmsg",
                     const fs::path& pid_namespace = "/proc/self/ns/pid");
  // "killed for memory: …" where it says so of that process; else empty.
  std::string memory_end(pid_t pid);

 private:
  void read_on();

  UniqueFd fd_;
  std::vector<std::string> kills_;  // its lines about them
};

}  // namespace dtrain::supervise
