#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "launcher/remote/ssh/connection.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {

// A machine over one SSH connection. Programs are run by `exec /bin/sh`, whatever the login shell,
// and what that shell or its profile prints before them is dropped from their output. A path that
// begins with "~/" is below the home there, anywhere in argv[0] and in put().
class SshTransport final : public Transport {
 public:
  explicit SshTransport(std::shared_ptr<SshConnection> connection);

  Captured run(const std::vector<std::string>& argv, std::string_view input,
               std::chrono::milliseconds deadline) override;
  std::unique_ptr<Channel> open(const std::vector<std::string>& argv) override;
  // The size that arrived is checked there before the file gets its name.
  void put(std::string_view content, const fs::path& path, mode_t mode) override;
  void start_detached(const std::vector<std::string>& argv) override;

  // A socket here that leads to the head's there; the bridge is for servers that forbid forwards of
  // sockets.
  fs::path head_socket(const HeadPlace& head) override;

  SshConnection& connection() { return *connection_; }

 private:
  std::string remote_head_socket(const fs::path& head_root);

  std::shared_ptr<SshConnection> connection_;
  std::mutex mutex_;
  fs::path local_socket_;
};

}  // namespace dtrain
