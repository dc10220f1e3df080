#include "agent/node/exec.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/patience.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

// The head's end of a bulk connection, without a network: keeps what is sent.
class Recorder final : public wire::FrameStream {
 public:
  asio::awaitable<wire::Frame> read() override {
    throw Error(ErrorCode::unreachable, "nothing to read");
    co_return wire::Frame{};
  }
  void send(wire::Frame frame) override {
    if (!frame.text) {
      (error_stream_ ? err : out) += frame.bytes;
      return;
    }
    const auto message =
        wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a bulk message"));
    if (const auto* output = std::get_if<wire::ExecOutput>(&message)) {
      error_stream_ = output->error_stream;
      in_flight += output->bytes;
      most_in_flight = std::max(most_in_flight, in_flight);
      if (on_output) on_output(*output);
    }
    if (const auto* ended = std::get_if<wire::ExecExit>(&message)) exit = *ended;
  }
  asio::awaitable<void> queue_below(std::size_t) override { co_return; }
  void close() override {}
  void abort() override {}
  bool is_open() const override { return true; }
  std::string local_address() const override { return {}; }
  bool peer_is_here() const override { return true; }

  std::string out;
  std::string err;
  std::optional<wire::ExecExit> exit;
  std::size_t in_flight = 0;
  std::size_t most_in_flight = 0;
  std::function<void(const wire::ExecOutput&)> on_output;

 private:
  bool error_stream_ = false;
};

// Runs one command to its end, as the node agent does.
class Bench {
 public:
  Bench()
      : execs(
            context.get_executor(), [] { return current_environment(); }, random_hex(8)),
        recorder(std::make_shared<Recorder>()),
        children_(context, SIGCHLD) {
    execs.use(recorder);
    wait_for_children();
    recorder->on_output = [this](const wire::ExecOutput& output) {
      asio::post(context, [this, output] {
        recorder->in_flight -= output.bytes;
        execs.message(wire::ExecCredit{output.exec, output.bytes}, {});
      });
    };
  }

  void start(std::vector<std::string> command, bool tty = false) {
    wire::StartExec request;
    request.exec = "x";
    request.command = std::move(command);
    request.tty = tty;
    request.workdir = "/";
    execs.start(request);
  }
  void control(const std::string& kind, const std::string& signal = {}) {
    wire::ExecControl message;
    message.exec = "x";
    message.kind = kind;
    message.signal = signal;
    message.rows = 11;
    message.cols = 22;
    execs.message(message, {});
  }
  void input(const std::string& bytes) { execs.message(wire::ExecInput{"x", bytes.size()}, bytes); }
  bool run_until(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (!condition() && std::chrono::steady_clock::now() < until) context.run_one_for(1s);
    return condition();
  }
  int finish() {
    REQUIRE(run_until([&] { return recorder->exit.has_value(); }));
    return recorder->exit->exit_code.value_or(-1);
  }

  asio::io_context context;
  node::Execs execs;
  std::shared_ptr<Recorder> recorder;

 private:
  void wait_for_children() {
    children_.async_wait([this](boost::system::error_code failed, int) {
      if (failed) return;
      execs.reap();
      wait_for_children();
    });
  }
  asio::signal_set children_;
};

}  // namespace

TEST_CASE("a command's output, errors and code come back") {
  Bench bench;
  bench.start({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"});
  CHECK(bench.finish() == 7);
  CHECK(bench.recorder->out == "out\n");
  CHECK(bench.recorder->err == "err\n");
}

TEST_CASE("what is written to a command reaches it, and its end of input too") {
  Bench bench;
  bench.start({"/bin/cat"});
  bench.input("one ");
  bench.input("two");
  bench.control("eof");
  CHECK(bench.finish() == 0);
  CHECK(bench.recorder->out == "one two");
}

TEST_CASE("no more is on its way than the window") {
  Bench bench;
  bench.start({"/bin/sh", "-c", "head -c 5000000 /dev/zero"});
  CHECK(bench.finish() == 0);
  CHECK(bench.recorder->out.size() == 5000000);
  CHECK(bench.recorder->most_in_flight <= wire::kExecWindow + wire::kBulkFrame);
}

TEST_CASE("a signal reaches the command and what it started") {
  Bench bench;
  bench.start({"/bin/sh", "-c", "echo up; sleep 1000; echo not reached"});
  REQUIRE(bench.run_until([&] { return bench.recorder->out == "up\n"; }));
  bench.control("signal", "TERM");
  CHECK(bench.finish() == 128 + SIGTERM);
}

TEST_CASE("a terminal is one, with the size that was told") {
  Bench bench;
  bench.start({"/bin/sh", "-c", "test -t 0 && read line && stty size"}, true);
  bench.control("resize");
  bench.input("\n");
  CHECK(bench.finish() == 0);
  CHECK(bench.recorder->out.find("11 22") != std::string::npos);
}

TEST_CASE("a program that is not there is an error with its name") {
  Bench bench;
  bench.start({"/no/such/program"});
  REQUIRE(bench.recorder->exit.has_value());
  REQUIRE(bench.recorder->exit->error.has_value());
  CHECK(bench.recorder->exit->error->message().find("/no/such/program") != std::string::npos);
}

TEST_CASE("when the connection goes, the command gets SIGHUP") {
  Bench bench;
  bench.start({"/bin/sh", "-c", "echo up; sleep 1000"});
  REQUIRE(bench.run_until([&] { return bench.recorder->out == "up\n"; }));
  const auto pids = bench.execs.pids();
  REQUIRE(pids.size() == 1);
  bench.execs.use(nullptr);
  CHECK(bench.run_until([&] { return bench.execs.pids().empty(); }));
  CHECK_FALSE(start_time(pids.front()).has_value());
}
