#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain::head {

// Since when nothing has happened, and when the cluster is to go down for that.
struct Idle {
  std::optional<Monotonic> since;  // absent: something happens
  std::optional<Monotonic> due;
};

// Pure. `since` as before; not before `earliest`, so that whoever has just started this head has
// time to say what is wanted.
Idle decide_idle(bool busy, std::optional<Monotonic> since, Monotonic now, Monotonic earliest,
                 std::chrono::milliseconds limit);

// Brings the whole cluster down once nothing has happened for long: no job is queued or runs, and
// no session is open. What it counts from is kept in a file, so that a head that is started anew on
// the same boot goes on counting. All on the engine's thread.
class IdleWatch {
 public:
  struct Hooks {
    std::function<void(std::chrono::milliseconds, std::function<void()>)> timer;
    std::function<std::string()> busy;                   // what happens; empty: nothing
    std::function<void(const std::string& text)> write;  // the file; empty: there is to be none
    std::function<void(const std::string& why, bool terminate)> go_down;
    std::function<void()> stay;  // what was to go down stays
  };
  // `kept`: what the file had.
  IdleWatch(const Clock& clock, std::string boot, const std::optional<std::string>& kept,
            Hooks hooks);

  // An `up` has said what is wanted: counted anew, and what goes down stays.
  void want(const std::optional<wire::WantedMachines::DownWhenIdle>& what);
  // The same from before, of a head that is started anew.
  void resume(const std::optional<wire::WantedMachines::DownWhenIdle>& what);
  // Something has happened, and is over.
  void touch();
  // {"after_ms", "head", "since", "at", "going", "busy"} or null
  nlohmann::json view() const;

  static constexpr std::chrono::milliseconds kMostPause{15000};  // between two looks
  // For an `up` that has started this head to say what is wanted, where the limit is longer.
  static constexpr std::chrono::minutes kFirst{2};

 private:
  void look();
  void set(std::optional<Monotonic> since);

  const Clock& clock_;
  const std::string boot_;
  Hooks hooks_;
  const Monotonic begun_;
  std::optional<wire::WantedMachines::DownWhenIdle> what_;
  Idle idle_;
  std::string going_;  // why; empty: it stays
};

}  // namespace dtrain::head
