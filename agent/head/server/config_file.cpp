#include "agent/head/server/config_file.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace dtrain::head {

ConfigFile::ConfigFile(boost::asio::io_context& context, paths::HeadRoot root, HeadConfig config)
    : context_(context), root_(std::move(root)), config_(std::move(config)) {}

void ConfigFile::set_port(int port) {
  if (config_.port == port) return;
  config_.port = port;
  write_head_config(root_, config_);
}

void ConfigFile::change(const std::function<void(HeadConfig&)>& how, Done done) {
  how(config_);
  write([] {}, std::move(done));
}

void ConfigFile::shut_out(const NodeId& node, bool counted, Done done) {
  leaving_.emplace(node, counted);
  // The list last: once its file is gone for good, the node has left.
  write([root = root_, node] { head::shut_out(root, node); },
        [this, node, counted, done = std::move(done)](const std::optional<Error>& failed) {
          leaving_.erase(node);
          if (!failed) {
            if (counted) config_.expected_nodes = std::max(1, config_.expected_nodes - 1);
            done(failed);
            return;
          }
          // The count may be on the disk already.
          write([] {}, [done, failed](const std::optional<Error>&) { done(failed); });
        });
}

bool ConfigFile::is_let_in(const NodeId& node) const {
  return !leaving_.contains(node) && head::is_let_in(root_, node);
}

void ConfigFile::write(std::function<void()> then, Done done) {
  HeadConfig config = config_;
  for (const auto& [node, counted] : leaving_) config.expected_nodes -= counted ? 1 : 0;
  config.expected_nodes = std::max(1, config.expected_nodes);
  work(
      [root = root_, config = std::move(config), then = std::move(then)] {
        write_head_config(root, config);
        then();
      },
      std::move(done));
}

void ConfigFile::work(std::function<void()> task, Done done) {
  worker_.add([task = std::move(task), done = std::move(done), &context = context_,
               guard = std::weak_ptr<int>(alive_)] {
    std::optional<Error> failed;
    try {
      task();
    } catch (const std::exception& error) {
      failed = as_error(error);
    }
    boost::asio::post(context, [done, failed, guard] {
      if (guard.lock()) done(failed);
    });
  });
}

}  // namespace dtrain::head
