#include "cli/log_printer.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/colours.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

std::string base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(length));
  return out;
}

}  // namespace

void set_text(nlohmann::json& event, std::string_view bytes) {
  if (is_utf8(bytes)) {
    event["text"] = bytes;
  } else {
    event["base64"] = base64(bytes);
  }
}

void LogPrinter::piece(const LogPiece& piece) {
  const Key key{piece.attempt, piece.rank, piece.err,
                piece.setup ? std::string(piece.node) : std::string()};
  auto [found, fresh] = streams_.try_emplace(key);
  Stream& stream = found->second;
  const bool err = to_err(key);
  const bool terminal = err ? screen_.terminal().err : screen_.terminal().out;
  if (fresh) {
    stream.next = stream.line_at = piece.offset - std::min(piece.offset, piece.released);
    stream.node = piece.node;
    const bool color = err ? screen_.terminal().color_err : screen_.terminal().color_out;
    if (piece.setup) {
      stream.prefix =
          paint("[setup " + printable(piece.node, false) + "]", Color::dim, color) + " ";
    } else if (style_.prefix) {
      stream.prefix =
          paint("[" + std::to_string(piece.rank) + "]", rank_color(piece.rank), color) + " ";
    }
  }
  std::string_view bytes = piece.bytes;
  if (piece.offset > stream.next) {
    const std::uint64_t gap = piece.offset - stream.next;
    if (piece.released > 0) {
      tell_released(key, stream, gap);
    } else {
      missing_ += gap;
    }
    stream.next = piece.offset;
  }
  const std::uint64_t seen = stream.next - piece.offset;
  if (seen >= bytes.size()) return;
  bytes.remove_prefix(seen);
  stream.next += bytes.size();
  received_ += bytes.size();
  latest_ = &stream;

  if (goes_through(key)) {
    stream.in_line = bytes.back() != '\n';
    if (piece.err) {
      screen_.err(bytes);
    } else {
      screen_.out(bytes);
    }
    return;
  }
  if (!style_.json && !terminal && !err) {
    // The path of much output: prefix and line, straight into the buffer.
    std::string& out = screen_.out_buffer();
    stream.lines.feed(bytes, [&](std::string_view line, bool) {
      out += stream.prefix;
      out += line;
      out += '\n';  // also after a part of a line: another rank may write next
    });
    screen_.grown();
    return;
  }
  stream.lines.feed(bytes, [this, &of = key, &from = stream](std::string_view line, bool whole) {
    print(of, from, line, whole);
  });
}

void LogPrinter::print(const Key& key, Stream& stream, std::string_view line, bool whole) {
  const auto& [attempt, rank, is_err, setup_node] = key;
  const bool err = to_err(key);
  if (style_.json) {
    nlohmann::json event = {{"type", "log"},
                            {"attempt", attempt},
                            {"rank", rank},
                            {"node", stream.node},
                            {"stream", is_err ? "err" : "out"},
                            {"offset", stream.line_at}};
    if (!setup_node.empty()) {
      event["rank"] = nullptr;
      event["stream"] = "setup";
    }
    set_text(event, line);
    if (!whole) event["partial"] = true;
    stream.line_at += line.size() + (whole ? 1 : 0);
    screen_.out(wire::dump(event) + "\n");
    return;
  }
  const bool terminal = err ? screen_.terminal().err : screen_.terminal().out;
  std::string text = stream.prefix;
  if (terminal) {
    const bool color = err ? screen_.terminal().color_err : screen_.terminal().color_out;
    text += with_colours(after_returns(line), color);
  } else {
    text += line;
  }
  text += '\n';
  if (err) {
    screen_.err(text);
  } else {
    screen_.out(text);
  }
}

// Unchanged, and not by lines.
bool LogPrinter::goes_through(const Key& key) const {
  const bool terminal = to_err(key) ? screen_.terminal().err : screen_.terminal().out;
  const bool setup = !std::get<std::string>(key).empty();
  return !style_.json && !style_.prefix && !terminal && !setup;
}

// Before the bytes behind them: a line of its own.
void LogPrinter::tell_released(const Key& key, Stream& stream, std::uint64_t bytes) {
  const auto print_line = [&](std::string_view line, bool whole) {
    print(key, stream, line, whole);
  };
  stream.lines.finish(print_line);
  if (style_.json) {
    const auto& [attempt, rank, err, setup_node] = key;
    screen_.out(wire::dump({{"type", "released"},
                            {"attempt", attempt},
                            {"rank", rank},
                            {"node", stream.node},
                            {"stream", err ? "err" : "out"},
                            {"offset", stream.next},
                            {"bytes", bytes}}) +
                "\n");
  } else {
    if (std::exchange(stream.in_line, false)) print_line("", true);
    print_line(missing_mark(bytes, kReleasedReason), true);
  }
  stream.line_at = stream.next + bytes;
}

bool LogPrinter::to_err(const Key& key) const {
  const bool setup = !std::get<std::string>(key).empty();
  return setup ? !style_.setup_to_out : std::get<bool>(key);
}

void LogPrinter::finish() {
  for (auto& [key, stream] : streams_) {
    stream.lines.finish([this, &of = key, &from = stream](std::string_view line, bool whole) {
      print(of, from, line, whole);
    });
  }
}

nlohmann::json LogPrinter::places() const {
  nlohmann::json rows = nlohmann::json::array();
  std::pair<int, int> last{-1, -1};
  for (const auto& [key, stream] : streams_) {
    const auto& [attempt, rank, err, setup_node] = key;
    if (!setup_node.empty()) continue;
    if (last != std::pair(attempt, rank)) rows.push_back({attempt, rank, 0, 0});
    last = {attempt, rank};
    rows.back()[err ? 3 : 2] = stream.next;
  }
  return rows;
}

std::string_view LogPrinter::open_line() const noexcept {
  return latest_ == nullptr ? std::string_view() : after_returns(latest_->lines.pending());
}

}  // namespace dtrain::cli
