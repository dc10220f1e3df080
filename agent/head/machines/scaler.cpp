#include "agent/head/machines/scaler.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/local.hpp"

namespace dtrain::head {
namespace {

constexpr std::chrono::seconds kLastWords{2};

// With what it said last.
Error ended(Channel& channel) {
  channel.wait(kLastWords);
  const std::string words = trimmed(channel.errors());
  return {ErrorCode::unreachable,
          "dtrain-scaler has ended" + (words.empty() ? "" : ": " + printable(words, false))};
}

}  // namespace

Scaler::Scaler(wire::WantedMachines wanted, std::string cluster_name, fs::path notes)
    : begin_{std::move(cluster_name), std::move(notes), std::move(wanted)} {}

std::vector<Machine> Scaler::list() {
  std::vector<Machine> machines;
  ask({ScalerTask::Kind::list, {}, {}},
      [&](const ScalerOutcome& each) { machines.push_back(*each.machine); });
  return machines;
}

void Scaler::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  ScalerTask task{ScalerTask::Kind::create, {}, {}};
  std::size_t count = 0;
  const auto ask_for_these = [&] {
    if (count > 0) ask(task, [&](const ScalerOutcome& each) { tell({*each.machine, each.error}); });
    task.requests.clear();
    count = 0;
  };
  for (const Request& request : requests) {
    const ScalerRequest of_it{request.type, request.cluster, request.launch, {}, {}};
    task.requests.push_back(of_it);
    for (const NodeId& node : request.nodes) {
      if (count == kMostScripts) {
        ask_for_these();
        task.requests.push_back(of_it);
      }
      task.requests.back().nodes.push_back(node);
      task.requests.back().scripts[node.str()] = request.boot(node);
      ++count;
    }
  }
  ask_for_these();
}

void Scaler::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  ask({ScalerTask::Kind::release, {}, machines}, [&](const ScalerOutcome& each) {
    tell({*each.machine, each.error});
  });
}

void Scaler::stop(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  ask({ScalerTask::Kind::stop, {}, machines}, [&](const ScalerOutcome& each) {
    tell({*each.machine, each.error});
  });
}

void Scaler::start(const std::vector<Machine>& machines, const BootScript& boot,
                   const OutcomeSink& tell) {
  for (std::size_t begin = 0; begin < machines.size(); begin += kMostScripts) {
    const auto first = machines.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = static_cast<std::ptrdiff_t>(std::min(begin + kMostScripts, machines.size()));
    ScalerTask task{ScalerTask::Kind::start, {}, {first, machines.begin() + end}};
    for (const Machine& machine : task.machines) {
      task.scripts[machine.node.str()] = boot(machine.node);
    }
    ask(task, [&](const ScalerOutcome& each) { tell({*each.machine, each.error}); });
  }
}

void Scaler::hang_up() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  if (running_) ::shutdown(running_->channel->fd(), SHUT_RDWR);
}

std::shared_ptr<Scaler::Running> Scaler::running() {
  const std::lock_guard lock(mutex_);
  if (over_) throw Error(ErrorCode::failed, "the head asks for no more machines");
  // Without a task it says nothing: that is its end.
  if (running_ && running_->stream.has_input()) running_.reset();
  if (!running_) {
    running_ = std::make_shared<Running>(LocalTransport().open({begin_.wanted.scaler}));
  }
  return running_;
}

void Scaler::ask(const ScalerTask& task, const std::function<void(const ScalerOutcome&)>& hear) {
  const std::shared_ptr<Running> scaler = running();
  const bool fresh = !std::exchange(scaler->told, true);
  const auto next = [&] {
    const auto message = scaler->stream.read(kSilence);
    if (!message) throw ended(*scaler->channel);
    return scaler_outcome_from(message->bytes);
  };
  std::optional<Error> failed;
  try {
    if (fresh) scaler->stream.send(FrameKind::text, to_text(begin_));
    scaler->stream.send(FrameKind::text, to_text(task));
    ScalerOutcome outcome = next();
    for (; outcome.machine; outcome = next()) hear(outcome);
    failed = outcome.error;
  } catch (...) {
    drop();
    throw;
  }
  if (!failed) return;
  if (fresh) drop();  // it may not have understood what is wanted
  throw Error(*failed);
}

void Scaler::drop() {
  const std::lock_guard lock(mutex_);
  running_.reset();
}

}  // namespace dtrain::head
