#include "cli/input_window.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/wire/limits.hpp"

namespace dtrain::cli {

InputWindow::InputWindow(wire::ApiStream& stream, int fd) : stream_(stream), fd_(fd) {
  watch();
}

void InputWindow::read() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got > 0) {
    stream_.send_binary(std::string(buffer.data(), static_cast<std::size_t>(got)));
    in_flight_ += static_cast<std::uint64_t>(got);
  } else {
    ended_ = true;
    stream_.send_text(R"({"type":"eof"})");
  }
  watch();
}

void InputWindow::credit(const nlohmann::json& frame) {
  const auto bytes = static_cast<std::uint64_t>(std::max(0LL, number_or(frame, "bytes", 0)));
  in_flight_ -= std::min(in_flight_, bytes);
  watch();
}

void InputWindow::watch() {
  const bool wanted = !ended_ && in_flight_ < wire::kInputWindow;
  if (wanted == watched_) return;
  watched_ = wanted;
  if (wanted) {
    stream_.watch(fd_);
  } else {
    stream_.unwatch(fd_);
  }
}

}  // namespace dtrain::cli
