#pragma once

#include "launcher/remote/transport.hpp"

namespace dtrain {

// This machine: processes of this user, files on this disk.
class LocalTransport final : public Transport {
 public:
  Captured run(const std::vector<std::string>& argv, std::string_view input,
               std::chrono::milliseconds deadline) override;
  std::unique_ptr<Channel> open(const std::vector<std::string>& argv) override;
  void put(std::string_view content, const fs::path& path, mode_t mode) override;
  void start_detached(const std::vector<std::string>& argv) override;
  fs::path head_socket(const HeadPlace& head) override;
};

}  // namespace dtrain
