#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <utility>

namespace dtrain::head {

// Who is at work with the cluster: commands, transfers and requests that are under way. On the
// io_context's thread, but for the end of one.
class Sessions {
 public:
  explicit Sessions(boost::asio::io_context& context) : context_(context) {}

  using Open = std::shared_ptr<void>;
  // Until it is let go of, on any thread.
  Open enter() {
    ++open_;
    return Open(nullptr, [this, &context = context_, guard = std::weak_ptr<int>(alive_)](void*) {
      boost::asio::post(context, [this, guard] {
        if (!guard.lock()) return;
        --open_;
        if (end_) end_();
      });
    });
  }
  int open() const { return open_; }
  void on_end(std::function<void()> end) { end_ = std::move(end); }  // of each

 private:
  boost::asio::io_context& context_;
  int open_ = 0;
  std::function<void()> end_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrain::head
