#include "agent/head/machines/idle.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "tests/support/fake_clock.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;

namespace {

using What = wire::WantedMachines::DownWhenIdle;

struct Watched {
  explicit Watched(const std::string& boot = "boot-1") { begin(boot); }

  void begin(const std::string& boot) {
    IdleWatch::Hooks hooks;
    hooks.timer = [this](std::chrono::milliseconds delay, std::function<void()> work) {
      due = {delay, std::move(work)};
    };
    hooks.busy = [this] { return std::string(busy ? "train-abcdef has not ended" : ""); };
    hooks.write = [this](const std::string& text) {
      file = text.empty() ? std::nullopt : std::optional(text);
    };
    hooks.go_down = [this](const std::string& why, bool terminate) {
      downs.push_back(why + (terminate ? ", terminate" : ", stop"));
    };
    hooks.stay = [this] { ++stays; };
    due.reset();
    watch.emplace(clock, boot, file, hooks);
  }
  // Until something is done, or so long.
  void pass(std::chrono::milliseconds time) {
    const Monotonic until = clock.now() + time;
    while (due && downs.empty() && clock.now() + due->first <= until) {
      const auto [delay, work] = std::move(*due);
      due.reset();
      clock.advance(delay);
      work();
    }
    if (downs.empty() && clock.now() < until) clock.advance(until - clock.now());
  }

  testing::FakeClock clock;
  bool busy = false;
  std::optional<std::string> file;
  std::vector<std::string> downs;
  int stays = 0;
  std::optional<std::pair<std::chrono::milliseconds, std::function<void()>>> due;
  std::optional<IdleWatch> watch;
};

}  // namespace

TEST_CASE("idle: the time counts from the end of what happened last") {
  const Monotonic now = Monotonic(1h);
  CHECK_FALSE(decide_idle(true, now, now, now, 1min).due.has_value());
  CHECK(decide_idle(false, {}, now, now, 1min).due == now + 1min);
  CHECK(decide_idle(false, now - 50s, now, now - 1h, 1min).due == now + 10s);
  CHECK(decide_idle(false, now - 2h, now, now + 5s, 1min).due == now + 5s);
}

TEST_CASE("idle: a cluster goes down once, and not while something happens") {
  Watched at;
  at.watch->want(What{10min});
  at.pass(9min);
  at.busy = true;
  at.pass(1h);
  CHECK(at.watch->view()["at"].is_null());
  CHECK(at.watch->view()["busy"] == "train-abcdef has not ended");
  CHECK_FALSE(at.file.has_value());
  at.busy = false;
  at.pass(9min);
  at.watch->touch();  // a session between two looks
  at.pass(9min + 50s);
  CHECK(at.downs.empty());
  CHECK(at.watch->view()["at"].is_string());
  at.pass(1min);
  REQUIRE(at.downs.size() == 1);
  CHECK(at.downs.front().starts_with("nothing has run for 10"));
  CHECK(at.downs.front().ends_with(" (down_when_idle), stop"));
  CHECK_FALSE(at.due.has_value());
  CHECK(at.file.has_value());  // of this boot: a head that is started anew goes on with it
  CHECK(at.watch->view()["going"].is_string());
  // An `up` says that it stays.
  at.downs.clear();
  at.watch->want(What{10min, true});
  CHECK(at.stays == 1);
  at.pass(11min);
  CHECK(at.downs.size() == 1);
  at.watch->want(std::nullopt);
  CHECK(at.watch->view().is_null());
}

TEST_CASE("idle: a head that is started anew goes on counting, on another boot from the start") {
  Watched at;
  at.watch->want(What{10min});
  at.pass(9min);
  REQUIRE(at.file.has_value());
  SUBCASE("the same boot") {
    at.begin("boot-1");
    at.watch->resume(What{10min});
    at.pass(1min + 50s);  // whoever has started it has time to say what is wanted
    CHECK(at.downs.empty());
    at.pass(20s);
    CHECK(at.downs.size() == 1);
  }
  SUBCASE("another boot, or what cannot be read") {
    std::string boot = "boot-2";
    SUBCASE("another boot") {}
    SUBCASE("damaged") {
      boot = "boot-1";
      at.file = "{";
    }
    at.begin(boot);
    at.watch->resume(What{10min});
    at.pass(9min);
    CHECK(at.downs.empty());
    at.pass(2min);
    CHECK(at.downs.size() == 1);
  }
}
