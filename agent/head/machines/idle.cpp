#include "agent/head/machines/idle.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

using nlohmann::json;
using std::chrono::milliseconds;

Idle decide_idle(bool busy, std::optional<Monotonic> since, Monotonic now, Monotonic earliest,
                 milliseconds limit) {
  if (busy) return {};
  const Monotonic begun = since.value_or(now);
  return {begun, std::max(begun + limit, earliest)};
}

IdleWatch::IdleWatch(const Clock& clock, std::string boot, const std::optional<std::string>& kept,
                     Hooks hooks)
    : clock_(clock), boot_(std::move(boot)), hooks_(std::move(hooks)), begun_(clock.now()) {
  if (!kept) return;
  try {
    const json text = wire::parse_json(*kept, "it");
    if (wire::get_string(text, "boot") != boot_) return;  // the clock counts from each
    const Monotonic since{milliseconds(wire::get_int(text, "since_ms", 0, INT64_MAX))};
    if (since <= begun_) idle_.since = since;
  } catch (const Error& error) {  // it is counted anew
    log::warn("since when nothing has happened is not known", {{"why", error.what()}});
  }
}

void IdleWatch::want(const std::optional<wire::WantedMachines::DownWhenIdle>& what) {
  what_ = what;
  if (!std::exchange(going_, "").empty()) hooks_.stay();
  set(std::nullopt);
  if (what_) look();
}

void IdleWatch::resume(const std::optional<wire::WantedMachines::DownWhenIdle>& what) {
  what_ = what;
  if (what_) look();
}

void IdleWatch::touch() {
  if (!what_ || !going_.empty()) return;
  set(std::nullopt);
  look();
}

void IdleWatch::set(std::optional<Monotonic> since) {
  if (since == idle_.since) return;
  idle_.since = since;
  std::string text;
  if (since) {
    const auto at = std::chrono::floor<milliseconds>(since->time_since_epoch());
    text = wire::dump(json{{"boot", boot_}, {"since_ms", at.count()}}) + "\n";
  }
  hooks_.write(text);
}

void IdleWatch::look() {
  if (!what_ || !going_.empty()) return;
  const Monotonic now = clock_.now();
  const Monotonic earliest = begun_ + std::min(what_->after, milliseconds(kFirst));
  const Idle next = decide_idle(!hooks_.busy().empty(), idle_.since, now, earliest, what_->after);
  set(next.since);
  idle_.due = next.due;
  if (next.due && *next.due <= now) {
    going_ = "nothing has run for " + human_duration(what_->after) + " (down_when_idle)";
    log::info("the cluster goes down",
              {{"why", going_}, {"head", what_->terminate ? "terminate" : "stop"}});
    // It stays written, so that a head that is started anew on this machine goes on with it.
    return hooks_.go_down(going_, what_->terminate);
  }
  milliseconds pause = std::clamp(what_->after / 10, milliseconds(100), kMostPause);
  if (next.due) pause = std::min(pause, std::chrono::ceil<milliseconds>(*next.due - now));
  hooks_.timer(pause, [this] { look(); });
}

json IdleWatch::view() const {
  if (!what_) return {};
  const auto shown = [&](const std::optional<Monotonic>& time) {
    if (!time) return json();
    return json(
        rfc3339(clock_.wall() + std::chrono::duration_cast<milliseconds>(*time - clock_.now())));
  };
  const std::string busy = hooks_.busy();
  return {{"after_ms", what_->after.count()},
          {"busy", busy.empty() ? json() : json(busy)},
          {"head", what_->terminate ? "terminate" : "stop"},
          {"since", shown(idle_.since)},
          {"at", idle_.since ? shown(idle_.due) : json()},
          {"going", going_.empty() ? json() : json(going_)}};
}

}  // namespace dtrain::head
