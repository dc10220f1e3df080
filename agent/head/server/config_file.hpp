#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "agent/head/setup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/worker.hpp"

namespace dtrain::head {

// head.json and the list of nodes that may come, while the head runs. On the io_context's thread;
// a thread of its own does what waits for the disk, one thing after the other.
class ConfigFile {
 public:
  // Hears on the io_context's thread what failed, once the rest is durable; not when this has ended
  // before.
  using Done = std::function<void(const std::optional<Error>&)>;

  ConfigFile(boost::asio::io_context& context, paths::HeadRoot root, HeadConfig config);

  const paths::HeadRoot& root() const { return root_; }
  const HeadConfig& operator*() const { return config_; }
  const HeadConfig* operator->() const { return &config_; }

  // Before the io_context runs. Throws Error.
  void set_port(int port);
  // To be seen here at once. What could not be written goes with the next change.
  void change(const std::function<void(HeadConfig&)>& how, Done done);

  // Something else of the root that waits for the disk, behind what was begun before.
  void work(std::function<void()> task, Done done);

  // From the call on it is not let in, and the cluster is to have one node less once it has left,
  // where it is `counted`. When `done` hears of an error the node stays: it is let in again, and
  // counted.
  void shut_out(const NodeId& node, bool counted, Done done);
  bool is_let_in(const NodeId& node) const;
  bool is_leaving(const NodeId& node) const { return leaving_.contains(node); }

 private:
  // Those that are leaving are not counted in what is written; `then` is done after it.
  void write(std::function<void()> then, Done done);

  boost::asio::io_context& context_;
  const paths::HeadRoot root_;
  HeadConfig config_;
  std::map<NodeId, bool> leaving_;  // whether still counted in config_
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace dtrain::head
