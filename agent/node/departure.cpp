#include "agent/node/departure.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/log.hpp"

namespace dtrain::node {

Departure::Departure(const boost::asio::any_io_executor& executor, NodeId node, Hooks hooks)
    : node_(std::move(node)), hooks_(std::move(hooks)), timer_(executor) {}

std::string Departure::what() const {
  return node_.str() + " leaves the cluster: " + reason_;
}

void Departure::begin(const std::string& reason, std::chrono::milliseconds limit) {
  const auto part = [limit](double of) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(limit * of);
  };
  const auto until = Clock::now() + part(kAll);
  const bool again = under_way();
  if (again && until >= until_) return;
  if (!again) reason_ = reason;
  until_ = until;
  log::warn("told to leave", {{"reason", reason}});
  runs_ = hooks_.running();
  hooks_.redial();
  // First the head: it ends the ranks of other nodes meanwhile.
  look();
  wire::StopRanks stop;
  stop.reason = what();
  if (!again) hooks_.stop(stop);  // by the job's grace, or that of a stop which is under way
  stop.grace = std::chrono::floor<std::chrono::seconds>(part(kRanks));
  hooks_.stop(stop);
}

void Departure::hurry() {
  until_ = std::min(until_, Clock::now() + Clock::duration(kHurried));
  log::warn("told to leave at once");
  wire::StopRanks stop;
  stop.reason = what();
  stop.grace = std::chrono::seconds(0);
  hooks_.stop(stop);
  look();
}

void Departure::look() {
  if (!under_way()) return;
  if (!hooks_.connected()) {
    told_ = over_ = false;
    // The last events have just come: a head that is back is to have them now.
    if (std::exchange(runs_, hooks_.running()) && !runs_) hooks_.redial();
    if (hooks_.unfinished()) {
      no_head_until_ = Clock::time_point::max();
    } else if (no_head_until_ == Clock::time_point::max()) {
      no_head_until_ = Clock::now() + kNoHead;
    }
  } else {
    no_head_until_ = Clock::time_point::max();
    if (!std::exchange(told_, true)) hooks_.tell({reason_, false});
    if (!hooks_.unfinished() && !std::exchange(over_, true)) {
      log::info("all attempts here have ended");
      hooks_.tell({reason_, true});
    }
  }
  arm();
}

void Departure::arm() {
  timer_.expires_at(std::min(until_, no_head_until_));
  timer_.async_wait([this](boost::system::error_code stopped) {
    if (stopped || Clock::now() < std::min(until_, no_head_until_)) return;
    log::error("leaving without having told the head all",
               {{"connected", hooks_.connected() ? "yes" : "no"},
                {"running", hooks_.running() ? "yes" : "no"}});
    hooks_.give_up();
  });
}

}  // namespace dtrain::node
