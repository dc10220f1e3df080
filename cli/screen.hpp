#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/render.hpp"
#include "cli/signals.hpp"

namespace dtrain::cli {

// stdout, stderr and one live line at the foot of the terminal, kept apart: the live line is taken
// off before anything is written to the terminal and drawn again after. Output is gathered and
// written by flush(), or when much is waiting. One thread. Throws Error(io) when stdout cannot be
// written (a full disk); a reader that went away ends us by SIGPIPE, as it should; with `signals`,
// one that has stopped reading can be left: throws Interrupted, and what waited is dropped.
class Screen {
 public:
  // `live`: a live line is wanted; shown only when stderr is a terminal that can erase.
  Screen(const Terminal& terminal, bool live, Signals* signals = nullptr, int out_fd = 1,
         int err_fd = 2);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  const Terminal& terminal() const noexcept { return terminal_; }
  bool has_live() const noexcept { return live_wanted_; }

  void out(std::string_view bytes);
  void err(std::string_view bytes);
  // What the live line says from the next flush on; empty takes it off. Cut to the terminal.
  void live(std::string text);
  void flush();

  // To append to directly, for the fast path of much output; call grown() after.
  std::string& out_buffer();
  void grown() {
    if (out_.size() >= kEnough) flush_text();
  }

 private:
  static constexpr std::size_t kEnough = std::size_t{256} << 10;

  void flush_text();
  void write(int fd, std::string& text);
  void put(int fd, std::string_view text);
  void erase_live();

  Terminal terminal_;
  bool live_wanted_;
  Signals* signals_;
  int out_fd_;
  int err_fd_;
  std::string out_;
  std::string err_;
  std::string live_;
  std::string shown_;  // the live line as it stands on the terminal; empty: none
};

}  // namespace dtrain::cli
