#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain::slurm {

// What nodes start with, and what their batch scripts say: a folder of each allocation, on storage
// that the login node and all nodes share. Thread-safe as the transport is.
class BootFolders {
 public:
  // Error(invalid) where `base` is no absolute path.
  BootFolders(std::shared_ptr<Transport> login_node, fs::path base);

  fs::path of(const std::string& folder) const { return base_ / folder; }
  // The k-th file is called k. Throws Error; nothing of the folder is left then.
  void write(const std::string& folder, const std::vector<std::string>& files);
  // Of their logs, by folder; empty where nothing can be read.
  std::map<std::string, std::string> last_words(const std::vector<std::string>& folders);
  void remove(const std::vector<std::string>& folders) noexcept;  // what stays is swept later
  // Those that are older. Throws Error.
  std::vector<std::string> older_than(std::chrono::minutes age);

 private:
  Captured run(const std::string& command, std::span<const std::string> folders);

  std::shared_ptr<Transport> login_node_;
  fs::path base_;
};

}  // namespace dtrain::slurm
