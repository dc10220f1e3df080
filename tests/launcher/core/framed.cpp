#include "launcher/core/framed.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

using namespace dtrain;
using std::chrono::milliseconds;

namespace {

struct Pair {
  UniqueFd a;
  UniqueFd b;
  Pair() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    a.reset(ends[0]);
    b.reset(ends[1]);
  }
};

ErrorCode code_of(FramedStream& stream, milliseconds silence = milliseconds(1000)) {
  try {
    stream.read(silence);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("framed: messages keep their kind, order and bytes, empty and large ones too") {
  Pair pair;
  FramedStream left(pair.a.get(), pair.a.get());
  FramedStream right(pair.b.get(), pair.b.get());
  const std::string large(FramedStream::kLimit, 'x');
  std::thread writer([&] {
    left.send(FrameKind::text, "{}");
    left.send(FrameKind::bytes, "");
    left.send(FrameKind::bytes, large);
    pair.a.reset();
  });
  auto message = right.read();
  REQUIRE(message);
  CHECK(message->kind == FrameKind::text);
  CHECK(message->bytes == "{}");
  message = right.read();
  REQUIRE(message);
  CHECK(message->kind == FrameKind::bytes);
  CHECK(message->bytes.empty());
  message = right.read();
  REQUIRE(message);
  CHECK((message->bytes == large));
  CHECK(!right.read());
  writer.join();
}

TEST_CASE("framed: silence, a torn message, noise and a giant are told apart") {
  Pair pair;
  FramedStream stream(pair.b.get(), pair.b.get());
  CHECK(code_of(stream, milliseconds(1)) == ErrorCode::timeout);
  SUBCASE("torn") {
    write_all(pair.a.get(), std::string("j\0\0\0\5abc", 8));
    pair.a.reset();
    CHECK(code_of(stream) == ErrorCode::unreachable);
  }
  SUBCASE("noise") {
    write_all(pair.a.get(), "Welcome to this machine!\n");
    CHECK(code_of(stream) == ErrorCode::invalid);
  }
  SUBCASE("giant") {
    write_all(pair.a.get(), "b\xff\xff\xff\xff");
    CHECK(code_of(stream) == ErrorCode::invalid);
  }
}
