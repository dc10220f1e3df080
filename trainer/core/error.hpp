#pragma once

#include <stdexcept>
#include <string>

namespace dtrain::train {

// The one exception type of the training library. The message says what failed and, where a file
// or a variable is to blame, its name and what was expected. LibTorch's own errors (c10::Error)
// pass through as they are: run() in run.hpp prints both.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// An Error with errno's text: "cannot open /x: No such file or directory".
Error errno_error(const std::string& what, int error_number);

// Says a warning on stderr, one line.
void warn_on_stderr(const std::string& message);

}  // namespace dtrain::train
