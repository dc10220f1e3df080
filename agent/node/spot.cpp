#include "agent/node/spot.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <exception>
#include <fstream>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds kAhead = 2min;  // that AWS tells it
constexpr std::chrono::milliseconds kMargin = 5s;
constexpr std::chrono::milliseconds kLeast = 5s;
constexpr const char* kLifeCycle = "latest/meta-data/instance-life-cycle";
constexpr const char* kAction = "latest/meta-data/spot/instance-action";

}  // namespace

std::string SpotNotice::reason() const {
  return "its spot instance is taken back at " + time_of_day(time) + " (" + action + ")";
}

std::chrono::milliseconds SpotNotice::left(WallTime now) const {
  const auto left = std::chrono::floor<std::chrono::milliseconds>(time - now) - kMargin;
  return std::clamp(left, kLeast, kAhead - kMargin);
}

SpotNotice read_spot_notice(const std::string& body) {
  const nlohmann::json json = wire::parse_json(body, "the spot instance's action");
  SpotNotice notice;
  notice.action = printable(wire::get_string(json, "action"), false);
  std::string time = wire::get_string(json, "time");  // 2017-09-18T08:22:00Z
  if (notice.action.empty()) throw Error(ErrorCode::invalid, "\"action\" is empty");
  if (time.ends_with('Z') && time.find('.') == std::string::npos) {
    time.insert(time.size() - 1, ".000");
  }
  notice.time = parse_rfc3339(time);
  return notice;
}

SpotWatch::SpotWatch(asio::any_io_executor executor, paths::NodeRoot root, Options options,
                     std::function<void(const SpotNotice&)> noticed)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      options_(std::move(options)),
      metadata_(executor_, options_.metadata),
      timer_(executor_),
      noticed_(std::move(noticed)) {}

void SpotWatch::begin() {
  if (std::exchange(begun_, true)) return;
  asio::co_spawn(
      executor_, [this] { return run(); },
      [](const std::exception_ptr& failed) {
        if (failed) std::rethrow_exception(failed);
      });
}

asio::awaitable<void> SpotWatch::run() {
  if (!co_await find_out()) co_return;
  while (true) {
    if (const auto notice = co_await standing()) {
      noticed_(*notice);
      co_return;
    }
    co_await pause();
  }
}

// Whether it is a spot instance, as which an instance is born.
asio::awaitable<bool> SpotWatch::find_out() {
  for (auto pause = options_.every;; pause = std::min(pause * 2, options_.seldom)) {
    try {
      const Metadata::Answer answer = co_await metadata_.get(kLifeCycle);
      const bool is_spot = answer.status == Metadata::kOk && trimmed(answer.body) == "spot";
      if (answer.status == Metadata::kOk || answer.status == Metadata::kNotFound) {
        keep(is_spot);
        co_return is_spot;
      }
      said(std::string(kLifeCycle) + ": status " + std::to_string(answer.status));
    } catch (const std::exception& error) {
      said(error.what());
    }
    co_await wait(pause);
  }
}

void SpotWatch::keep(bool is_spot) {
  is_spot_ = is_spot;
  log::info(is_spot ? "a spot instance: it is asked whether AWS takes it back"
                    : "no spot instance");
  try {
    if (is_spot) {  // it need not outlive the machine, and this thread waits for no disk
      if (!std::ofstream(root_.spot())) throw errno_error("cannot make it", errno);
    } else {
      fs::remove(root_.spot());
    }
  } catch (const std::exception& error) {
    log::warn("the agent after this one will not know", {{"why", error.what()}});
  }
}

asio::awaitable<std::optional<SpotNotice>> SpotWatch::standing() {
  try {
    if (!is_spot_ && !fs::exists(root_.spot())) co_return std::nullopt;
    const Metadata::Answer answer = co_await metadata_.get(kAction);
    if (answer.status == Metadata::kOk) co_return read_spot_notice(answer.body);
    if (answer.status != Metadata::kNotFound) {
      throw Error(ErrorCode::failed,
                  std::string(kAction) + ": status " + std::to_string(answer.status));
    }
    trouble_.clear();
  } catch (const std::exception& error) {
    said(error.what());
  }
  co_return std::nullopt;
}

asio::awaitable<void> SpotWatch::pause() {
  co_await wait(options_.every);
}

asio::awaitable<void> SpotWatch::wait(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  boost::system::error_code ignored;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

void SpotWatch::said(const std::string& trouble) {
  if (std::exchange(trouble_, trouble) != trouble) {
    log::warn("not known whether AWS takes this instance back", {{"why", trouble}});
  }
}

}  // namespace dtrain::node
