#include "launcher/remote/ssh/command.hpp"

#include <array>
#include <cstdio>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::ssh {
namespace {

constexpr std::size_t kNoiseKept = std::size_t{16} << 10;

// Read the same inside '…' by every shell, and inside "…" of the inner sh too.
bool plain(char c) {
  return c >= 0x20 && c < 0x7F && std::string_view("'\\!\"$`%").find(c) == std::string_view::npos;
}

}  // namespace

std::string shell_command(std::string_view script) {
  if (script.find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::invalid, "a NUL character cannot be part of a command");
  }
  std::string inner;
  bool encoded = false;
  for (const char c : script) {
    if (plain(c)) {
      inner += c;
      continue;
    }
    std::array<char, 6> octal{};
    std::snprintf(octal.data(), octal.size(), "\\0%03o", static_cast<unsigned char>(c));
    inner += octal.data();
    encoded = true;
  }
  if (!encoded) return "exec /bin/sh -c '" + inner + "'";
  // What $( ) would take off the end is a newline at most, and no script ends by one that counts.
  return "exec /bin/sh -c 'eval \"$(printf %b \"" + inner + "\")\"'";
}

std::string shell_command(std::span<const std::string> argv) {
  return shell_command("exec " + shell_join(argv));
}

std::string make_marker() {
  return "dtrain-begins-" + random_hex(12);
}

std::string marked_script(const std::string& marker, std::string_view script) {
  return "echo " + marker + "; echo " + marker + " >&2; " + std::string(script);
}

std::size_t MarkerFilter::feed(std::string_view bytes) {
  if (found()) return 0;
  const std::size_t before = noise_.size();
  noise_ += bytes;
  const std::string line = marker_ + "\n";
  const std::size_t at = noise_.find(line);
  if (at == std::string::npos) {
    if (noise_.size() > kNoiseKept + line.size()) noise_.erase(0, noise_.size() - kNoiseKept);
    return bytes.size();
  }
  const std::size_t taken = at + line.size() - before;
  noise_.resize(at);
  marker_.clear();
  return taken;
}

}  // namespace dtrain::ssh
