#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include <nlohmann/json_fwd.hpp>

#include "cli/lines.hpp"
#include "cli/screen.hpp"

namespace dtrain::cli {

// What was written, as the events of --json have it: `text`, or `base64` where it is not UTF-8.
void set_text(nlohmann::json& event, std::string_view bytes);

// Which bytes of a rank these are.
struct LogPiece {
  int attempt = 1;
  int rank = 0;
  std::string_view node;
  bool err = false;  // stderr, else stdout
  std::uint64_t offset = 0;
  std::string_view bytes;
  bool setup = false;          // of no rank, but of the job's setup on the node
  std::uint64_t released = 0;  // bytes before it that the head does not keep any more
};

struct LogStyle {
  bool prefix = true;  // "[1] " before each line; without it, and in no terminal, bytes go through
  bool json = false;   // one JSON line per line
  bool setup_to_out = false;  // what setup wrote goes to stdout, else to stderr
};

// Prints ranks' output: stdout of a rank to stdout, stderr to stderr; and setup's, line by line
// with its node. Remembers for every stream which byte comes next, so that a server that begins
// again is never heard twice. Where bytes were released a line says how many. On a terminal, lines
// are whole, and control characters cannot drive it, but for colours; into a pipe or file, bytes
// are as the rank wrote them.
class LogPrinter {
 public:
  LogPrinter(Screen& screen, LogStyle style) : screen_(screen), style_(style) {}

  void piece(const LogPiece& piece);
  // The end: what is left of lines without an end.
  void finish();

  std::uint64_t received() const noexcept { return received_; }  // new bytes, all streams
  std::uint64_t missing() const noexcept { return missing_; }    // bytes that the server left out
  bool any() const noexcept { return !streams_.empty(); }
  // Of each rank, [attempt, rank, bytes of stdout that are here, of stderr]: where a new connection
  // is to begin.
  nlohmann::json places() const;
  // The open part of the line that came last, for a progress bar on the live line.
  std::string_view open_line() const noexcept;

 private:
  struct Stream {
    std::uint64_t next = 0;
    std::uint64_t line_at = 0;  // offset of the first byte of the pending line
    bool in_line = false;       // where bytes go through: the last one ended no line
    LineAssembler lines;
    std::string prefix;
    std::string node;
  };
  // Attempt, rank, stderr; the node of a setup, else nothing.
  using Key = std::tuple<int, int, bool, std::string>;

  bool to_err(const Key& key) const;
  bool goes_through(const Key& key) const;
  void tell_released(const Key& key, Stream& stream, std::uint64_t bytes);
  void print(const Key& key, Stream& stream, std::string_view line, bool whole);

  Screen& screen_;
  LogStyle style_;
  std::map<Key, Stream> streams_;
  const Stream* latest_ = nullptr;
  std::uint64_t received_ = 0;
  std::uint64_t missing_ = 0;
};

}  // namespace dtrain::cli
