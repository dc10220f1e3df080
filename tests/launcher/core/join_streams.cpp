#include "launcher/core/join_streams.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "launcher/core/pipe.hpp"

using namespace dtrain;

namespace {

constexpr std::size_t kMuch = 10'000'000;

// Text in which every place differs from its neighbours.
std::string much(char first) {
  std::string text(kMuch, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(first + i % 251 + i / 251 % 7);
  }
  return text;
}

void put(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(fd, text.data(), text.size());
    REQUIRE(done > 0);
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

// To the end, or `size` bytes.
std::string take(int fd, std::size_t size = std::string::npos) {
  std::string text;
  std::array<char, 65536> buffer;
  while (text.size() < size) {
    const ssize_t got = ::read(fd, buffer.data(), std::min(buffer.size(), size - text.size()));
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// Two pairs of sockets whose inner ends are joined, on a thread.
struct Joined {
  Joined() {
    joined = std::async(std::launch::async, [this] {
      const bool whole = join_streams(near[1].get(), far[1].get(), stop[0].get());
      near[1].reset();
      far[1].reset();
      return whole;
    });
  }
  ~Joined() { stop[1].reset(); }

  std::array<UniqueFd, 2> near = make_socket_pair();
  std::array<UniqueFd, 2> far = make_socket_pair();
  std::array<UniqueFd, 2> stop = make_pipe();
  std::future<bool> joined;
};

}  // namespace

TEST_CASE("ten megabytes go both ways at once, and each side's end is passed on") {
  Joined streams;
  const std::string there = much('a');
  const std::string back = much('k');
  std::thread near_writes([&] {
    put(streams.near[0].get(), there);
    ::shutdown(streams.near[0].get(), SHUT_WR);
  });
  auto far_reads = std::async(std::launch::async, [&] { return take(streams.far[0].get()); });
  std::thread far_writes([&] { put(streams.far[0].get(), back); });
  CHECK(take(streams.near[0].get(), kMuch) == back);
  CHECK(far_reads.get() == there);  // to its end: near's was told
  near_writes.join();
  far_writes.join();
  // Far may still speak, and its end is the end.
  put(streams.far[0].get(), "last");
  ::shutdown(streams.far[0].get(), SHUT_WR);
  CHECK(take(streams.near[0].get()) == "last");
  CHECK(streams.joined.get());
}

TEST_CASE("a reader that takes nothing holds up its own direction alone") {
  Joined streams;
  const std::string there = much('a');
  std::thread near_writes([&] { put(streams.near[0].get(), there); });
  // Nobody reads that: what was read of it waits, and what is not read makes the writer wait.
  put(streams.far[0].get(), "answer");
  CHECK(take(streams.near[0].get(), 6) == "answer");
  const std::string back = much('k');
  std::thread far_writes([&] { put(streams.far[0].get(), back); });
  CHECK(take(streams.near[0].get(), kMuch) == back);
  far_writes.join();
  CHECK(take(streams.far[0].get(), kMuch) == there);
  near_writes.join();
  ::shutdown(streams.far[0].get(), SHUT_WR);
  CHECK(streams.joined.get());
}

TEST_CASE("what far has said before its end reaches a slow reader") {
  Joined streams;
  const std::string back = much('k');
  std::thread far_writes([&] {
    put(streams.far[0].get(), back);
    streams.far[0].reset();
  });
  CHECK(take(streams.near[0].get(), 1) == back.substr(0, 1));
  CHECK(take(streams.near[0].get()) == back.substr(1));
  far_writes.join();
  CHECK(streams.joined.get());
}

TEST_CASE("what far has said before it went is brought to who still speaks") {
  auto near = make_socket_pair();
  auto far = make_socket_pair();
  put(near[0].get(), "a long question");
  put(far[0].get(), "no");
  far[0].reset();
  CHECK(join_streams(near[1].get(), far[1].get()));
  near[1].reset();
  CHECK(take(near[0].get()) == "no");
}

TEST_CASE("a side that is gone ends it, and is no clean end") {
  Joined streams;
  streams.near[0].reset();
  CHECK(take(streams.far[0].get()).empty());  // near's end
  put(streams.far[0].get(), "nobody hears it");
  CHECK_FALSE(streams.joined.get());
}

TEST_CASE("a reset connection ends it") {
  Joined streams;
  put(streams.far[0].get(), "unread");
  std::array<char, 1> first;
  REQUIRE(::recv(streams.near[0].get(), first.data(), 1, 0) == 1);
  streams.near[0].reset();  // with what it has not read: a reset
  CHECK_FALSE(streams.joined.get());
}

TEST_CASE("it ends when it is told to") {
  Joined streams;
  streams.stop[1].reset();
  CHECK_FALSE(streams.joined.get());
  CHECK(take(streams.near[0].get()).empty());
}

TEST_CASE("stdio of two pipes, whose reader is slow, does not hold up the other way") {
  ::signal(SIGPIPE, SIG_IGN);
  auto in = make_pipe();
  auto out = make_pipe();
  auto far = make_socket_pair();
  auto joined = std::async(std::launch::async, [&] {
    const bool whole = join_streams({in[0].get(), out[1].get()}, far[1].get());
    out[1].reset();
    far[1].reset();
    return whole;
  });
  const std::string there = much('a');
  const std::string back = much('k');
  std::thread far_writes([&] { put(far[0].get(), back); });
  // Nobody reads what far says meanwhile.
  std::thread near_writes([&] {
    put(in[1].get(), there);
    in[1].reset();
  });
  CHECK(take(far[0].get()) == there);
  near_writes.join();
  CHECK(take(out[0].get(), kMuch) == back);
  far_writes.join();
  far[0].reset();
  CHECK(take(out[0].get()).empty());
  CHECK(joined.get());
}

TEST_CASE("a pipe that nobody reads any more ends it") {
  ::signal(SIGPIPE, SIG_IGN);
  auto in = make_pipe();
  auto out = make_pipe();
  auto far = make_socket_pair();
  auto joined = std::async(std::launch::async, [&] {
    return join_streams({in[0].get(), out[1].get()}, far[1].get());
  });
  out[0].reset();
  put(far[0].get(), "nobody hears it");
  CHECK_FALSE(joined.get());
}
