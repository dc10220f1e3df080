#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>

#include "agent/node/checks.hpp"
#include "agent/node/collector.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// Looks for what is wrong on this node when the head asks, and puts right what it can when it says
// so. On a thread of its own, one ask after the other. All calls on the executor's thread.
namespace dtrain::node {

class Doctor {
 public:
  struct Hooks {
    std::function<KnownHere()> known;
    std::function<Collector::InUse()> in_use;  // what must stay when content is given back
    std::function<void(const wire::BulkMessage&)> send;
  };
  Doctor(boost::asio::any_io_executor executor, paths::NodeRoot root, Hooks hooks);

  void message(const wire::BulkMessage& message);

 private:
  struct Look;
  void judge(const std::shared_ptr<Look>& look);
  void answer(const std::shared_ptr<Look>& look);
  // Runs the first on the thread, then the second here.
  void work(std::function<void()> task, std::function<void()> then);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  Hooks hooks_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace dtrain::node
