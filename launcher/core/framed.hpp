#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Whole messages over a byte stream: a pipe, a socket, or the stdio of a program at the far end of
// an SSH channel. Each is one byte of kind, four bytes of length (big endian), and the bytes.
namespace dtrain {

enum class FrameKind : char {
  text = 'j',   // one JSON document
  bytes = 'b',  // bytes that the text before has announced
};

// Does not own its descriptors; one thread may read while another writes. After an Error the stream
// is of no more use. Where it writes to a pipe, the process must ignore SIGPIPE.
class FramedStream {
 public:
  // As one side of its own stdio (0, 1), or twice the same socket.
  FramedStream(int in, int out) : in_(in), out_(out) {}

  struct Message {
    FrameKind kind = FrameKind::text;
    std::string bytes;
  };

  // Blocks until all is handed to the kernel. Throws Error(unreachable) when nobody reads any more,
  // Error(timeout) when the other side takes nothing for `silence`.
  void send(FrameKind kind, std::string_view bytes, std::chrono::milliseconds silence = kSilence);

  // The next message; absent when the other side ended in good order, between messages. Throws
  // Error(timeout) when nothing comes for `silence`, Error(unreachable) when the stream breaks in
  // the middle, Error(invalid) for what no message begins with or one longer than kLimit.
  std::optional<Message> read(std::chrono::milliseconds silence = kSilence);

  // True when read() would find a byte, or the end, at once.
  bool has_input() const noexcept;

  static constexpr std::chrono::milliseconds kSilence{60000};
  static constexpr std::size_t kLimit = std::size_t{16} << 20;

 private:
  bool read_exactly(char* to, std::size_t size, bool may_end, std::chrono::milliseconds silence);

  int in_;
  int out_;
};

}  // namespace dtrain
