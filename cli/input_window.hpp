#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

#include "launcher/wire/client.hpp"

namespace dtrain::cli {

// What is read here and sent to a command on a node (docs/api.md, Exec): no more of it is on its
// way than the command takes, the rest waits where it comes from. The stream carries nothing else
// that could be held up by it, so signals pass.
class InputWindow {
 public:
  // Reads `fd` from now on. Both stay the caller's, and live longer.
  InputWindow(wire::ApiStream& stream, int fd);

  // `fd` can be read. At its end the command is told, and it is read no more.
  void read();
  // A frame {"type": "credit"} came.
  void credit(const nlohmann::json& frame);

 private:
  void watch();

  wire::ApiStream& stream_;
  int fd_;
  std::uint64_t in_flight_ = 0;  // bytes
  bool watched_ = false;
  bool ended_ = false;
};

}  // namespace dtrain::cli
