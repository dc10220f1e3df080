#pragma once

#include <optional>

namespace dtrain {

// What is read from and written to: a socket is both, a program's stdio is two.
struct StreamEnd {
  StreamEnd(int socket) : in(socket), out(socket) {}
  StreamEnd(int in_fd, int out_fd) : in(in_fd), out(out_fd) {}

  int in;
  int out;
};

// Carries bytes both ways between `near` and `far`, which are not closed. A side that takes nothing
// holds up its own direction alone, which then reads nothing more. The end of `near` is passed on
// to a socket's other side, and `far` may go on speaking; the end of `far`, once all that it said
// is written, is the end of all: nobody reads any more what would still come from `near`. Where far
// takes nothing more, what it has said is brought all the same. False
// when a side is gone before, or once `stop` is readable. SIGPIPE of a pipe is the caller's to
// ignore.
bool join_streams(StreamEnd near, StreamEnd far, std::optional<int> stop = std::nullopt);

}  // namespace dtrain
