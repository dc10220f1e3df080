#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// Gives disk back on this node when the head says so: content that no attempt here needs. On a
// thread of its own in idle priority. All calls on the executor's thread.
namespace dtrain::node {

class Collector {
 public:
  // What must stay: trees that are being brought, and attempts whose spec.json names more.
  struct InUse {
    std::set<std::string> trees;
    std::vector<std::pair<JobId, int>> attempts;
  };
  using Send = std::function<void(const wire::BulkMessage&, std::string)>;
  Collector(boost::asio::any_io_executor executor, paths::NodeRoot root,
            std::function<InUse()> in_use, Send send);

  void message(const wire::BulkMessage& message);

 private:
  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  std::function<InUse()> in_use_;
  Send send_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

// Any thread; what goes wrong is in the answer.
wire::Collected collect(const paths::NodeRoot& root, const Collector::InUse& in_use,
                        const wire::CollectAsk& ask);

}  // namespace dtrain::node
