// What the tests of dtrain-profiler look at. Its threads are each in a function of their own when
// it says "ready"; it ends with its stdin, or as one of them does.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace {

std::mutex taken;
std::atomic<int> there{0};
std::atomic<bool> over{false};

void is_there() {
  ++there;
  there.notify_all();
}

__attribute__((noinline)) void computes(std::atomic<long>& sum, bool rests) {
  is_there();
  while (!over) {
    ++sum;
    if (rests) ::usleep(1000);
  }
}

__attribute__((noinline)) void waits_for_a_lock() {
  is_there();
  const std::lock_guard lock(taken);
  ++there;
}

__attribute__((noinline)) void reads_stdin() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  over = true;
}

__attribute__((noinline)) void deep(int levels) {
  if (levels == 0) {
    reads_stdin();
  } else {
    deep(levels - 1);
  }
  over = true;  // so that the call is none at the end
}

}  // namespace

// With CHILD it has one, which calls itself rank 0; with THREADS others begin and end all the time;
// with RESTS what computes leaves the processor to others.
int main() {
  std::atomic<long> sum{0};
  if (::getenv("CHILD") != nullptr && ::fork() == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);  // "ready" is for the other to say
    ::setenv("RANK", "0", 1);
    ::unsetenv("CHILD");
    ::execl("/proc/self/exe", "profiler_target", nullptr);
    return 127;
  }
  taken.lock();
  const bool rests = ::getenv("RESTS") != nullptr;
  std::thread busy([&] { computes(sum, rests); });
  std::thread locked(waits_for_a_lock);
  std::thread turns;
  if (::getenv("THREADS") != nullptr) {
    turns = std::thread([] {
      while (!over) std::thread([] {}).join();
    });
  }
  for (int now = there; now < 2; now = there) there.wait(now);
  if (::write(STDOUT_FILENO, "ready\n", 6) != 6) return 1;
  deep(20);
  taken.unlock();
  busy.join();
  if (turns.joinable()) turns.join();
  locked.join();
  return 0;
}
