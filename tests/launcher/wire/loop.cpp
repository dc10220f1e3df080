#include "launcher/wire/loop.hpp"

#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdlib>
#include <thread>

#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

// Runs the loop, measured, and gives what it logged.
std::string run_measured(asio::io_context& context, const char* limit) {
  const testing::TemporaryFolder folder;
  const fs::path file = folder.path() / "log";
  log::open("test", file.string());
  ::setenv(wire::kHandlerLimit, limit, 1);
  wire::run_loop(context);
  ::unsetenv(wire::kHandlerLimit);
  log::open("test", "/dev/null");
  return read_file(file);
}

}  // namespace

TEST_CASE("loop: a handler that blocks is named, one that waits its turn is not") {
  asio::io_context context(1);
  asio::steady_timer timer(context, 120ms);  // the loop waits longer than a handler may take
  bool later = false;
  timer.async_wait([&](boost::system::error_code) { later = true; });
  asio::post(context, [] { wire::handler_does("something short"); });
  asio::post(context, [] {
    wire::handler_does("something long");
    std::this_thread::sleep_for(100ms);
  });
  const std::string said = run_measured(context, "1");
  CHECK(later);
  CHECK(said.find(wire::kHandlerTooLong) != std::string::npos);
  CHECK(said.find("what=\"something long\"") != std::string::npos);
  CHECK(said.find('\n') == said.size() - 1);  // one line
}

TEST_CASE("loop: what waits for a program that it starts is not one that blocks") {
  asio::io_context context(1);
  asio::post(context, [] {
    const StartWait waits;
    std::this_thread::sleep_for(100ms);
  });
  CHECK(run_measured(context, "1").empty());
  context.restart();
  asio::post(context, [] {
    { const StartWait waits; }
    std::this_thread::sleep_for(100ms);
  });
  CHECK_FALSE(run_measured(context, "1").empty());
}

TEST_CASE("loop: nothing is measured unless somebody asks for it") {
  asio::io_context context(1);
  asio::post(context, [] { std::this_thread::sleep_for(100ms); });
  CHECK(run_measured(context, "0").empty());
  context.restart();
  asio::post(context, [] { std::this_thread::sleep_for(100ms); });
  CHECK(!run_measured(context, "1").empty());
}

TEST_CASE("loop: a handler that throws ends it, as with run()") {
  asio::io_context context(1);
  asio::post(context, [] { throw std::runtime_error("no"); });
  ::setenv(wire::kHandlerLimit, "50", 1);
  CHECK_THROWS(wire::run_loop(context));
  ::unsetenv(wire::kHandlerLimit);
}
