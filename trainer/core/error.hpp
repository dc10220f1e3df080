#pragma once

#include <stdexcept>
#include <string>

namespace dtrain::train {

// The one exception type of the training library. The message says what failed and, where a file
// or a variable is to blame, its name and what was expected. LibTorch's own errors (c10::Error)
// pass through as they are: run() in run.hpp prints both.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, int error_number = 0)
      : std::runtime_error(message), error_number_(error_number) {}

  // Of the system call that failed: ENOSPC; 0: it was none.
  int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

// An Error with errno's text: "cannot open /x: No such file or directory".
Error errno_error(const std::string& what, int error_number);

// Says a warning on stderr, one line.
void warn_on_stderr(const std::string& message);

}  // namespace dtrain::train
