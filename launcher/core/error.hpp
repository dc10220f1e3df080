#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace dtrain {

// What kind of failure it is. The command line picks its exit code by it, and the wire carries it
// by name, so that an error of the head is the same error in the CLI.
enum class ErrorCode : std::uint8_t {
  usage,        // wrong arguments
  invalid,      // a file or message from outside is wrong
  not_found,    // no such job, node, file, cluster
  conflict,     // the state does not allow it
  unreachable,  // the cluster or a node does not answer
  denied,       // not allowed for this peer
  timeout,      // a deadline passed
  exhausted,    // no space, no ports, too large
  io,           // the operating system refused
  failed,       // the thing asked for was tried and failed
  internal,     // a defect of dtrain
};

const char* to_string(ErrorCode code) noexcept;
// Unknown names become ErrorCode::internal: an old CLI may meet a new head.
ErrorCode error_code_from(const std::string& name) noexcept;

// A place in a file that a person wrote. Lines and columns count from 1; 0 is "not known".
struct Location {
  std::string file;
  int line = 0;
  int column = 0;

  std::string str() const;  // file:line:column, as far as known
};

// The one exception type of everything but trainer/. It says what failed, gathers on its way up
// what was being done ("while syncing ./data to node-3"), and, where it is known, what to do.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  // Adds to the context, innermost first. Returns *this, to be thrown on.
  Error& while_doing(std::string doing);
  Error& with_hint(std::string hint);
  Error& at(Location location);

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::vector<std::string>& context() const noexcept { return context_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::optional<Location>& location() const noexcept { return location_; }

  // "message, while a, while b" on one line, without the hint.
  const char* what() const noexcept override;

 private:
  void compose();

  ErrorCode code_;
  std::string message_;
  std::vector<std::string> context_;
  std::string hint_;
  std::optional<Location> location_;
  std::string what_;
};

// An Error with errno's text: "cannot open /x: No such file or directory".
Error errno_error(const std::string& what, int error_number);

// What was thrown, where it is one of ours; anything else as an Error(io) with its text.
Error as_error(const std::exception& error);
// Where nothing else is expected: anything else is a defect, Error(internal).
Error as_defect(const std::exception& error);

// Runs `body`; an Error that leaves it is given `doing` as context.
template <typename Body>
decltype(auto) while_doing(const std::string& doing, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    error.while_doing(doing);
    throw;
  }
}

}  // namespace dtrain
