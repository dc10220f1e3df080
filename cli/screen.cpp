#include "cli/screen.hpp"

#include <utility>

#include "launcher/core/files.hpp"

namespace dtrain::cli {

Screen::Screen(const Terminal& terminal, bool live, Signals* signals, int out_fd, int err_fd)
    : terminal_(terminal),
      live_wanted_(live && terminal.err && !terminal.dumb),
      signals_(signals),
      out_fd_(out_fd),
      err_fd_(err_fd) {}

Screen::~Screen() {
  try {
    live_.clear();
    flush();
  } catch (const Error&) {  // nobody is left to tell
  } catch (const Interrupted&) {
  }
}

// What is written last is seen last, also where both are one terminal or one file: what waits for
// the other side goes first.
void Screen::out(std::string_view bytes) {
  out_buffer() += bytes;
  grown();
}

std::string& Screen::out_buffer() {
  if (!err_.empty()) flush_text();
  return out_;
}

void Screen::err(std::string_view bytes) {
  if (!out_.empty()) flush_text();
  err_ += bytes;
  if (err_.size() >= kEnough) flush_text();
}

void Screen::live(std::string text) {
  live_ = std::move(text);
}

void Screen::flush() {
  flush_text();
  if (!live_wanted_) return;
  if (live_.empty()) {
    erase_live();
    return;
  }
  std::string wanted = fit(live_, terminal_columns() - 1);
  if (wanted == shown_) return;
  erase_live();
  put(err_fd_, paint(wanted, Color::dim, terminal_.color_err));
  shown_ = std::move(wanted);
}

void Screen::flush_text() {
  write(out_fd_, out_);
  write(err_fd_, err_);
}

void Screen::write(int fd, std::string& text) {
  if (text.empty()) return;
  if (fd == err_fd_ ? terminal_.err : terminal_.out) erase_live();
  put(fd, text);
  text.clear();
}

void Screen::put(int fd, std::string_view text) {
  if (signals_ == nullptr) return write_all(fd, text);
  try {
    write_interruptible(fd, text, *signals_);
  } catch (const Interrupted&) {
    out_.clear();
    err_.clear();
    live_.clear();
    if (fd == err_fd_) shown_.clear();
    throw;
  }
}

void Screen::erase_live() {
  if (shown_.empty()) return;
  shown_.clear();
  put(err_fd_, "\r\x1b[K");
}

}  // namespace dtrain::cli
