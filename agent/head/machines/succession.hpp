#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "launcher/core/ids.hpp"
#include "launcher/provider/slurm/head_chain.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain::head {

// Keeps a successor of this head in Slurm's queue, which begins when this one's allocation ends,
// however that comes about. A thread of its own looks each kLook whether it is still there. All
// methods from any thread.
class Succession {
 public:
  // `job`: this head's own.
  Succession(std::string cluster_name, ClusterId cluster, std::string job);
  ~Succession();
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;

  // With a head wanted, and else it is taken back, as before the end of the cluster.
  void want(const wire::WantedMachines& wanted);
  // {"job", "next": {"job", "reason"}|null, "error": error|null}
  nlohmann::json view() const;

  static constexpr std::chrono::seconds kLook{60};
  static constexpr std::chrono::seconds kRetry{10};

 private:
  struct Next {
    std::string job;
    std::string reason;
  };
  void serve();
  std::optional<Next> look(const wire::WantedMachines& wanted) const;

  const std::string cluster_name_;
  const ClusterId cluster_;
  const std::string job_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<wire::WantedMachines> wanted_;
  bool is_news_ = false;
  bool ending_ = false;
  std::optional<Next> next_;
  nlohmann::json error_;
  std::thread thread_;
};

}  // namespace dtrain::head
