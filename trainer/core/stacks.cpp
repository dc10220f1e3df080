#include "trainer/core/stacks.hpp"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>

namespace dtrain::train {
namespace {

constexpr int kFrames = 48;
constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

int stack_signal() {
  return SIGRTMAX;
}

// What a thread that was asked writes to; one at a time.
struct Asked {
  std::mutex mutex;
  void* frames[kFrames];
  int count = 0;
  std::atomic<int> turn{0};
  sem_t done;
};
Asked& asked() {
  static Asked one;
  return one;
}

void answer(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  Asked& a = asked();
  // A late answer to an earlier question is none to this one.
  if (info->si_code == SI_QUEUE && info->si_value.sival_int == a.turn.load()) {
    a.count = ::backtrace(a.frames, kFrames);
    ::sem_post(&a.done);
  }
  errno = error;
}

std::string symbols_of(void* const* frames, int count, int skip) {
  std::string text;
  char** names = ::backtrace_symbols(frames, count);
  for (int i = skip; i < count; ++i) {
    text += "  ";
    text += names == nullptr ? "?" : names[i];
    text += "\n";
  }
  std::free(names);
  return text;
}

std::string name_of_thread(pid_t thread) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/comm", static_cast<int>(thread));
  char name[32] = "?";
  if (std::FILE* file = std::fopen(path, "r")) {
    if (std::fgets(name, sizeof name, file) != nullptr) name[std::strcspn(name, "\n")] = 0;
    std::fclose(file);
  }
  return name;
}

// From here to crash_handler: only what a signal handler may do.

std::atomic<std::int64_t> crash_step{-1};
std::atomic<int> crashing{0};
char error_file[4096];

void put(int fd, const char* text, std::size_t size) {
  while (size > 0) {
    const ssize_t done = ::write(fd, text, size);
    if (done <= 0) return;
    text += done;
    size -= static_cast<std::size_t>(done);
  }
}
void put(int fd, const char* text) {
  put(fd, text, std::strlen(text));
}
void put(int fd, std::int64_t number) {
  char digits[24];
  char* at = digits + sizeof digits;
  const bool negative = number < 0;
  auto left =
      negative ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
  do {
    *--at = static_cast<char>('0' + left % 10);
    left /= 10;
  } while (left != 0);
  if (negative) *--at = '-';
  put(fd, at, static_cast<std::size_t>(digits + sizeof digits - at));
}

const char* name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

void put_message(int fd, int signal) {
  put(fd, "signal ");
  put(fd, static_cast<std::int64_t>(signal));
  put(fd, " (");
  put(fd, name_of_signal(signal));
  put(fd, ")");
  if (const std::int64_t step = crash_step.load(); step >= 0) {
    put(fd, " after step ");
    put(fd, step);
  }
}

// Copies a file into a JSON string.
void put_escaped(int to, int from) {
  char bytes[1024];
  for (ssize_t size = 0; (size = ::read(from, bytes, sizeof bytes)) > 0;) {
    for (ssize_t i = 0; i < size; ++i) {
      const char c = bytes[i];
      if (c == '\n') {
        put(to, "\\n", 2);
      } else if (c == '"' || c == '\\') {
        put(to, "\\", 1);
        put(to, &c, 1);
      } else if (static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f) {
        put(to, &c, 1);
      }
    }
  }
}

void crash_handler(int signal) {
  if (crashing.exchange(1) == 0) {
    void* frames[kFrames];
    const int count = ::backtrace(frames, kFrames);
    put(STDERR_FILENO, "error: ");
    put_message(STDERR_FILENO, signal);
    put(STDERR_FILENO, "\n");
    ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
    const int memory = static_cast<int>(::syscall(SYS_memfd_create, "stack", 0));
    const int file = error_file[0] == 0
                         ? -1
                         : ::open(error_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0) {
      put(file, "{\"message\":{\"message\":\"");
      put_message(file, signal);
      put(file, "\",\"extraInfo\":{\"timestamp\":\"");
      put(file, static_cast<std::int64_t>(::time(nullptr)));
      put(file, "\",\"native_stack\":\"");
      if (memory >= 0) {
        ::backtrace_symbols_fd(frames, count, memory);
        ::lseek(memory, 0, SEEK_SET);
        put_escaped(file, memory);
      }
      put(file, "\"}}}");
      ::close(file);
    }
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

std::string native_stacks() {
  Asked& a = asked();
  const std::lock_guard lock(a.mutex);
  static const bool once = [&a] {
    void* first[1];
    ::backtrace(first, 1);  // loads libgcc, which a handler must not
    ::sem_init(&a.done, 0, 0);
    struct sigaction action {};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(stack_signal(), &action, nullptr);
    return true;
  }();
  static_cast<void>(once);

  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  void* frames[kFrames];
  const int own = ::backtrace(frames, kFrames);
  std::string text =
      "thread " + std::to_string(self) + " (" + name_of_thread(self) + "), which looked:\n";
  text += symbols_of(frames, own, 1);
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return text;
  while (const dirent* entry = ::readdir(tasks)) {
    const auto thread = static_cast<pid_t>(std::atoi(entry->d_name));
    if (thread <= 0 || thread == self) continue;
    while (::sem_trywait(&a.done) == 0) {
    }
    siginfo_t info{};
    info.si_signo = stack_signal();
    info.si_code = SI_QUEUE;
    info.si_pid = ::getpid();
    info.si_uid = ::getuid();
    info.si_value.sival_int = ++a.turn;
    text += "thread " + std::to_string(thread) + " (" + name_of_thread(thread) + "):\n";
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_nsec -= 1'000'000'000;
      ++until.tv_sec;
    }
    if (::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, stack_signal(), &info) != 0) {
      text += "  has ended\n";
    } else if (::sem_timedwait(&a.done, &until) != 0) {
      text += "  does not answer\n";
    } else {
      text += symbols_of(a.frames, a.count, 2);  // without the handler and its frame
    }
  }
  ::closedir(tasks);
  return text;
}

void install_crash_reports() {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  error_file[0] = 0;
  if (path != nullptr && std::strlen(path) < sizeof error_file) std::strcpy(error_file, path);
  void* first[1];
  ::backtrace(first, 1);  // loads libgcc, which a handler must not
  // A stack that has overflown cannot hold the handler's frame.
  static char alternate[64 * 1024];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  ::sigaltstack(&stack, nullptr);
  for (const int signal : kFatal) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = crash_handler;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    ::sigaction(signal, &action, nullptr);
  }
}

void set_crash_step(std::int64_t step) {
  crash_step.store(step, std::memory_order_relaxed);
}

namespace {
std::mutex noted_mutex;
std::string noted;
}  // namespace

void note_stacks(std::string stacks) {
  const std::lock_guard lock(noted_mutex);
  if (noted.empty()) noted = std::move(stacks);
}

std::string noted_stacks() {
  const std::lock_guard lock(noted_mutex);
  return noted;
}

}  // namespace dtrain::train
