#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// A port of this machine's loopback that leads to a port of a node's.
struct Forward {
  int local = 0;     // 0: a free one
  std::string node;  // empty: the head's
  int port = 0;

  std::string text() const;
};

// "LOCAL:NODE:PORT", or "NODE:PORT" with the same number here. Throws Error(usage).
Forward parse_forward(const std::string& text);

// Listens and carries connections, by threads of its own, while it lives. A connection that cannot
// be carried is told and ends alone.
class Forwarding {
 public:
  // Throws Error when a port cannot be had or the head is not there.
  Forwarding(const Context& context, std::vector<Forward> forwards);
  ~Forwarding();
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;

  // With the ports that were free.
  const std::vector<Forward>& forwards() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// -p of exec, attach and submit: ports of the head's node, each by the same number here.
void add_port_forward(CLI::App& app, std::vector<int>& ports);
// None for no ports.
std::unique_ptr<Forwarding> forward_ports(const Context& context, const std::vector<int>& ports);

}  // namespace dtrain::cli
