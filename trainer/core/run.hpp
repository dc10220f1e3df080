#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <list>
#include <string>

namespace dtrain::train {

// Leaves a program from within: run() returns its code, and prints nothing. As in Python no
// std::exception, so that what handles errors does not hold it up.
struct SystemExit {
  int code = 0;
};

// The body of a training program's main(): makes stdout line-buffered when a launcher reads it,
// calls `body`, and returns its result. A fatal signal leaves its stack (stacks.hpp). An exception
// that leaves `body` is printed on stderr and written to TORCHELASTIC_ERROR_FILE, and the process
// ends at once with code 1: static destructors and LibTorch's threads, which may wait for peers,
// are not given a chance to hang it.
int run(const std::function<int()>& body);

// While one lives, an exception that leaves run()'s body calls `what` before the process ends: for
// what static objects still hold back. `what` must not throw. For the training's thread.
class AtFailure {
 public:
  explicit AtFailure(std::function<void()> what);
  ~AtFailure();
  AtFailure(const AtFailure&) = delete;
  AtFailure& operator=(const AtFailure&) = delete;

 private:
  std::list<std::function<void()>>::iterator its_;
};

// Ends the process as run() does when `error` leaves its body: for code that a program must not go
// on after. `error` is printed without LibTorch's stack trace.
[[noreturn]] void end_for(const std::exception& error);

// The same from any thread, while the training's may be anywhere: what AtFailure would have done is
// not.
[[noreturn]] void end_now(const std::exception& error);

// Writes torchrun's error file: {"message":{"message":…,"extraInfo":{"timestamp":…}}}, with the
// stacks that note_stacks() has got as "native_stack" beside the timestamp. Returns
// false if that was not possible; never throws, since it runs while another error is handled.
bool write_error_file(const std::filesystem::path& path, const std::string& message) noexcept;

}  // namespace dtrain::train
