#pragma once

#include <stdlib.h>

#include <optional>
#include <string>
#include <utility>

namespace dtrain::testing {

// Sets a variable for one scope.
class VariableIs {
 public:
  VariableIs(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* before = ::getenv(name_.c_str())) before_ = before;
    set(value);
  }
  ~VariableIs() { set(before_); }
  VariableIs(const VariableIs&) = delete;
  VariableIs& operator=(const VariableIs&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace dtrain::testing
