#include "launcher/wire/client_impl.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include <nlohmann/json.hpp>

#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::wire {

Error unreachable(const std::string& cluster, const std::string& why) {
  return Error(ErrorCode::unreachable, "the head of cluster " + cluster + " " + why)
      .with_hint("dtrain up brings it back; running jobs go on meanwhile");
}

UniqueFd connect_to(const fs::path& path, int& error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = path.string();
  if (text.size() >= sizeof address.sun_path) {
    error = ENAMETOOLONG;
    return {};
  }
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    error = errno;
    return {};
  }
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    error = errno;
    return {};
  }
  error = 0;
  return fd;
}

Socket connect_or_throw(asio::io_context& io, const fs::path& path, const std::string& cluster) {
  int error = 0;
  UniqueFd fd = connect_to(path, error);
  if (!fd) {
    throw unreachable(cluster, "does not answer at " + path.string() + " (" +
                                   std::string(std::strerror(error)) + ")");
  }
  return Socket(io, asio::local::stream_protocol(), fd.release());
}

bool run_until(asio::io_context& io, const bool& done, Monotonic deadline) {
  while (!done) {
    if (io.stopped()) io.restart();
    io.run_one_until(deadline);
    if (!done && std::chrono::steady_clock::now() >= deadline) return false;
  }
  return true;
}

http::request<http::string_body> make_request(http::verb verb, const std::string& target,
                                              const std::string& body) {
  http::request<http::string_body> request(verb, target, 11);
  request.set(http::field::host, "dtrain");
  request.set(http::field::user_agent, "dtrain/" DTRAIN_VERSION);
  request.keep_alive(false);
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  request.prepare_payload();
  return request;
}

void throw_refusal(unsigned status, const std::string& body) {
  std::optional<Error> refusal;
  try {
    refusal = error_from_json(parse_json(body, "the head's answer"));
  } catch (const Error&) {
    refusal = Error(ErrorCode::internal,
                    "the head answered with status " + std::to_string(status) + " and no reason");
  }
  throw *refusal;
}

}  // namespace dtrain::wire
