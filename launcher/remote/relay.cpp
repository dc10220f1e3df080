#include "launcher/remote/relay.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/bootstrap.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kSendPiece = std::size_t{256} << 10;
constexpr std::size_t kLongestLine = 4096;

template <typename Address>
std::string hex_of(const Address& address) {
  return to_hex({reinterpret_cast<const unsigned char*>(&address), sizeof(Address)});
}

}  // namespace

std::optional<std::string> relay_address(const std::string& numeric, int port, bool loopback) {
  sockaddr_in v4{};
  if (::inet_pton(AF_INET, numeric.c_str(), &v4.sin_addr) == 1) {
    const std::uint32_t number = ntohl(v4.sin_addr.s_addr);
    if (number == 0 || (number >> 24 == 127 && !loopback)) return std::nullopt;
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    return hex_of(v4);
  }
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET6, numeric.c_str(), &v6.sin6_addr) != 1) return std::nullopt;
  if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ||
      (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) && !loopback)) {
    return std::nullopt;
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<std::uint16_t>(port));
  return hex_of(v6);
}

void send_all(Channel& channel, std::string_view content, std::chrono::milliseconds silence) {
  while (!content.empty()) {
    pollfd waiting{channel.fd(), POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(silence.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) throw errno_error("cannot wait for the machine", errno);
    if (ready == 0) {
      throw Error(ErrorCode::timeout,
                  "the machine took nothing of what is sent for " + human_duration(silence));
    }
    const ssize_t sent = ::send(channel.fd(), content.data(), std::min(kSendPiece, content.size()),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      content.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      throw ended_early(channel, "what was sent could not be put there");
    }
  }
}

std::string read_line(Channel& channel, std::chrono::milliseconds silence) {
  std::string line;
  while (line.size() < kLongestLine) {
    pollfd waiting{channel.fd(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(silence.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) throw errno_error("cannot wait for the machine", errno);
    if (ready == 0) {
      throw Error(ErrorCode::timeout, "the machine said nothing for " + human_duration(silence) +
                                          " about what it was sent");
    }
    char byte = 0;
    const ssize_t got = ::recv(channel.fd(), &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) throw ended_early(channel, "what was sent could not be put there");
    if (byte == '\n') return line;
    line += byte;
  }
  throw Error(ErrorCode::invalid, "the machine says what nobody asked for");
}

bool feed_relay(Channel& channel, Spread::Seat& seat, const RelayedFile& file,
                const std::string& address, const std::string& gone,
                std::chrono::milliseconds silence, const std::function<void(std::size_t)>& watch) {
  const bool loopback = seat.limits().loopback;
  const std::string own = relay_address(address, 0, loopback).value_or("-");
  send_all(channel,
           std::to_string(file.content.size()) + " " + file.sha256 + " " + seat.token() + " " +
               std::to_string(seat.limits().readers) + " " + own + "\n",
           silence);
  std::size_t offset = 0;
  std::size_t there = 0;  // as it said last
  std::optional<Spread::Peer> peer;
  bool is_asked = false;
  // What it says of itself is a number of its, and no more is believed than that.
  const auto number = [&](const std::string& word) {
    return std::min<std::size_t>(std::strtoull(word.c_str(), nullptr, 10), file.content.size());
  };
  while (true) {
    if (is_asked) {
      peer = seat.source();
      if (peer) {
        send_all(channel,
                 "peer " + peer->address + " " + peer->token + " " +
                     std::to_string(peer->silence.count()) + "\n",
                 silence);
      } else {
        send_all(channel, "here\n", silence);
        send_all(channel, file.content.substr(offset), silence);
      }
    }
    while (true) {
      const std::string line = read_line(channel, silence);
      if (line == gone) {
        seat.failed("its relay ended", SpreadLoss::unmet);
        seat.announce(std::nullopt);
        return false;
      }
      const std::size_t space = line.find(' ');
      const std::string word = line.substr(0, space);
      const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
      if (word == "at") {
        const std::size_t now = number(rest);
        if (now > there) seat.got_more();
        there = now;
        if (watch) watch(now);
      }
      if (word == "whole") {
        seat.got_it_whole();
        return true;
      }
      if (word == "port") {
        const int port = std::atoi(rest.c_str());
        seat.announce(port > 0 && port < 65536 ? relay_address(address, port, loopback)
                                               : std::nullopt);
        is_asked = true;
        break;
      }
      if (word == "lost" || word == "silent") {
        const std::size_t now = number(rest);
        const std::size_t space_before = rest.find(' ');
        const std::string why = space_before == std::string::npos
                                    ? "it said nothing"
                                    : printable(rest.substr(space_before + 1), false);
        const SpreadLoss begun = word == "silent" ? SpreadLoss::silent : SpreadLoss::ended;
        seat.failed(why, now > offset ? begun : SpreadLoss::unmet);
        if (!peer) throw Error(ErrorCode::failed, "what was sent could not be put there: " + why);
        offset = now;
        break;
      }
    }
  }
}

}  // namespace dtrain
