#pragma once

#include <string>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// A port of this machine's loopback that leads to a port of a node's.
struct Forward {
  int local = 0;  // 0: a free one
  std::string node;
  int port = 0;

  std::string text() const;
};

// "LOCAL:NODE:PORT", or "NODE:PORT" with the same number here. Throws Error(usage).
Forward parse_forward(const std::string& text);

// Listens and carries connections until SIGINT or SIGTERM; gives the exit code. A connection that
// cannot be carried is told and ends alone. Throws Error when a port cannot be had or the head is
// not there to begin with.
int forward_until_stopped(Context& context, std::vector<Forward> forwards);

}  // namespace dtrain::cli
