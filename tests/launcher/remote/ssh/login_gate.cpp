#include "launcher/remote/ssh/login_gate.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/remote/ssh/options.hpp"

using namespace dtrain;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

steady_clock::time_point in(milliseconds time) {
  return steady_clock::now() + time;
}

}  // namespace

TEST_CASE("gate: a server's window, and the bound of all") {
  LoginGate gate({2, 8, 3});
  auto a = std::make_optional(gate.enter("a", in(milliseconds(10))));
  const auto b = gate.enter("a", in(milliseconds(10)));
  CHECK_THROWS_AS(gate.enter("a", in(milliseconds(10))), Error);
  const auto c = gate.enter("b", in(milliseconds(10)));
  CHECK_THROWS_AS(gate.enter("b", in(milliseconds(10))), Error);
  auto waiting = std::async(std::launch::async, [&] {
    gate.enter("a", in(std::chrono::seconds(20)));
    return true;
  });
  a.reset();
  CHECK(waiting.get());
}

TEST_CASE("gate: halves once for drops that come together, and grows again") {
  LoginGate gate({8, 64, 64});
  {
    std::vector<LoginGate::Pass> passes;
    for (int i = 0; i < 8; ++i) passes.push_back(gate.enter("a", in(milliseconds(10))));
    for (auto& pass : passes) pass.dropped();
  }
  CHECK(gate.window("a") == 4);
  CHECK(gate.window("b") == 8);
  for (int i = 0; i < 5; ++i) gate.enter("a", in(milliseconds(10))).passed();
  CHECK(gate.window("a") > 5);
  CHECK(gate.window("a") < 6);
}

TEST_CASE("gate: a stop ends the wait") {
  LoginGate gate({1, 1, 1});
  const auto pass = gate.enter("a", in(milliseconds(10)));
  std::stop_source stop;
  auto waiting = std::async(std::launch::async, [&]() -> ErrorCode {
    try {
      gate.enter("a", in(std::chrono::seconds(30)), stop.get_token());
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  });
  stop.request_stop();
  CHECK(waiting.get() == ErrorCode::failed);
}

TEST_CASE("shared: one person is asked one thing at a time") {
  class Counting final : public Prompter {
   public:
    std::optional<std::string> ask(const std::string&, bool, const std::stop_token&) override {
      CHECK(++inside == 1);
      std::this_thread::yield();
      --inside;
      return "x";
    }
    bool confirm(const std::string& text, const std::stop_token& stop) override {
      return ask(text, true, stop).has_value();
    }
    std::atomic<int> inside{0};
  };
  SshShared shared(std::make_shared<Counting>());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      milliseconds waited{0};
      for (int n = 0; n < 50; ++n) shared.ask("?", false, {}, waited);
    });
  }
  for (auto& thread : threads) thread.join();
  SshShared alone;
  milliseconds waited{0};
  CHECK_FALSE(alone.ask("?", false, {}, waited));
  CHECK_FALSE(alone.confirm("?", {}, waited));
}
