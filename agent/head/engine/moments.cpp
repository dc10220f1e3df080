#include "agent/head/engine/moments.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kJump{1000};  // below it, it is the clock that is being kept right
constexpr std::int64_t kMostMillis = std::int64_t{1} << 52;
constexpr std::size_t kSpansLimit = 64;  // the oldest are forgotten

milliseconds millis_of(Monotonic time) {
  return std::chrono::duration_cast<milliseconds>(time.time_since_epoch());
}

}  // namespace

Moments::Moments(std::string boot, const std::string& kept) : boot_(std::move(boot)) {
  if (kept.empty()) return;
  try {
    const nlohmann::json json = wire::parse_json(kept, "it");
    if (wire::get_string(json, "boot") != boot_) return;
    for (const nlohmann::json& span : wire::member(json, "spans")) {
      spans_.push_back({milliseconds(wire::get_int(span, "from", 0, kMostMillis)),
                        milliseconds(wire::get_int(span, "ahead", -kMostMillis, kMostMillis))});
    }
  } catch (const Error& error) {
    spans_.clear();
    log::warn("what was known of the clock cannot be read", {{"why", error.what()}});
  }
}

bool Moments::see(Monotonic now, WallTime wall) {
  const milliseconds at = millis_of(now);
  const milliseconds ahead = milliseconds(to_millis(wall)) - at;
  if (!spans_.empty()) {
    const milliseconds by = ahead - spans_.back().ahead;
    if (at < spans_.back().from) {
      spans_.clear();  // another clock: of another namespace
    } else if (std::chrono::abs(by) < kJump) {
      return false;
    } else {
      log::warn("the clock was set", {{"by_ms", std::to_string(by.count())}});
    }
  }
  spans_.push_back({at, ahead});
  if (spans_.size() > kSpansLimit) spans_.erase(spans_.begin());
  return true;
}

Monotonic Moments::of(WallTime time, Monotonic now) const {
  // Of what is in no span, the nearest: a jump is seen a little after it was.
  Monotonic found = now;
  milliseconds nearest = milliseconds::max();
  milliseconds ends = millis_of(now);
  for (auto span = spans_.rbegin(); span != spans_.rend(); ends = span->from, ++span) {
    const milliseconds at = milliseconds(to_millis(time)) - span->ahead;
    const milliseconds off =
        at < span->from ? span->from - at : std::max(at - ends, milliseconds(0));
    if (off >= nearest) continue;
    nearest = off;
    found = std::min(now, Monotonic(at));
  }
  return found;
}

std::string Moments::dump() const {
  nlohmann::json spans = nlohmann::json::array();
  for (const Span& span : spans_) {
    spans.push_back({{"from", span.from.count()}, {"ahead", span.ahead.count()}});
  }
  return wire::dump({{"boot", boot_}, {"spans", std::move(spans)}}) + "\n";
}

}  // namespace dtrain::head
