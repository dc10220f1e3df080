#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/wire/client.hpp"

namespace dtrain::cli {

// A program on a node of a cluster that is up, through the head's exec (docs/api.md): its stdin and
// stdout as one socket here. A thread of its own carries the bytes.
class ExecChannel final : public Channel {
 public:
  // Throws the head's Error when it refuses; that the program cannot be started shows later.
  ExecChannel(const wire::ApiClient& client, const std::string& node,
              const std::vector<std::string>& argv);
  // Hangs up on a program that still runs.
  ~ExecChannel() override;

  int fd() const override;
  std::string errors() override;
  std::optional<int> wait(std::chrono::milliseconds limit) override;

  // After the socket's end: why the program could not be run, or what it said before it failed.
  // Absent when it ended in good order.
  std::optional<Error> failure(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::cli
