#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "agent/session/session.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using nlohmann::json;

namespace {

// A session in a child process, with operations that main would give it.
class ChildSession {
 public:
  ChildSession() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    ours_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::setenv("HOME", home_.path().c_str(), 1);
      ::dup2(theirs.get(), STDIN_FILENO);
      ::dup2(theirs.get(), STDOUT_FILENO);
      ours_.reset();
      session::SessionOptions options;
      options.program = "/opt/dtrain-agent";
      options.streams["twice"] = [](const session::NodePlace& place, const json& request,
                                    FramedStream& stream, const wire::HostFacts&) {
        const auto message = stream.read();
        // To stdout, which must not get in between the frames.
        [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, "noise", 5);
        if (request.contains("fail")) throw Error(ErrorCode::failed, "it was asked to");
        stream.send(FrameKind::bytes, place.node.str() + ":" + message->bytes + message->bytes);
      };
      int code = 1;
      try {
        code = session::session_main(options);
      } catch (const std::exception&) {
        code = 2;
      }
      ::_exit(code);
    }
    stream_.emplace(ours_.get(), ours_.get());
  }
  ~ChildSession() { end(); }

  json ask(const json& request) {
    stream_->send(FrameKind::text, wire::dump(request));
    return json::parse(stream_->read()->bytes);
  }
  FramedStream& stream() { return *stream_; }
  int end() {
    if (pid_ == 0) return code_;
    ours_.reset();
    ::waitpid(pid_, &code_, 0);
    pid_ = 0;
    return code_;
  }

 private:
  TemporaryFolder home_;
  UniqueFd ours_;
  pid_t pid_ = 0;
  int code_ = 0;
  std::optional<FramedStream> stream_;
};

}  // namespace

TEST_CASE("streams: an operation of its own frames, between requests") {
  ChildSession session;
  const json hello = json::parse(session.stream().read()->bytes);
  CHECK(hello["features"] == json::array({"twice"}));
  CHECK(session.ask({{"op", "twice"}})["error"]["code"] == "conflict");  // no node is open
  wire::OpenNode open;
  open.cluster = ClusterId("lab-abcdef");
  open.node = NodeId("node-0");
  CHECK(session.ask(wire::to_json(open)).contains("ok"));
  for (int i = 0; i < 2; ++i) {
    CHECK(session.ask({{"op", "twice"}}).contains("ok"));
    session.stream().send(FrameKind::bytes, "ab");
    CHECK(session.stream().read()->bytes == "node-0:abab");
  }
  // One that failed has said so in its own words; the session goes on.
  CHECK(session.ask({{"op", "twice"}, {"fail", true}}).contains("ok"));
  session.stream().send(FrameKind::bytes, "ab");
  CHECK(session.ask({{"op", "no such"}})["error"]["code"] == "invalid");
  CHECK(session.ask(wire::to_json(wire::Survey{})).contains("ok"));
  CHECK(session.end() == 0);
}

TEST_CASE("streams: bytes that nobody announced end the session") {
  ChildSession session;
  session.stream().read();
  session.stream().send(FrameKind::bytes, "x");
  CHECK_FALSE(session.stream().read());
  CHECK(session.end() != 0);
}
