#include "launcher/core/framed.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kHead = 5;

void wait_for(int fd, short what, std::chrono::milliseconds silence) {
  pollfd waiting{fd, what, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, static_cast<int>(silence.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    throw Error(ErrorCode::timeout, "the other side was silent for " + human_duration(silence));
  }
  if (ready < 0) throw errno_error("cannot wait for the other side", errno);
}

}  // namespace

void FramedStream::send(FrameKind kind, std::string_view bytes, std::chrono::milliseconds silence) {
  if (bytes.size() > kLimit) throw Error(ErrorCode::internal, "a message is too long to be sent");
  const auto size = static_cast<std::uint32_t>(bytes.size());
  std::array<char, kHead> head{static_cast<char>(kind), static_cast<char>(size >> 24),
                               static_cast<char>(size >> 16), static_cast<char>(size >> 8),
                               static_cast<char>(size)};
  std::size_t done = 0;
  while (done < kHead + bytes.size()) {
    std::array<iovec, 2> parts{};
    int count = 0;
    if (done < kHead) parts[count++] = {head.data() + done, kHead - done};
    const std::size_t sent = done < kHead ? 0 : done - kHead;
    if (sent < bytes.size()) {
      parts[count++] = {const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
    }
    // A socket whose other end is gone says so, and ends nobody by SIGPIPE; a full one is waited
    // for below, where there is a limit.
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = static_cast<std::size_t>(count);
    ssize_t wrote = ::sendmsg(out_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == ENOTSOCK) wrote = ::writev(out_, parts.data(), count);
    if (wrote >= 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (errno == EAGAIN) {
      wait_for(out_, POLLOUT, silence);
    } else if (errno != EINTR) {
      throw Error(ErrorCode::unreachable, "the other side has gone away");
    }
  }
}

bool FramedStream::read_exactly(char* to, std::size_t size, bool may_end,
                                std::chrono::milliseconds silence) {
  std::size_t done = 0;
  while (done < size) {
    wait_for(in_, POLLIN, silence);
    const ssize_t got = ::read(in_, to + done, size - done);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      if (may_end && done == 0) return false;
      throw Error(ErrorCode::unreachable, "the other side ended in the middle of a message");
    } else if (errno != EINTR && errno != EAGAIN) {
      throw Error(ErrorCode::unreachable, "the other side has gone away");
    }
  }
  return true;
}

bool FramedStream::has_input() const noexcept {
  pollfd waiting{in_, POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

std::optional<FramedStream::Message> FramedStream::read(std::chrono::milliseconds silence) {
  std::array<char, kHead> head{};
  if (!read_exactly(head.data(), head.size(), true, silence)) return std::nullopt;
  const char kind = head[0];
  if (kind != static_cast<char>(FrameKind::text) && kind != static_cast<char>(FrameKind::bytes)) {
    throw Error(ErrorCode::invalid, "what the other side sends is no message of ours");
  }
  std::uint32_t size = 0;
  for (std::size_t i = 1; i < kHead; ++i) {
    size = size << 8 | static_cast<unsigned char>(head[i]);
  }
  if (size > kLimit) {
    throw Error(ErrorCode::invalid, "the other side announces a message of " + human_bytes(size));
  }
  Message message{static_cast<FrameKind>(kind), std::string(size, '\0')};
  read_exactly(message.bytes.data(), size, false, silence);
  return message;
}

}  // namespace dtrain
