#include "agent/supervise/last_words.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::size_t kLines = 20;
constexpr std::size_t kLineBytes = 500;
constexpr std::size_t kTail = std::size_t{64} << 10;
constexpr std::size_t kErrorFileMax = std::size_t{1} << 20;
constexpr std::size_t kMessageMax = std::size_t{16} << 10;
constexpr std::size_t kKillsMax = 1000;
// The kernel's words (mm/oom_kill.c), and its own namespace (PROC_PID_INIT_INO).
constexpr const char* kKilled = "Killed process ";
constexpr const char* kFirstPidNamespace = "pid:[4026531836]";

// Bytes of a plain file, at most `limit`, from its end or its beginning; no link is followed.
std::string read_plain(const fs::path& path, std::size_t limit, bool from_end) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<std::size_t>(status.st_size);
  std::string bytes(std::min(size, limit), '\0');
  const std::size_t start = from_end ? size - bytes.size() : 0;
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::pread(fd.get(), bytes.data() + have, bytes.size() - have,
                                static_cast<off_t>(start + have));
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

bool blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isspace(c) != 0; });
}

// At most `limit` bytes of valid UTF-8 from the front.
std::string cut(std::string text, std::size_t limit) {
  if (text.size() <= limit) return text;
  text.resize(limit);
  for (int i = 0; i < 4 && !is_utf8(text); ++i) text.pop_back();
  return text;
}

std::string shown_line(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t drawn_over = line.rfind('\r');
  if (drawn_over != std::string_view::npos) line.remove_prefix(drawn_over + 1);
  return cut(printable(line.substr(0, kLineBytes), false), kLineBytes);
}

std::string shown_message(const std::string& text) {
  std::string shown = cut(printable(text.substr(0, kMessageMax)), kMessageMax);
  while (!shown.empty() && std::isspace(static_cast<unsigned char>(shown.back())) != 0) {
    shown.pop_back();
  }
  return shown;
}

double timestamp(const nlohmann::json& extra) {
  if (!extra.is_object() || !extra.contains("timestamp")) return 0;
  const nlohmann::json& value = extra["timestamp"];
  const double time = value.is_number()   ? value.get<double>()
                      : value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr)
                                          : 0;
  return time > 0 && time < 1e11 ? time : 0;
}

}  // namespace

std::vector<std::string> last_lines(const fs::path& file) {
  std::string tail = read_plain(file, kTail, true);
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == '\r' || tail.back() == ' ')) {
    tail.pop_back();
  }
  if (blank(tail)) return {};
  std::vector<std::string> lines;
  std::string_view rest = tail;
  while (lines.size() < kLines) {
    const std::size_t newline = rest.rfind('\n');
    if (newline == std::string_view::npos) {
      lines.push_back(shown_line(rest));
      break;
    }
    lines.push_back(shown_line(rest.substr(newline + 1)));
    rest = rest.substr(0, newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

ErrorFile read_error_file(const fs::path& file) {
  const std::string text = read_plain(file, kErrorFileMax, false);
  if (blank(text)) return {};
  try {
    const nlohmann::json json = wire::parse_json(text, "the error file", kErrorFileMax);
    const nlohmann::json& message = wire::member(json, "message");
    if (message.is_string()) return {shown_message(message.get<std::string>()), 0};
    ErrorFile found{shown_message(wire::get_string(message, "message")), 0};
    if (message.contains("extraInfo")) found.time = timestamp(message["extraInfo"]);
    return found;
  } catch (const Error&) {
    return {shown_message(text), 0};
  }
}

bool says_address_in_use(std::span<const std::string> lines) {
  return std::any_of(lines.begin(), lines.end(), [](const std::string& said) {
    const std::string line = lower_case(said);
    return line.find("address already in use") != std::string::npos ||
           line.find("eaddrinuse") != std::string::npos;
  });
}

std::string missing_library(std::span<const std::string> lines) {
  constexpr std::string_view kBefore = ": error while loading shared libraries: ";
  constexpr std::string_view kBehind = ": cannot open shared object file";
  for (const std::string& line : lines) {
    const auto begin = line.find(kBefore);
    const auto end =
        line.find(kBehind, begin == std::string::npos ? begin : begin + kBefore.size());
    if (end == std::string::npos) continue;
    const std::size_t from = begin + kBefore.size();
    return "its shared library " + printable(line.substr(from, end - from), false) + " is missing";
  }
  return {};
}

KernelLog::KernelLog(const fs::path& log, const fs::path& pid_namespace) {
  std::error_code none;
  if (fs::read_symlink(pid_namespace, none) != kFirstPidNamespace) return;
  fd_.reset(::open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd_) ::lseek(fd_.get(), 0, SEEK_END);
}

void KernelLog::read_on() {
  std::array<char, 8192> record;  // the longest is shorter
  while (fd_) {
    const ssize_t got = ::read(fd_.get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // some were overwritten; on with the next
    if (got <= 0) return;
    for (std::string& line : split({record.data(), static_cast<std::size_t>(got)}, '\n')) {
      if (line.find(kKilled) == std::string::npos) continue;
      if (kills_.size() == kKillsMax) kills_.erase(kills_.begin());
      kills_.push_back(std::move(line));
    }
  }
}

std::string KernelLog::memory_end(pid_t pid) {
  read_on();
  const std::string said = std::string(kKilled) + std::to_string(pid) + " (";
  for (const std::string& line : kills_) {
    if (line.find(said) == std::string::npos) continue;
    const bool by_limit = line.find("Memory cgroup out of memory") != std::string::npos;
    return std::string(wire::RankExited::kKilledForMemory) +
           (by_limit ? "a limit that others set for it was reached" : "its machine had none left");
  }
  return {};
}

}  // namespace dtrain::supervise
