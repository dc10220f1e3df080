#include "cli/exec_channel.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/input_window.hpp"
#include "cli/jobs.hpp"
#include "cli/remote_command.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using What = wire::ApiStream::What;

constexpr std::size_t kErrorsKept = std::size_t{16} << 10;

}  // namespace

struct ExecChannel::Impl {
  explicit Impl(wire::ApiStream opened) : stream(std::move(opened)) {}

  wire::ApiStream stream;  // of the thread
  UniqueFd ours;           // the caller's end
  UniqueFd theirs;         // the thread's
  UniqueFd stop;           // an eventfd: the caller leaves
  std::thread thread;

  std::mutex mutex;
  std::condition_variable changed;
  std::string err;
  std::optional<int> code;
  std::optional<Error> error;
  bool ended = false;

  void run() {
    bool out_follows = false;
    bool err_follows = false;
    stream.watch(stop.get());
    // What the program does not take waits in the caller's socket.
    InputWindow input(stream, theirs.get());
    while (true) {
      const wire::ApiStream::Event event = stream.wait();
      switch (event.what) {
        case What::input:
          if (event.fd == stop.get()) return;
          input.read();
          break;
        case What::text: {
          const nlohmann::json frame = wire::parse_json(stream.data(), "a frame of the head");
          const std::string type = text_or(frame, "type");
          if (type == "end") return;
          if (type == "credit") input.credit(frame);
          out_follows = type == "output" && text_or(frame, "stream") != "err";
          err_follows = type == "output" && !out_follows;
          if (frame.contains("error") && frame["error"].is_object()) {
            const std::lock_guard lock(mutex);
            error = wire::error_from_json(frame);
            if (type.empty()) return;
          } else if (type == "exit") {
            const std::lock_guard lock(mutex);
            code = static_cast<int>(number_or(frame, "exit_code", kOwnTrouble));
          }
          break;
        }
        case What::binary:
          if (out_follows) output(stream.data());
          if (err_follows) {
            const std::lock_guard lock(mutex);
            err += stream.data();
            if (err.size() > kErrorsKept) err.erase(0, err.size() - kErrorsKept);
          }
          out_follows = err_follows = false;
          break;
        case What::closed:
          throw Error(ErrorCode::unreachable, "the head went away before the transfer ended");
        case What::timeout:
          break;
      }
    }
  }

  void output(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return;  // the caller left
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
};

ExecChannel::ExecChannel(const wire::ApiClient& client, const std::string& node,
                         const std::vector<std::string>& argv)
    : impl_(std::make_unique<Impl>(client.open("/v1/exec"))) {
  Impl& my = *impl_;
  auto [ours, theirs] = make_socket_pair();
  my.ours = std::move(ours);
  my.theirs = std::move(theirs);
  my.stop.reset(::eventfd(0, EFD_CLOEXEC));
  const nlohmann::json opening = {
      {"command", argv}, {"shell", false}, {"nodes", nlohmann::json::array({node})},
      {"tty", false},    {"rows", 24},     {"cols", 80},
      {"term", "dumb"},  {"workdir", ""}};
  my.stream.send_text(opening.dump());
  my.thread = std::thread([&my] {
    std::optional<Error> failed;
    try {
      my.run();
    } catch (const std::exception& error) {
      failed = as_defect(error);
    }
    ::shutdown(my.theirs.get(), SHUT_RDWR);
    const std::lock_guard lock(my.mutex);
    if (failed && !my.error) my.error = failed;
    my.ended = true;
    my.changed.notify_all();
  });
}

ExecChannel::~ExecChannel() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(impl_->stop.get(), &one, sizeof one);
  ::shutdown(impl_->ours.get(), SHUT_RDWR);
  impl_->thread.join();
}

int ExecChannel::fd() const {
  return impl_->ours.get();
}

std::string ExecChannel::errors() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->err;
}

std::optional<int> ExecChannel::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->changed.wait_for(lock, limit, [this] { return impl_->ended; })) return std::nullopt;
  if (impl_->error) throw *impl_->error;
  return impl_->code;
}

std::optional<Error> ExecChannel::failure(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->changed.wait_for(lock, limit, [this] { return impl_->ended; })) return std::nullopt;
  if (impl_->error) return impl_->error;
  if (impl_->code.value_or(0) == 0 && impl_->err.empty()) return std::nullopt;
  std::string text =
      "the agent's part of the sync ended with code " + std::to_string(impl_->code.value_or(0));
  if (!impl_->err.empty()) text += ": " + printable(impl_->err, false);
  return Error(ErrorCode::failed, text);
}

}  // namespace dtrain::cli
