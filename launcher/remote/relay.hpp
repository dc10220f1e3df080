#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/remote/spread.hpp"
#include "launcher/remote/transport.hpp"

// Our end of dtrain-relay (relay/program.cpp), a program of a few KiB that is put on a host before
// the agent: it takes one file and gives it to other hosts' relays while it still grows. It has a
// port of its own, at the address by which the host was reached, for as long as the session lasts
// that started it, and at most a minute without readers; it serves those who bring a token of 128
// bits, a few at a time. What travels between relays is not secret, and each trusts only the
// SHA-256 that came to it by its own SSH.
//
// Lines, of which ours are first:
//   SIZE SHA256 TOKEN READERS ADDRESS   port N        (0: it does not listen; ADDRESS of "-" too)
//   here, and the file from where it is; or
//   peer ADDRESS TOKEN MS               at N          (bytes that it has) every 2 s
//                                       lost N WHY    another order, from there on; or
//                                       silent N WHY  as lost: no byte came for too long; or
//                                       whole         it has ended well, and serves on
// ADDRESS is a struct sockaddr as hex, MS after how long a peer that gives nothing is lost. A
// reader sends its peer's token and the first byte's number, eight bytes, big endian.
namespace dtrain {

// The program.
std::string_view relay_program();

// What is to be brought, and lives elsewhere.
struct RelayedFile {
  std::string_view content;
  std::string sha256;
};

// A socket's address as the relay takes it; absent where it means nothing to other hosts: of
// loopback (unless `loopback`), of one link, or none.
std::optional<std::string> relay_address(const std::string& numeric, int port,
                                         bool loopback = false);

// Speaks with the relay that reads from the channel until it has the file whole (true), or has
// ended without (false): the line `gone` was said then by who started it. `address` is the host's.
// Throws Error(timeout or unreachable) when nothing is said or taken for `silence`, Error(failed)
// when what was sent from here is another file there. `watch` hears how much is there, about every
// 2 s.
bool feed_relay(Channel& channel, Spread::Seat& seat, const RelayedFile& file,
                const std::string& address, const std::string& gone,
                std::chrono::milliseconds silence,
                const std::function<void(std::size_t)>& watch = {});

// All of `content`, to a channel that takes it. Errors as above.
void send_all(Channel& channel, std::string_view content, std::chrono::milliseconds silence);

// The next line of the channel, not a byte more.
std::string read_line(Channel& channel, std::chrono::milliseconds silence);

}  // namespace dtrain
