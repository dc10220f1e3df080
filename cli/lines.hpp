#pragma once

#include <cstring>
#include <string>
#include <string_view>

namespace dtrain::cli {

// Makes whole lines of the pieces of one stream. Holds at most `limit` bytes: a longer line comes
// in parts. The sink is called as sink(line, whole): without its newline, `whole` false for a part
// of a line that was too long and for what the stream ended with.
class LineAssembler {
 public:
  explicit LineAssembler(std::size_t limit = std::size_t{1} << 20) : limit_(limit) {}

  template <typename Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    while (!bytes.empty()) {
      const void* found = std::memchr(bytes.data(), '\n', bytes.size());
      if (found == nullptr) {
        hold(bytes, sink);
        return;
      }
      const auto length = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data());
      const std::string_view line = bytes.substr(0, length);
      if (pending_.empty()) {
        sink(line, true);
      } else {
        hold(line, sink);
        sink(std::string_view(pending_), true);
        pending_.clear();
      }
      bytes.remove_prefix(length + 1);
    }
  }

  // The stream has ended: gives what is left, if anything.
  template <typename Sink>
  void finish(Sink&& sink) {
    if (pending_.empty()) return;
    sink(std::string_view(pending_), false);
    pending_.clear();
  }

  std::string_view pending() const noexcept { return pending_; }

 private:
  template <typename Sink>
  void hold(std::string_view bytes, Sink& sink) {
    while (pending_.size() + bytes.size() > limit_) {
      const std::size_t room = limit_ - pending_.size();
      pending_ += bytes.substr(0, room);
      bytes.remove_prefix(room);
      sink(std::string_view(pending_), false);
      pending_.clear();
    }
    pending_ += bytes;
  }

  std::size_t limit_;
  std::string pending_;
};

// What a terminal would show of a line in which '\r' goes back to its beginning, as progress bars
// do: the last part that is not empty.
inline std::string_view after_returns(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t last = line.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

}  // namespace dtrain::cli
