#include "launcher/remote/ssh/key_agent.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>

#include "launcher/core/error.hpp"
#include "launcher/core/no_signals.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/remote/ssh/blob.hpp"

namespace dtrain::ssh {
namespace {

constexpr char kFailure = 5;
constexpr char kRequestIdentities = 11;
constexpr char kIdentities = 12;
constexpr char kSignRequest = 13;
constexpr std::size_t kLongest = std::size_t{256} << 10;
constexpr std::size_t kMostKeys = 1024;

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool send_message(int fd, std::string_view body) {
  std::string message;
  put_text(message, body);
  return send_all(fd, message);
}

bool receive_exactly(int fd, char* to, std::size_t size, int silence_ms) {
  while (size > 0) {
    pollfd waiting{fd, POLLIN, 0};
    if (silence_ms >= 0 && ::poll(&waiting, 1, silence_ms) <= 0) return false;
    const ssize_t got = ::recv(fd, to, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// Without a limit when silence_ms is negative: a person may have to touch a key.
std::optional<std::string> receive_message(int fd, int silence_ms) {
  std::array<char, 4> head{};
  if (!receive_exactly(fd, head.data(), head.size(), silence_ms)) return std::nullopt;
  const auto size = BlobReader({head.data(), head.size()}).number();
  if (!size || *size == 0 || *size > kLongest) return std::nullopt;
  std::string body(*size, '\0');
  if (!receive_exactly(fd, body.data(), body.size(), silence_ms)) return std::nullopt;
  return body;
}

}  // namespace

std::vector<AgentKey> parse_identities(std::string_view answer) {
  std::vector<AgentKey> keys;
  if (answer.empty() || answer.front() != kIdentities) return keys;
  BlobReader reader(answer.substr(1));
  const auto count = reader.number().value_or(0);
  for (std::uint32_t i = 0; i < count && keys.size() < kMostKeys; ++i) {
    const auto blob = reader.text();
    const auto comment = reader.text();
    if (!blob || !comment) break;
    const auto type = BlobReader(*blob).text();
    if (type) keys.push_back({std::string(*type), encode_base64(*blob), std::string(*comment)});
  }
  return keys;
}

std::vector<AgentKey> agent_keys(int agent) {
  if (!send_message(agent, std::string(1, kRequestIdentities))) return {};
  const auto answer = receive_message(agent, 2000);
  return answer ? parse_identities(*answer) : std::vector<AgentKey>{};
}

AgentStandIn::AgentStandIn(UniqueFd agent, std::vector<AgentKey> shown)
    : agent_(std::move(agent)), shown_(std::move(shown)) {
  auto [ours, theirs] = make_socket_pair();
  ours_ = std::move(ours);
  theirs_ = std::move(theirs);
  const NoSignals none;
  thread_ = std::thread([this] { serve(); });
}

AgentStandIn::~AgentStandIn() {
  ::shutdown(ours_.get(), SHUT_RDWR);
  ::shutdown(agent_.get(), SHUT_RDWR);
  thread_.join();
}

void AgentStandIn::serve() {
  const std::string failure(1, kFailure);
  while (const auto request = receive_message(ours_.get(), -1)) {
    std::string answer = failure;
    if (request->front() == kRequestIdentities) {
      answer = std::string(1, kIdentities);
      put_number(answer, static_cast<std::uint32_t>(shown_.size()));
      for (const AgentKey& key : shown_) {
        put_text(answer, decode_base64(key.blob));
        put_text(answer, key.comment);
      }
    } else if (request->front() == kSignRequest) {
      const auto blob = BlobReader(std::string_view(*request).substr(1)).text();
      const std::string wanted = blob ? encode_base64(*blob) : "";
      const bool chosen = std::any_of(shown_.begin(), shown_.end(),
                                      [&](const AgentKey& key) { return key.blob == wanted; });
      if (chosen && send_message(agent_.get(), *request)) {
        if (auto signature = receive_message(agent_.get(), -1)) answer = std::move(*signature);
      }
    }
    if (!send_message(ours_.get(), answer)) return;
  }
}

}  // namespace dtrain::ssh
