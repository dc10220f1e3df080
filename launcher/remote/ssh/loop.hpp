#pragma once

#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/remote/ssh/command.hpp"
#include "launcher/remote/ssh/login.hpp"

// The thread that owns a session after its login. Only .cpp files of this folder include it.
namespace dtrain::ssh {

// What a channel leads to.
struct Target {
  enum class Kind { exec, unix_socket, tcp };
  Kind kind = Kind::exec;
  std::string text;  // command line, path, host
  int port = 0;
  std::string marker;                               // exec: see SshExec
  std::size_t errors_kept = std::size_t{16} << 10;  // exec
  std::string bridge;                               // unix_socket: a command line in its place
};

class Loop;

// One channel and the socket here that it is joined to. The loop's thread alone moves bytes; what
// stands under `shared` is for all threads, by the loop's mutex.
class Link {
 public:
  Link(Loop& loop, Target target, UniqueFd local);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  struct Shared {
    bool opened = false;
    bool ended = false;           // nothing more will happen
    std::optional<int> code;      // exec: the exit as a shell shows it
    std::optional<Error> broken;  // why it ended, if not in order
    std::string errors;
    bool abandoned = false;  // nobody holds the Channel any more
  } shared;

 private:
  friend class Loop;
  enum class State { waiting, opening, running, done };

  void open();  // waiting, opening
  void opened();
  void open_failed(const std::string& why);
  void take_bridge();
  void from_local();  // socket -> channel
  void to_local();    // channel -> socket, what was held back
  void advance();     // ends what has ended
  void finish(std::optional<Error> broken);
  std::size_t take(std::string_view bytes, bool is_error);
  std::size_t give(std::string_view bytes);  // as much as the socket takes
  void grow_window();
  bool wants_input() const;
  bool may_open() const;  // waits for nothing but its turn
  bool drained() const { return spill_.empty() && !held_; }

  Loop& loop_;
  Target target_;
  UniqueFd local_;
  State state_ = State::waiting;
  ssh_channel channel_ = nullptr;
  ssh_channel_callbacks_struct callbacks_{};
  std::optional<MarkerFilter> marker_;
  bool requesting_ = false;  // exec: asked for, not yet answered
  bool counted_ = false;     // among the sessions
  std::string input_;        // read from the socket, not yet taken by the channel
  std::size_t input_at_ = 0;
  std::string spill_;  // taken from libssh, not yet by the socket
  std::size_t spill_at_ = 0;
  bool held_ = false;  // libssh holds more
  std::size_t since_growth_ = 0;
  std::size_t window_ = 64000;
  bool local_ended_ = false;  // no more input from here
  bool local_gone_ = false;   // nobody reads here
  bool eof_sent_ = false;
  bool remote_ended_ = false;
  bool remote_closed_ = false;
  bool shut_ = false;
  std::optional<int> code_;
  std::chrono::steady_clock::time_point since_{};  // in waiting: its beginning; abandoned: that
  bool leaving_ = false;
  bool eof_noted_ = false;
  std::size_t noise_ = 0;
};

class Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(LoggedIn in, std::string name);
  ~Loop();  // ends the thread
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void start();
  // Joins `local` to a new channel, and waits until the host has answered, at most `limit` and what
  // is the limit for all. Throws as SshConnection.
  std::shared_ptr<Link> join(Target target, UniqueFd local,
                             std::chrono::milliseconds limit = std::chrono::milliseconds::max());
  // Takes each connection to `listener` to the target. `path` goes with it, if it is a socket's.
  void serve(UniqueFd listener, Target target, std::string path);
  // Of a channel's owner, from any thread.
  void abandon(const std::shared_ptr<Link>& link);
  std::optional<int> wait(Link& link, std::chrono::milliseconds limit);
  std::string errors(Link& link);

  void stop();  // asks the thread to end, and waits for that
  bool alive() const;
  bool wait_ended(std::chrono::milliseconds limit) const;

 private:
  friend class Link;
  struct Listener {
    UniqueFd fd;
    Target target;
    std::string path;
  };

  void run();
  void loop();
  void pump_session();
  void keep_alive();
  void accept_from(Listener& listener);
  void drop_listeners();  // and their sockets' files
  void post(std::function<void()> task);
  void take_tasks();
  void break_all(const Error& error);
  void check_broken();
  void changed();  // wakes those who wait; under no lock
  bool can_write() const;
  bool session_free() const;
  void wake() const;

  std::string name_;
  Carrier carrier_;  // outlives the session
  Session session_;
  UniqueFd wake_;
  std::thread thread_;
  std::mutex joining_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;
  bool stopping_ = false;
  bool ended_ = false;
  std::optional<Error> broken_;

  // The thread's own.
  std::list<std::shared_ptr<Link>> links_;
  std::list<Listener> listeners_;
  std::vector<char> scratch_;
  ssh_counter_struct sent_{}, received_{};
  std::uint64_t heard_bytes_ = 0;
  std::chrono::steady_clock::time_point heard_{};
  std::chrono::steady_clock::time_point asked_{};
  std::size_t sessions_ = 0;
  bool had_sessions_ = false;             // so that the server does start programs
  std::size_t most_sessions_ = SIZE_MAX;  // as far as the server let us know, until then
  std::chrono::steady_clock::time_point most_until_{};
  bool sockets_prohibited_ = false;  // streamlocal forwards
};

}  // namespace dtrain::ssh
