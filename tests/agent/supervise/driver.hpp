#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/supervise/client.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/attempt.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

// Reads lines from a non-blocking descriptor; fails the test when none comes within `deadline`.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Absent at EOF.
  std::optional<std::string> next(std::chrono::milliseconds deadline = std::chrono::seconds(120));

 private:
  int fd_;
  std::string buffer_;
};

inline bool gone(pid_t pid) {
  return !start_time(pid).has_value();
}

// Another in each program: programs that run side by side have their attempts' groups by it.
const std::string& cluster_of_tests();

// Runs a real supervisor as a node agent would: a node root of its own, one attempt.
class Driver {
 public:
  Driver();
  ~Driver();

  // Change before start().
  wire::AttemptSpec spec;
  std::map<std::string, std::string> secrets;
  std::string login_env = std::string("PATH=/usr/bin:/bin\0HOME=/tmp\0", 28);
  int linger_ms = 20000;
  std::vector<std::string> env = current_environment();  // of the supervisor

  void shell(const std::string& line, int nproc = 1);  // what the ranks run
  void start();
  void start_and_connect();
  void connect();
  void disconnect() { connection_.reset(); }

  // The next event; the test fails when none comes.
  wire::AttemptEvent next();
  // The next event of a type, others are kept in `seen`.
  template <typename Event>
  Event until();
  void send(const wire::AttemptCommand& command);
  void send_raw(const std::string& text);
  void ack(std::uint64_t seq, std::optional<nlohmann::json> answer = std::nullopt);
  // Reads to the end, acknowledges it, waits for the supervisor.
  wire::NodeFinished finish();
  // True when the supervisor has closed the connection.
  bool closed_by_peer();

  int wait_exit();  // of the supervisor
  void kill_supervisor();
  pid_t supervisor() const { return pid_; }

  UniqueFd report_connection(int rank);
  std::string out(int rank) const;
  std::string err(int rank) const;
  fs::path file(const std::string& name) const { return folder_ / name; }
  // Waits until the file is there and holds a line; returns it without its newline.
  std::string wait_for_line(const std::string& name) const;
  std::vector<pid_t> carriers() const;  // of the token
  fs::path group() const;               // of the attempt; empty: it has none

  paths::NodeRoot node;
  paths::AttemptRoot root;
  std::vector<wire::AttemptEvent> seen;

 private:
  TemporaryFolder folder_;
  pid_t pid_ = 0;
  std::optional<UniqueFd> connection_;
  std::optional<LineReader> lines_;
};

// Waits, looking every few milliseconds, for what nothing announces; fails the test at a deadline.
void wait_until(const char* what, const std::function<bool()>& holds);

template <typename Event>
Event Driver::until() {
  while (true) {
    const wire::AttemptEvent event = next();
    if (const auto* found = std::get_if<Event>(&event.body)) return *found;
  }
}

}  // namespace dtrain::testing
