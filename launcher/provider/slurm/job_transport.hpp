#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/provider/slurm/client.hpp"
#include "launcher/remote/channel_server.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain::slurm {

// The first node of a Slurm job, by steps of srun's from the login node: nobody logs in to it. Each
// program is a step beside what the job runs, and ends with the job. Error(unreachable) when there
// is no such job, or it has ended meanwhile.
class JobTransport final : public Transport {
 public:
  // `job`: the id of one that runs now, asked for each program; it throws Error(unreachable) with
  // why there is none. From any thread.
  JobTransport(Client client, std::function<std::string()> job);
  ~JobTransport() override;
  JobTransport(const JobTransport&) = delete;
  JobTransport& operator=(const JobTransport&) = delete;

  Captured run(const std::vector<std::string>& argv, std::string_view input,
               std::chrono::milliseconds deadline) override;
  std::unique_ptr<Channel> open(const std::vector<std::string>& argv) override;
  void put(std::string_view content, const fs::path& path, mode_t mode) override;
  // Nothing outlives a step: Error(internal).
  void start_detached(const std::vector<std::string>& argv) override;
  // By the bridge: each connection is a step of its own, in the job that runs by then.
  fs::path head_socket(const HeadPlace& head) override;

 private:
  const Client client_;
  const std::function<std::string()> job_;
  std::mutex mutex_;
  std::optional<ChannelServer> server_;
};

}  // namespace dtrain::slurm
