#include "agent/node/exec.hpp"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>

#include "agent/node/drain.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using Descriptor = asio::posix::stream_descriptor;

namespace {

constexpr std::chrono::seconds kHangupGrace{5};
constexpr std::chrono::milliseconds kSweepLimit{1000};
constexpr const char* kLeftBehind =
    "dtrain: a process that the command left behind still holds its output; what it writes from "
    "now "
    "on is not shown\n";

std::string value_of(const std::vector<std::string>& env, const std::string& name,
                     const std::string& fallback) {
  for (const std::string& entry : env) {
    if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
  }
  return fallback;
}

void set_value(std::vector<std::string>& env, const std::string& name, const std::string& value) {
  std::erase_if(env, [&](const std::string& entry) { return entry.rfind(name + "=", 0) == 0; });
  env.push_back(name + "=" + value);
}

int signal_number(const std::string& name) {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2}) {
    if (signal_name(number) == "SIG" + name) return number;
  }
  return 0;
}

std::uint64_t waiting_in(Descriptor& output) {
  int bytes = 0;
  if (!output.is_open() || ::ioctl(output.native_handle(), FIONREAD, &bytes) != 0) return 0;
  return static_cast<std::uint64_t>(std::max(0, bytes));
}

}  // namespace

class Execs::Command : public std::enable_shared_from_this<Execs::Command> {
 public:
  Command(Execs& owner, std::string exec)
      : owner_(&owner),
        exec_(std::move(exec)),
        input_(owner.executor_),
        outputs_{Descriptor(owner.executor_), Descriptor(owner.executor_)},
        credit_wake_(owner.executor_, asio::steady_timer::time_point::max()),
        timer_(owner.executor_) {}

  void start(const wire::StartExec& request) {
    SpawnOptions options;
    options.env = owner_->environment_();
    const std::string shell = value_of(options.env, "SHELL", "/bin/sh");
    if (request.command.empty()) {
      options.argv = {shell, "-l"};
    } else if (request.shell) {
      options.argv = {shell, "-c", request.command.front()};
    } else {
      options.argv = request.command;
    }
    options.workdir =
        request.workdir.empty() ? value_of(options.env, "HOME", "/") : request.workdir;
    options.new_session = true;
    // By this mark what a killed agent leaves is found.
    set_value(options.env, kExecMark, owner_->mark_);
    if (request.tty) {
      start_on_terminal(request, options);
    } else {
      start_on_pipes(options);
    }
  }

  pid_t pid() const { return exit_ ? 0 : pid_; }

  void reap() {
    if (exit_ || pid_ == 0) return;
    exit_ = try_wait(pid_);
    if (!exit_) return;
    timer_.cancel();
    std::uint64_t left = 0;
    for (Descriptor& output : outputs_) left += waiting_in(output);
    drain_.emplace(left, std::chrono::steady_clock::now());
    if (held_back_ > 0) drain_->stop(std::chrono::steady_clock::now());
    finish_if_drained();
  }

  void credit(std::size_t bytes) {
    in_flight_ -= std::min(bytes, in_flight_);
    credit_wake_.cancel();
  }

  void input(std::string bytes) {
    if (!input_.is_open()) {
      return_credit(bytes.size());
      return;
    }
    pending_input_.push_back(std::move(bytes));
    feed();
  }

  void control(const wire::ExecControl& control) {
    if (control.kind == "eof") {
      input_ended_ = true;
      feed();
    } else if (control.kind == "resize" && terminal_) {
      const winsize size{static_cast<unsigned short>(control.rows),
                         static_cast<unsigned short>(control.cols), 0, 0};
      ::ioctl(outputs_[0].native_handle(), TIOCSWINSZ, &size);
    } else if (control.kind == "signal") {
      if (const int number = signal_number(control.signal); number != 0) signal_all(number);
    } else if (control.kind == "hangup") {
      hang_up();
    }
  }

  // The other side is gone: SIGHUP, later SIGKILL.
  void hang_up() {
    owner_gone_ = true;
    credit_wake_.cancel();
    if (exit_) {
      finish();
      return;
    }
    signal_all(SIGHUP);
    timer_.expires_after(kHangupGrace);
    timer_.async_wait([self = shared_from_this()](error_code stopped) {
      if (!stopped) self->signal_all(SIGKILL);
    });
  }

  void orphan() {
    if (!exit_) signal_all(SIGHUP);
    owner_ = nullptr;
    close_all();
  }

 private:
  void signal_all(int number) {
    if (pid_ > 0 && !exit_) ::kill(-pid_, number);
  }

  void start_on_pipes(SpawnOptions& options) {
    auto in = make_pipe();
    auto out = make_pipe();
    auto err = make_pipe();
    options.stdin_fd = in[0].get();
    options.stdout_fd = out[1].get();
    options.stderr_fd = err[1].get();
    pid_ = spawn(options);
    ::fcntl(in[1].get(), F_SETFL, O_NONBLOCK);
    input_.assign(in[1].release());
    outputs_[0].assign(out[0].release());
    outputs_[1].assign(err[0].release());
    open_outputs_ = 2;
    pump(0);
    pump(1);
  }

  void start_on_terminal(const wire::StartExec& request, SpawnOptions& options) {
    int master = -1;
    int slave = -1;
    winsize size{static_cast<unsigned short>(request.rows),
                 static_cast<unsigned short>(request.cols), 0, 0};
    if (::openpty(&master, &slave, nullptr, nullptr, &size) != 0) {
      throw errno_error("cannot open a terminal", errno);
    }
    UniqueFd ours(master);
    const UniqueFd theirs(slave);
    ::fcntl(ours.get(), F_SETFD, FD_CLOEXEC);
    if (!request.term.empty()) set_value(options.env, "TERM", request.term);
    options.stdin_fd = options.stdout_fd = options.stderr_fd = theirs.get();
    options.controlling_terminal = true;
    terminal_ = true;
    pid_ = spawn(options);
    ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
    const int copy = ::fcntl(ours.get(), F_DUPFD_CLOEXEC, 3);
    if (copy >= 0) input_.assign(copy);
    outputs_[0].assign(ours.release());
    open_outputs_ = 1;
    pump(0);
  }

  void pump(std::size_t which) {
    asio::co_spawn(
        owner_->executor_, [self = shared_from_this(), which] { return self->pump_out(which); },
        asio::detached);
  }

  asio::awaitable<void> pump_out(std::size_t which) {
    std::string buffer(wire::kBulkFrame, '\0');
    error_code failed;
    while (owner_ != nullptr) {
      hold_back(true);
      while (in_flight_ >= wire::kExecWindow && !owner_gone_) {
        co_await credit_wake_.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      }
      hold_back(false);
      const std::size_t got = co_await outputs_[which].async_read_some(
          asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, failed));
      if (failed || got == 0 || owner_ == nullptr) break;  // a closed terminal reads as EIO
      if (drain_) drain_->took(got);
      if (owner_gone_ || !owner_->bulk_) continue;  // read on, so that it can end
      in_flight_ += got;
      send_output(which == 1, buffer.substr(0, got));
    }
    --open_outputs_;
    finish_if_drained();
  }

  void send_output(bool error_stream, std::string bytes) {
    const wire::BulkMessage header = wire::ExecOutput{exec_, error_stream, bytes.size()};
    owner_->bulk_->send_text(wire::dump(wire::to_json(header)));
    owner_->bulk_->send({false, std::move(bytes)});
  }

  // While the reader keeps us waiting, the time for what is left behind stands still.
  void hold_back(bool held) {
    held_back_ += held ? 1 : -1;
    if (!drain_) return;
    const auto now = std::chrono::steady_clock::now();
    if (held && held_back_ == 1) drain_->stop(now);
    if (!held && held_back_ == 0) drain_->go_on(now);
    finish_if_drained();
  }

  // After the command's end: at its output's end, or when nothing of it is left in the pipes and
  // others that hold them had their time.
  void finish_if_drained() {
    if (!exit_ || finished_) return;
    const std::optional<Drain::Duration> wait = drain_->left(std::chrono::steady_clock::now());
    if (open_outputs_ == 0 || owner_gone_ || wait == Drain::Duration{}) {
      finish();
      return;
    }
    if (!wait) return;
    timer_.expires_after(*wait);
    timer_.async_wait([self = shared_from_this()](error_code stopped) {
      if (!stopped) self->finish_if_drained();
    });
  }

  // Input that is passed on, or that nobody wants any more: more may come.
  void return_credit(std::size_t bytes) {
    if (owner_ == nullptr || owner_gone_ || !owner_->bulk_) return;
    const wire::BulkMessage credit = wire::ExecCredit{exec_, bytes};
    owner_->bulk_->send_text(wire::dump(wire::to_json(credit)));
  }

  void feed() {
    if (feeding_ || !input_.is_open()) return;
    feeding_ = true;
    asio::co_spawn(
        owner_->executor_, [self = shared_from_this()] { return self->feed_in(); }, asio::detached);
  }

  asio::awaitable<void> feed_in() {
    error_code failed;
    while (!pending_input_.empty() && input_.is_open()) {
      const std::string bytes = std::move(pending_input_.front());
      pending_input_.pop_front();
      co_await asio::async_write(input_, asio::buffer(bytes),
                                 asio::redirect_error(asio::use_awaitable, failed));
      return_credit(bytes.size());
      if (failed) {
        for (const std::string& dropped : pending_input_) return_credit(dropped.size());
        pending_input_.clear();
        input_ended_ = true;
      }
    }
    feeding_ = false;
    if (!input_ended_ || !input_.is_open()) co_return;
    if (terminal_ && !failed) {
      const std::string end_of_file = "\x04";
      co_await asio::async_write(input_, asio::buffer(end_of_file),
                                 asio::redirect_error(asio::use_awaitable, failed));
      input_ended_ = false;
    } else {
      input_.close(failed);
    }
  }

  void finish() {
    if (finished_) return;
    finished_ = true;
    timer_.cancel();
    credit_wake_.cancel();
    close_all();
    if (owner_ == nullptr) return;
    if (!owner_gone_ && owner_->bulk_) {
      if (open_outputs_ > 0) send_output(true, kLeftBehind);
      wire::ExecExit exit;
      exit.exec = exec_;
      exit.exit_code = exit_->shell_code();
      owner_->bulk_->send_text(wire::dump(wire::to_json(wire::BulkMessage(exit))));
    }
    owner_->commands_.erase(exec_);
  }

  void close_all() {
    error_code ignored;
    input_.close(ignored);
    for (Descriptor& output : outputs_) output.close(ignored);
  }

  Execs* owner_;
  std::string exec_;
  Descriptor input_;
  std::array<Descriptor, 2> outputs_;  // stdout and stderr, or the terminal
  asio::steady_timer credit_wake_;
  asio::steady_timer timer_;
  std::deque<std::string> pending_input_;
  std::optional<ProcessExit> exit_;
  std::optional<Drain> drain_;  // once it has ended
  pid_t pid_ = 0;
  std::size_t in_flight_ = 0;
  int open_outputs_ = 0;
  int held_back_ = 0;  // of these, those that wait for the reader
  bool terminal_ = false;
  bool feeding_ = false;
  bool input_ended_ = false;
  bool owner_gone_ = false;
  bool finished_ = false;
};

Execs::Execs(asio::any_io_executor executor, std::function<std::vector<std::string>()> environment,
             std::string mark)
    : executor_(std::move(executor)), environment_(std::move(environment)), mark_(std::move(mark)) {
  // What an agent before this one started and could not end.
  sweep(kExecMark, mark_, kSweepLimit);
}

Execs::~Execs() {
  for (const auto& [exec, command] : commands_) command->orphan();
}

void Execs::use(wire::FrameStreamPtr bulk) {
  bulk_ = std::move(bulk);
  const auto before = commands_;
  for (const auto& [exec, command] : before) command->hang_up();
}

void Execs::message(const wire::BulkMessage& message, std::string bytes) {
  const auto find = [&](const std::string& exec) -> std::shared_ptr<Command> {
    const auto found = commands_.find(exec);
    return found == commands_.end() ? nullptr : found->second;
  };
  if (const auto* input = std::get_if<wire::ExecInput>(&message)) {
    if (const auto command = find(input->exec)) command->input(std::move(bytes));
  } else if (const auto* request = std::get_if<wire::StartExec>(&message)) {
    start(*request);
  } else if (const auto* credit = std::get_if<wire::ExecCredit>(&message)) {
    if (const auto command = find(credit->exec)) command->credit(credit->bytes);
  } else if (const auto* control = std::get_if<wire::ExecControl>(&message)) {
    if (const auto command = find(control->exec)) command->control(*control);
  }
}

void Execs::start(const wire::StartExec& start) {
  const auto command = std::make_shared<Command>(*this, start.exec);
  commands_[start.exec] = command;
  try {
    command->start(start);
  } catch (Error& error) {
    commands_.erase(start.exec);
    if (!bulk_) return;
    wire::ExecExit exit;
    exit.exec = start.exec;
    exit.error = error;
    bulk_->send_text(wire::dump(wire::to_json(wire::BulkMessage(exit))));
  }
}

void Execs::reap() {
  const auto before = commands_;  // finish() takes commands out
  for (const auto& [exec, command] : before) command->reap();
}

std::vector<pid_t> Execs::pids() const {
  std::vector<pid_t> pids;
  for (const auto& [exec, command] : commands_) {
    if (command->pid() > 0) pids.push_back(command->pid());
  }
  return pids;
}

}  // namespace dtrain::node
