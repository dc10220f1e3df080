#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launcher/core/unique_fd.hpp"

// Command lines for whatever login shell a host has.
namespace dtrain::ssh {

// A command line that bash, dash, zsh, ksh, fish and csh read alike, and by which each becomes
// /bin/sh that runs `script`. What those shells read differently inside single quotes (' \ !
// newline) and what is not printable ASCII goes as octal. NUL cannot be: Error(invalid).
std::string shell_command(std::string_view script);
// The same for a program: the shell becomes it (`exec`), so that no process is between.
std::string shell_command(std::span<const std::string> argv);

// A line that no chatter of a login shell holds: letters, digits and '-', no newline.
std::string make_marker();
// The script that says the marker on stdout, and on stderr too, before `script`.
std::string marked_script(const std::string& marker, std::string_view script);

// Finds the marker's line in a stream that comes in pieces, and remembers the last of what was
// before it.
class MarkerFilter {
 public:
  explicit MarkerFilter(std::string marker) : marker_(std::move(marker)) {}

  // How many bytes at the front of `bytes` belong to what is before the marker's end; the rest is
  // the program's. All of it until the marker was seen.
  std::size_t feed(std::string_view bytes);
  bool found() const { return marker_.empty(); }
  // The last 16 KiB before the marker.
  const std::string& noise() const { return noise_; }

 private:
  std::string marker_;
  std::string noise_;
};

}  // namespace dtrain::ssh
