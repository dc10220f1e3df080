#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/identity.hpp"

// Plain HTTP over a cluster's TLS: one request a connection, which closes behind the answer. For
// machines that are to become nodes, and have nothing of ours yet.
namespace dtrain::wire {

namespace asio = boost::asio;

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  // In place of `body`: the first `size` bytes of a regular file, whose `sha256` goes before them
  // as ETag.
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t size = 0;
  std::string sha256;
};

// Who takes an answer slower than this is hung up on: in all, and between two pieces of a file.
inline constexpr std::chrono::minutes kAnswerLimit{10};
inline constexpr std::chrono::seconds kPieceLimit{30};

struct HttpReply {
  int status = 0;
  std::string body;
};

// Asks by POST with a body of JSON. Dials and throws Error as dial_tls; Error(exhausted) for an
// answer of more than 64 KiB.
asio::awaitable<HttpReply> post_tls(std::string address, std::uint16_t port,
                                    std::shared_ptr<asio::ssl::context> context,
                                    PeerName::Role expected_role, ClusterId cluster,
                                    std::string path, std::string body,
                                    std::chrono::milliseconds deadline);

}  // namespace dtrain::wire
