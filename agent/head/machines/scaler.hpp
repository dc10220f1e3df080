#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/head/machines/source.hpp"
#include "launcher/core/framed.hpp"
#include "launcher/provider/scaler_messages.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain::head {

// A cloud, asked by dtrain-scaler, which is started when there is something to ask. It remembers
// what it asked for: when it ends, however that comes about, what waits has an Error, and the next
// is asked of another one.
class Scaler final : public MachineSource {
 public:
  Scaler(wire::WantedMachines wanted, std::string cluster_name, fs::path notes);

  std::vector<Machine> list() override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void stop(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void start(const std::vector<Machine>& machines, const BootScript& boot,
             const OutcomeSink& tell) override;
  void hang_up() override;

  // One that says nothing for so long while it has a task is ended: each of its requests has a
  // limit of its own, and is tried in some zones.
  static constexpr std::chrono::minutes kSilence{30};

 private:
  struct Running {
    explicit Running(std::unique_ptr<Channel> program)
        : channel(std::move(program)), stream(channel->fd(), channel->fd()) {}
    std::unique_ptr<Channel> channel;
    FramedStream stream;
    bool told = false;  // what is wanted
  };
  void ask(const ScalerTask& task, const std::function<void(const ScalerOutcome&)>& hear);
  std::shared_ptr<Running> running();
  void drop();

  const ScalerBegin begin_;
  std::mutex mutex_;  // of the rest, for hang_up() comes from elsewhere
  std::shared_ptr<Running> running_;
  bool over_ = false;
};

}  // namespace dtrain::head
