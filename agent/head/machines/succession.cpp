#include "agent/head/machines/succession.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/remote/local.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

Succession::Succession(std::string cluster_name, ClusterId cluster, std::string job)
    : cluster_name_(std::move(cluster_name)),
      cluster_(std::move(cluster)),
      job_(std::move(job)),
      thread_([this] { serve(); }) {}

Succession::~Succession() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Succession::want(const wire::WantedMachines& wanted) {
  {
    const std::lock_guard lock(mutex_);
    // What asked for it is what takes it back.
    if (!wanted.head && wanted_) {
      wanted_->head.reset();
    } else {
      wanted_ = wanted;
    }
    is_news_ = true;
  }
  wake_.notify_all();
}

nlohmann::json Succession::view() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json view{{"job", job_}, {"next", nullptr}, {"error", error_}};
  if (next_) view["next"] = {{"job", next_->job}, {"reason", next_->reason}};
  return view;
}

void Succession::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto pause = error_.is_null() ? kLook : kRetry;
    wake_.wait_for(lock, pause, [&] { return ending_ || is_news_; });
    if (ending_) return;
    is_news_ = false;
    if (!wanted_) continue;
    const wire::WantedMachines wanted = *wanted_;
    lock.unlock();
    std::optional<Next> next;
    nlohmann::json error;
    try {
      next = look(wanted);
    } catch (const Error& failed) {
      log::warn("no successor could be asked for", {{"why", failed.what()}});
      error = wire::error_to_json(failed)["error"];
    }
    lock.lock();
    next_ = std::move(next);
    error_ = std::move(error);
  }
}

std::optional<Succession::Next> Succession::look(const wire::WantedMachines& wanted) const {
  slurm::HeadChain chain(slurm::Client(std::make_shared<LocalTransport>(), wanted.environment),
                         cluster_name_);
  std::vector<slurm::HeadJob> waiting = chain.list();
  std::erase_if(waiting, [&](const slurm::HeadJob& each) {
    return !each.waits() || each.cluster != cluster_ || each.job.id == job_;
  });
  if (!wanted.head) {
    chain.cancel(waiting);
    return std::nullopt;
  }
  // One is enough, asked for as is wanted now. The new one comes first, so that there is always
  // one.
  const slurm::HeadChain::Wanted asked{wanted.head->options, wanted.head->script};
  const std::string launch = slurm::HeadChain::launch_of(asked);
  const auto fits = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const slurm::HeadJob& each) { return each.launch == launch; });
  std::optional<Next> next;
  if (fits != waiting.end()) {
    next = Next{fits->job.id, fits->standing.reason};
    waiting.erase(fits);
  } else {
    next = Next{chain.ask(asked, job_), "waits"};
    log::info("a successor is asked for", {{"job", next->job}, {"after", job_}});
  }
  chain.cancel(waiting);
  return next;
}

}  // namespace dtrain::head
