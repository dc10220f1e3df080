#include "launcher/remote/relay.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/launcher/remote/session_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Content {
  std::string content;
  std::string sha256;
};

Content file_of(std::size_t size) {
  Content file;
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 1664525 + 1013904223;
    file.content += static_cast<char>(state >> 24);
  }
  Sha256 sum;
  sum.add(file.content);
  file.sha256 = sum.hex();
  return file;
}

SpreadLimits on_one_machine() {
  SpreadLimits limits;
  limits.seeds = 1;
  limits.loopback = true;
  return limits;
}

// What the script of bootstrap() does with the relay: it says when it ended in vain.
class RelayHost {
 public:
  explicit RelayHost(const std::shared_ptr<Spread>& spread, const std::string& name = "host")
      : seat(spread->join(name)) {
    write_file_atomic(folder / "relay", relay_program(), 0700);
    channel =
        here_.open({"/bin/sh", "-c",
                    "trap : PIPE; cd \"$1\"; if ./relay file; then read -r x; else echo gone; fi",
                    "sh", folder.path().string()});
  }
  bool feed(const Content& file) {
    return feed_relay(*channel, *seat, {file.content, file.sha256}, "127.0.0.1", "gone",
                      seconds(20));
  }
  std::string file() const { return read_file(folder / "file"); }

  TemporaryFolder folder;
  std::unique_ptr<Spread::Seat> seat;
  std::unique_ptr<Channel> channel;

 private:
  LocalTransport here_;
};

struct Said {
  std::function<void(const std::string&, const std::string&)> sink() {
    return [this](const std::string& host, const std::string& words) {
      const std::lock_guard lock(mutex);
      lines.push_back(host + ": " + words);
    };
  }
  bool has(const std::string& line) {
    const std::lock_guard lock(mutex);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }
  std::mutex mutex;
  std::vector<std::string> lines;
};

UniqueFd listener(int& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(fd.get(), 4) == 0);
  REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

// A host in the spread that gives one reader these bytes and closes, or falls silent until the
// reader has closed.
class Giver {
 public:
  Giver(const std::shared_ptr<Spread>& spread, std::string bytes, bool closes = true)
      : seat_(spread->join("giver")), socket_(listener(port_)) {
    seat_->source();
    seat_->announce(relay_address("127.0.0.1", port_, true));
    thread_ = std::thread([this, closes, content = std::move(bytes)] {
      const UniqueFd reader(::accept(socket_.get(), nullptr, nullptr));
      std::string hello(40, '\0');
      if (::recv(reader.get(), hello.data(), hello.size(), MSG_WAITALL) == 40) {
        write_all(reader.get(), content);
        if (!closes) CHECK(::recv(reader.get(), hello.data(), 1, 0) == 0);
      }
    });
  }
  ~Giver() { thread_.join(); }

 private:
  int port_ = 0;
  std::unique_ptr<Spread::Seat> seat_;
  UniqueFd socket_;
  std::thread thread_;
};

// What a relay answers to `hello`: all that it gives until it closes. Absent: nobody listens.
std::optional<std::string> ask(const std::string& address_hex, const std::string& hello) {
  std::string raw;
  for (std::size_t i = 0; i + 1 < address_hex.size(); i += 2) {
    raw += static_cast<char>(std::stoi(address_hex.substr(i, 2), nullptr, 16));
  }
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(raw.data()),
                static_cast<socklen_t>(raw.size())) != 0) {
    return std::nullopt;
  }
  write_all(fd.get(), hello);
  std::string got;
  std::string piece(65536, '\0');
  for (ssize_t size = 1; size > 0;) {
    size = ::recv(fd.get(), piece.data(), piece.size(), 0);
    if (size > 0) got.append(piece, 0, static_cast<std::size_t>(size));
  }
  return got;
}

const std::string kFromTheStart(8, '\0');

}  // namespace

TEST_CASE("relay: a file goes from here to one host, and from that to the next, while it grows") {
  Said said;
  const auto spread = std::make_shared<Spread>(on_one_machine(), std::stop_token(), said.sink());
  const Content file = file_of((3 << 20) + 17);
  RelayHost first(spread, "first");
  RelayHost second(spread, "second");
  RelayHost third(spread, "third");
  std::vector<std::thread> threads;
  std::atomic<int> whole = 0;
  for (RelayHost* host : {&first, &second, &third}) {
    threads.emplace_back([&whole, &file, host] { whole += host->feed(file) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(whole == 3);
  for (RelayHost* host : {&first, &second, &third}) {
    CHECK(host->file() == file.content);
    // What it was started from is gone already.
    CHECK_FALSE(fs::exists(host->folder / "relay"));
  }
  int from_here = 0;
  for (const std::string& line : said.lines) {
    from_here += line.find("from this machine") != std::string::npos ? 1 : 0;
  }
  CHECK(from_here == 1);
}

TEST_CASE("relay: serves who brings the token, from where they want it, as long as it may") {
  const auto spread =
      std::make_shared<Spread>(on_one_machine(), std::stop_token(), [](auto&&, auto&&) {});
  const Content file = file_of(100000);
  auto host = std::make_unique<RelayHost>(spread);
  REQUIRE(host->feed(file));
  const auto other = spread->join("other");
  const std::optional<Spread::Peer> peer = other->source();
  REQUIRE(peer);
  CHECK(ask(peer->address, peer->token + kFromTheStart) == file.content);
  CHECK(ask(peer->address, peer->token + kFromTheStart.substr(1) + '\x64') ==
        file.content.substr(100));
  CHECK(ask(peer->address, std::string(32, 'a') + kFromTheStart) == "");
  CHECK(ask(peer->address, "GET / HTTP/1.1\r\nHost: nobody.example\r\n\r\n") == "");
  // Beyond its end.
  CHECK(ask(peer->address, peer->token + std::string(8, '\x7f')) == "");

  const fs::path folder = host->folder.path();
  host.reset();  // the session ends
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (ask(peer->address, peer->token + kFromTheStart)) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

TEST_CASE("relay: what has another sum is not taken, and comes from here") {
  Said said;
  const auto spread = std::make_shared<Spread>(on_one_machine(), std::stop_token(), said.sink());
  const Content file = file_of(200000);
  std::string other = file.content;
  other[100] = static_cast<char>(other[100] ^ 1);
  const Giver giver(spread, other);
  RelayHost host(spread);
  CHECK(host.feed(file));
  CHECK(host.file() == file.content);
  CHECK(said.has("host: from giver"));
  CHECK(said.has("host: not from giver: wrong sum"));
  CHECK(said.has("host: from this machine"));
}

TEST_CASE("relay: one whose giver dies goes on from where it was") {
  Said said;
  const auto spread = std::make_shared<Spread>(on_one_machine(), std::stop_token(), said.sink());
  const Content file = file_of(200000);
  const Giver giver(spread, file.content.substr(0, 70000));
  RelayHost host(spread);
  CHECK(host.feed(file));
  CHECK(host.file() == file.content);
  CHECK(said.has("host: not from giver: it ended too early"));
}

TEST_CASE("relay: one that falls silent is left after the time that was told") {
  Said said;
  SpreadLimits limits = on_one_machine();
  limits.silence = std::chrono::milliseconds(300);
  const auto spread = std::make_shared<Spread>(limits, std::stop_token(), said.sink());
  const Content file = file_of(200000);
  const Giver giver(spread, file.content.substr(0, 70000), false);
  RelayHost host(spread);
  CHECK(host.feed(file));
  CHECK(host.file() == file.content);
  CHECK(said.has("host: not from giver: it gave nothing any more"));
  // Nor do others wait for it: they go to the one that has it.
  spread->join("other")->source();
  CHECK(said.has("other: from host"));
}

TEST_CASE("relay: one that fell silent to another is chosen again when it says that it has more") {
  Said said;
  const auto spread = std::make_shared<Spread>(on_one_machine(), std::stop_token(), said.sink());
  const TemporaryFolder folder;
  LocalTransport here;
  const auto channel = here.open({"/bin/sh", "-c",
                                  "cd \"$1\"; read -r x; echo port 9; read -r x; echo at 3;"
                                  "until [ -e more ]; do sleep 0.02; done; echo at 3; echo at 5;"
                                  "until [ -e end ]; do sleep 0.02; done; echo gone",
                                  "sh", folder.path().string()});
  const Content file = file_of(10);
  const auto slow = spread->join("slow");
  std::thread feeding([&] {
    CHECK_FALSE(
        feed_relay(*channel, *slow, {file.content, file.sha256}, "127.0.0.1", "gone", seconds(20)));
  });
  while (!said.has("slow: from this machine")) std::this_thread::sleep_for(milliseconds(5));
  auto first = spread->join("first");
  CHECK(first->source().has_value());
  first->failed("it gave nothing any more", SpreadLoss::silent);
  first.reset();
  const auto second = spread->join("second");
  CHECK_FALSE(second->source().has_value());
  write_file_atomic(folder / "more", "");
  const auto third = spread->join("third");
  CHECK(third->source().has_value());
  write_file_atomic(folder / "end", "");
  feeding.join();
}

TEST_CASE("spread: the further from the file, the longer it waits for a silent peer") {
  SpreadLimits limits = on_one_machine();
  limits.silence = std::chrono::seconds(20);
  limits.silence_each = std::chrono::seconds(1);
  const auto spread = std::make_shared<Spread>(limits, std::stop_token(), [](auto&&, auto&&) {});
  std::vector<std::unique_ptr<Spread::Seat>> seats;
  for (int i = 0; i < 4; ++i) {
    seats.push_back(spread->join("host"));
    seats.back()->announce(std::to_string(i));
    const std::optional<Spread::Peer> peer = seats.back()->source();
    CHECK(peer.has_value() == (i > 0));
    if (peer) CHECK(peer->silence == std::chrono::seconds(19 + i));
  }
}

TEST_CASE("relay: nobody at the other end of an address") {
  Said said;
  const auto spread = std::make_shared<Spread>(on_one_machine(), std::stop_token(), said.sink());
  const Content file = file_of(1000);
  const auto seed = spread->join("seed");
  seed->source();
  int port = 0;
  listener(port).reset();
  seed->announce(relay_address("127.0.0.1", port, true));
  RelayHost host(spread);
  CHECK(host.feed(file));
  CHECK(host.file() == file.content);
  CHECK(said.has("host: not from seed: unreachable: refused"));
}

TEST_CASE("relay: what is not what was sent from here is an error, not tried for ever") {
  const auto spread =
      std::make_shared<Spread>(on_one_machine(), std::stop_token(), [](auto&&, auto&&) {});
  Content file = file_of(1000);
  file.sha256 = std::string(64, '0');
  RelayHost host(spread);
  try {
    host.feed(file);
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.message().find("wrong sum") != std::string::npos);
  }
}

TEST_CASE("relay: leaves no file when who began it goes away") {
  const auto spread =
      std::make_shared<Spread>(on_one_machine(), std::stop_token(), [](auto&&, auto&&) {});
  RelayHost host(spread);
  const Content file = file_of(1000);
  SUBCASE("before a word") {}
  SUBCASE("in the middle") {
    send_all(*host.channel, "1000 " + file.sha256 + " " + host.seat->token() + " 2 -\nhere\n",
             seconds(20));
    send_all(*host.channel, file.content.substr(0, 500), seconds(20));
  }
  ::shutdown(host.channel->fd(), SHUT_WR);
  CHECK(host.channel->wait(seconds(20)).has_value());
  CHECK_FALSE(fs::exists(host.folder / "file"));
  CHECK_FALSE(fs::exists(host.folder / "relay"));
}

TEST_CASE("relay: addresses that mean something to other hosts, and those that do not") {
  CHECK(relay_address("10.0.0.5", 258) == "020001020a000005" + std::string(16, '0'));
  CHECK(relay_address("fd00::5", 1));
  for (const char* none :
       {"127.0.0.1", "::1", "0.0.0.0", "::", "fe80::1", "fe80::1%eth0", "-", "host"}) {
    CAPTURE(none);
    CHECK_FALSE(relay_address(none, 1));
  }
}
