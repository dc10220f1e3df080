#include "launcher/wire/client_impl.hpp"

#include <cstring>
#include <optional>

#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/unix_socket.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::wire {

Error unreachable(const std::string& cluster, const std::string& why) {
  return Error(ErrorCode::unreachable, "the head of cluster " + cluster + " " + why)
      .with_hint("dtrain up brings it back; running jobs go on meanwhile");
}

Socket connect_or_throw(asio::io_context& io, const fs::path& path, const std::string& cluster) {
  int error = 0;
  UniqueFd fd = dial_unix(path, &error);
  if (!fd) {
    throw unreachable(cluster, "does not answer at " + path.string() + " (" +
                                   std::string(std::strerror(error)) + ")");
  }
  return Socket(io, asio::local::stream_protocol(), fd.release());
}

bool run_until(asio::io_context& io, const bool& done, const Patience& patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience.limit;
  const std::stop_callback wake(patience.stop, [&io] { asio::post(io, [] {}); });
  while (!done) {
    if (io.stopped()) io.restart();
    io.run_one_until(deadline);
    if (done) break;
    if (patience.stop.stop_requested() || std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
  }
  return true;
}

Error given_up(const std::string& cluster, const Patience& patience) {
  if (patience.stop.stop_requested()) {
    return {ErrorCode::timeout, "the head of cluster " + cluster + " was not waited for"};
  }
  return {ErrorCode::timeout, "the head of cluster " + cluster + " took longer than " +
                                  std::to_string(patience.limit.count() / 1000) + " s to answer"};
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
