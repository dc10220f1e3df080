#include "launcher/core/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "launcher/core/text.hpp"

namespace dtrain::log {
namespace {

constexpr off_t kRotateAt = off_t{8} << 20;

struct Sink {
  std::mutex mutex;
  std::string role = "dtrain";
  std::string path;
  int fd = STDERR_FILENO;
  Level level = Level::info;
};

Sink& sink() {
  static Sink instance;
  return instance;
}

Level level_from_environment() {
  const char* value = std::getenv("DTRAIN_LOG_LEVEL");
  const std::string_view name = value != nullptr ? value : "";
  if (name == "debug") return Level::debug;
  if (name == "warn") return Level::warn;
  if (name == "error") return Level::error;
  return Level::info;
}

void open_locked(Sink& out) {
  const int fd = ::open(out.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;  // a log that cannot be written must not stop what it would describe
  if (out.fd != STDERR_FILENO) ::close(out.fd);
  out.fd = fd;
}

std::string in_quotes(std::string_view value) {
  const bool plain = !value.empty() && value.find_first_of(" \"=\\\t\n") == std::string_view::npos;
  std::string safe = printable(value, false);
  if (plain) return safe;
  std::string out = "\"";
  for (const char c : safe) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string format(Level level, WallTime time, std::string_view role, std::string_view message,
                   const Fields& fields) {
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error"};
  std::string line = rfc3339(time) + " level=" + kNames[static_cast<int>(level)];
  line += " role=" + in_quotes(role) + " msg=" + in_quotes(message);
  for (const auto& [key, value] : fields) {
    line += ' ';
    line += key;
    line += '=' + in_quotes(value);
  }
  return line;
}

void open(std::string role, const std::string& path) {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  out.role = std::move(role);
  out.path = path;
  out.level = level_from_environment();
  if (!path.empty()) open_locked(out);
}

void write(Level level, std::string_view message, const Fields& fields) {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  if (level < out.level) return;
  const std::string line =
      format(level, std::chrono::system_clock::now(), out.role, message, fields) + "\n";
  struct stat status {};
  if (!out.path.empty() && ::fstat(out.fd, &status) == 0 && status.st_size > kRotateAt) {
    ::rename(out.path.c_str(), (out.path + ".1").c_str());
    open_locked(out);
  }
  [[maybe_unused]] const ssize_t wrote = ::write(out.fd, line.data(), line.size());
}

}  // namespace dtrain::log
