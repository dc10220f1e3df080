#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"

// What this agent has over the one that is shipped: its failpoints go off, and its clocks are
// wrong, as the files in $HOME/faults say. README.md here describes them.
namespace {

// Of this process, once it is known where its files are.
struct Faults {
  std::string folder;  // empty: there are none
  std::string role;
  const volatile std::int64_t* ahead = nullptr;  // ns: of the wall clock, of the monotonic one
};

Faults& faults() {
  static Faults all;
  return all;
}

std::string file(const char* name) {
  return faults().folder + "/" + name;
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// The last two names of it: "ca/key.pem".
std::string_view short_path(std::string_view path) {
  return path.substr(path.substr(0, path.rfind('/')).rfind('/') + 1);
}

// Not by write_file_atomic() and its like, which have failpoints of their own.
void note(const std::string& name, const std::string& line) {
  const int fd = ::open(name.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return;
  const auto unused = ::write(fd, line.data(), line.size());
  (void)unused;
  ::close(fd);
}

// The action that is due here: of what is armed for this point, this role and a part of this detail
// the hits are counted in the file, whichever process they are in.
std::string due(std::string_view point, std::string_view detail) {
  const std::string name = file("armed");
  const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return {};
  ::flock(fd, LOCK_EX);
  std::array<char, 512> text{};
  std::string action;
  if (::pread(fd, text.data(), text.size() - 1, 0) > 0) {
    std::array<char, 128> of{}, role{}, part{}, what{};
    int hits = 0;
    const int read = std::sscanf(text.data(), "%127s %127s %127s %d %127s", of.data(), role.data(),
                                 part.data(), &hits, what.data());
    const bool meant = read == 5 && of.data() == point &&
                       (role.data() == std::string_view("-") || role.data() == faults().role) &&
                       (part.data() == std::string_view("-") ||
                        detail.find(part.data()) != std::string_view::npos);
    if (meant && hits > 1) {
      const int length = std::snprintf(text.data(), text.size(), "%s %s %s %d %s\n", of.data(),
                                       role.data(), part.data(), hits - 1, what.data());
      if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), length, 0) != length) ::abort();
    } else if (meant && ::unlink(name.c_str()) == 0) {
      action = what.data();
    }
  }
  ::close(fd);
  return action;
}

void reached(dtrain::Failpoint point, std::string_view path) {
  const int saved = errno;
  const std::string name(point.name());
  const std::string detail(short_path(path));
  note(file("reached"), name + " " + faults().role + " " + (detail.empty() ? "-" : detail) + "\n");
  const std::string action = due(name, path);
  if (action == "crash") {
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }
  if (action == "full") throw dtrain::errno_error("failpoint " + name, ENOSPC);
  if (action == "broken") throw dtrain::errno_error("failpoint " + name, EIO);
  errno = saved;
}

// Its two clocks, by the file that is its root's: mapped, so that they jump when it is written to.
const volatile std::int64_t* clocks_of(std::string_view root) {
  const std::string name = file("clock-") + std::string(base_name(root));
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, 2 * sizeof(std::int64_t)) != 0) return nullptr;
  void* at = ::mmap(nullptr, 2 * sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<const volatile std::int64_t*>(at);
}

[[gnu::constructor]] void arm(int argc, char** argv, char**) {
  if (argc == 2 && std::strcmp(argv[1], "failpoints") == 0) {
    for (const std::string_view name : dtrain::kFailpoints) std::puts(std::string(name).c_str());
    std::fflush(stdout);
    ::_exit(0);
  }
  const char* home = std::getenv("HOME");
  if (argc < 2 || home == nullptr) return;
  const std::string folder = std::string(home) + "/faults";
  if (::access(folder.c_str(), W_OK) != 0) return;
  faults().folder = folder;
  faults().role = argv[1];
  if (::access(file("points").c_str(), F_OK) == 0) dtrain::reached_failpoint = reached;
  for (int i = 2; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--root") == 0) faults().ahead = clocks_of(argv[i + 1]);
  }
}

}  // namespace

// The linker gives these for all calls, those of the C++ library and of OpenSSL too.
extern "C" {

int __real_clock_gettime(clockid_t clock, timespec* time);
int __real_gettimeofday(timeval* time, void* zone);

// NOLINTBEGIN: the linker's names
int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  const int failed = __real_clock_gettime(clock, time);
  if (failed != 0 || faults().ahead == nullptr) return failed;
  std::int64_t ahead = 0;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) ahead = faults().ahead[0];
  if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE) ahead = faults().ahead[1];
  const std::int64_t all = time->tv_nsec + ahead % 1'000'000'000;
  time->tv_sec += ahead / 1'000'000'000 + (all < 0 ? -1 : all / 1'000'000'000);
  time->tv_nsec = (all + 1'000'000'000) % 1'000'000'000;
  return 0;
}

int __wrap_gettimeofday(timeval* time, void* zone) {
  const int failed = __real_gettimeofday(time, zone);
  if (failed == 0 && faults().ahead != nullptr) time->tv_sec += faults().ahead[0] / 1'000'000'000;
  return failed;
}

time_t __wrap_time(time_t* into) {
  timespec now{};
  __wrap_clock_gettime(CLOCK_REALTIME, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}
// NOLINTEND
}
