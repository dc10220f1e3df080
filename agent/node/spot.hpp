#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "agent/node/metadata.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/paths.hpp"

// AWS takes a spot instance back when it likes, and tells it two minutes before.
namespace dtrain::node {

struct SpotNotice {
  std::string action;  // "terminate", "stop", "hibernate"
  WallTime time;       // when

  // "its spot instance is taken back at 08:22:00Z (terminate)"
  std::string reason() const;
  // From `now` until a little before it is over. Never more than AWS gives, whatever the clock here
  // says, and enough to tell the head, when it is late.
  std::chrono::milliseconds left(WallTime now) const;
};

// latest/meta-data/spot/instance-action. Throws Error(invalid) for what is none.
SpotNotice read_spot_notice(const std::string& body);

// Asks whether there is a notice. On the executor's thread.
class SpotWatch {
 public:
  struct Options {
    MetadataOptions metadata = metadata_options();
    std::chrono::milliseconds every{5000};
    // As long as nobody answers whether it is a spot instance, ever less often, down to this.
    std::chrono::milliseconds seldom{300000};
  };
  // `root`: what is found out is kept there for the agent after this one.
  SpotWatch(boost::asio::any_io_executor executor, paths::NodeRoot root, Options options,
            std::function<void(const SpotNotice&)> noticed);

  // This machine is an instance of EC2: if it is a spot instance, it is asked again and again, and
  // the first notice is given to `noticed`, once. Again it changes nothing.
  void begin();

  // Of one that was found to be a spot instance before, by this agent or another: the notice that
  // there is now. Absent too when nobody answers.
  boost::asio::awaitable<std::optional<SpotNotice>> standing();
  // The wait before that is asked again.
  boost::asio::awaitable<void> pause();

 private:
  boost::asio::awaitable<void> run();
  boost::asio::awaitable<bool> find_out();
  boost::asio::awaitable<void> wait(std::chrono::milliseconds time);
  void keep(bool is_spot);
  void said(const std::string& trouble);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  Options options_;
  Metadata metadata_;
  boost::asio::steady_timer timer_;
  std::function<void(const SpotNotice&)> noticed_;
  bool begun_ = false;
  bool is_spot_ = false;  // as found out by this agent
  std::string trouble_;   // the last one, which is said once
};

}  // namespace dtrain::node
