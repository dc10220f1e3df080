#include "agent/head/server/api.hpp"

#include "agent/head/server/api_impl.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr auto kDoorCheck = 5s;

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid == ::geteuid()) return true;
  log::warn("refused a connection of another user",
            {{"uid", std::to_string(peer.uid)}, {"pid", std::to_string(peer.pid)}});
  return false;
}

}  // namespace

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::invalid:
      return 400;
    case ErrorCode::denied:
      return 403;
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::conflict:
      return 409;
    case ErrorCode::exhausted:
      return 507;
    case ErrorCode::unreachable:
    case ErrorCode::timeout:
      return 504;
    case ErrorCode::io:
    case ErrorCode::failed:
    case ErrorCode::internal:
      return 500;
  }
  return 500;
}

asio::awaitable<json> answer_of(std::function<void(Engine::Answer)> start) {
  const auto executor = co_await asio::this_coro::executor;
  json answer =
      co_await asio::async_initiate<decltype(asio::use_awaitable), void(std::exception_ptr, json)>(
          [&](auto handler) {
            const auto shared = std::make_shared<decltype(handler)>(std::move(handler));
            const auto finish = [shared, executor](std::exception_ptr failed, json result) {
              asio::post(executor, [shared, failed, result = std::move(result)]() mutable {
                (*shared)(failed, std::move(result));
              });
            };
            try {
              start([finish](json result) { finish(nullptr, std::move(result)); });
            } catch (...) {
              finish(std::current_exception(), {});
            }
          },
          asio::use_awaitable);
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object() &&
      answer["error"].contains("code")) {
    throw wire::error_from_json(answer);
  }
  co_return answer;
}

std::string Api::Request::text() const {
  std::ostringstream text;
  text << http;
  return text.str();
}

Api::Api(asio::io_context& context, fs::path socket, Parts parts, std::function<void()> ended)
    : context_(context),
      socket_path_(std::move(socket)),
      parts_(parts),
      ended_(std::move(ended)),
      acceptor_(context) {
  open_door();
}

void Api::open_door() {
  // In place of one that is there: the root's lock is ours, so it is a dead head's.
  acceptor_.assign(asio::local::stream_protocol(), listen_unix(socket_path_).release());
  socket_file_ = FileOf(socket_path_);
}

asio::awaitable<void> Api::keep_door() {
  asio::steady_timer timer(context_);
  error_code ignored;
  while (acceptor_.is_open()) {
    timer.expires_after(kDoorCheck);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (!socket_file_.is_gone(socket_path_)) continue;
    log::warn("the API's socket was taken away; it is made again");
    acceptor_.close(ignored);
    try {
      make_private_subfolder(socket_path_.parent_path());
      open_door();
    } catch (const Error& error) {
      log::error(error.what());
      ended_();
      co_return;
    }
    asio::co_spawn(context_, accept_loop(), asio::detached);
  }
}

Api::~Api() {
  ::unlink(socket_path_.c_str());
}

void Api::serve() {
  asio::co_spawn(context_, accept_loop(), asio::detached);
  asio::co_spawn(context_, keep_door(), asio::detached);
}

asio::awaitable<void> Api::accept_loop() {
  while (true) {
    error_code failed;
    Socket socket =
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, failed));
    if (failed == asio::error::operation_aborted) co_return;
    if (failed) {
      asio::steady_timer pause(context_, 100ms);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      continue;
    }
    // The one gate: before a byte is read, whatever the route.
    if (!same_user(socket.native_handle())) continue;
    asio::co_spawn(context_, converse(std::move(socket)), asio::detached);
  }
}

asio::awaitable<void> Api::converse(Socket socket) {
  beast::flat_buffer buffer;
  while (true) {
    error_code failed;
    http::request_parser<http::string_body> parser;
    parser.body_limit(kBodyLimit);
    co_await http::async_read(socket, buffer, parser,
                              asio::redirect_error(asio::use_awaitable, failed));
    if (failed) co_return;
    Request request(parser.release());
    Response response;
    std::optional<Error> refusal;
    try {
      wire::handler_does(request.method + " " + request.path);
      const std::string behind = beast::buffers_to_string(buffer.data());
      if (hand_over(socket, request, behind)) co_return;
      response = co_await answer(request);
    } catch (const Error& error) {
      refusal = error;
    } catch (const std::exception& error) {
      refusal = Error(ErrorCode::internal, error.what());
    }
    if (refusal) {
      response.status = status_of(refusal->code());
      response.body = wire::error_to_json(*refusal);
    }
    http::response<http::string_body> message(static_cast<http::status>(response.status),
                                              request.http.version());
    message.set(http::field::content_type, "application/json");
    message.keep_alive(request.http.keep_alive() && !response.last);
    message.body() = response.text() + "\n";
    message.prepare_payload();
    co_await http::async_write(socket, message, asio::redirect_error(asio::use_awaitable, failed));
    if (response.last) {
      socket.close(failed);
      ended_();
      co_return;
    }
    if (failed || !message.keep_alive()) co_return;
  }
}

void Api::serve_stream(Socket socket, const Request& request, const char* what,
                       std::function<asio::awaitable<void>(wire::FrameStreamPtr)> serve) {
  asio::co_spawn(
      context_,
      [](Socket moved, std::string text, const char* kind,
         std::function<asio::awaitable<void>(wire::FrameStreamPtr)> with,
         Sessions::Open) -> asio::awaitable<void> {
        try {
          const wire::FrameStreamPtr stream =
              co_await wire::accept_unix(std::move(moved), std::move(text));
          co_await with(stream);
        } catch (const Error& error) {
          log::debug(std::string(kind) + " ended", {{"reason", error.what()}});
        }
      }(std::move(socket), request.text(), what, std::move(serve), parts_.sessions.enter()),
      asio::detached);
}

bool Api::hand_over(Socket& socket, const Request& request, const std::string& behind) {
  for (const StreamRoute& route : stream_routes()) {
    const auto id = id_in(request.path, route.path);
    if (!id) continue;
    if (!request.is_websocket()) throw Error(ErrorCode::invalid, "this route is a WebSocket");
    route.serve(*this, socket, request, *id);
    return true;
  }
  // /v1/jobs/ID/files, and all that is below it.
  const std::vector<std::string> parts = split(request.path, '/');
  if (request.method != "GET" || parts.size() < 5 || parts[1] != "v1" || parts[2] != "jobs" ||
      parts[4] != "files") {
    return false;
  }
  parts_.files.serve(std::move(socket), request.text(), behind, JobId(parts[3]),
                     parts_.sessions.enter());
  return true;
}

asio::awaitable<Api::Response> Api::answer(Request request) {
  for (const Route& route : routes()) {
    const auto id = id_in(request.path, route.path);
    if (!id || request.method != route.method) continue;
    // Whoever asks for a change is at work; whoever only looks is not.
    const Sessions::Open at_work = request.method == "GET" ? nullptr : parts_.sessions.enter();
    Response response;
    response.last = route.last;
    if (const auto* now = std::get_if<Route::Now>(&route.answer)) {
      response.body = (*now)(*this, request, *id);
    } else if (const auto* later = std::get_if<Route::Later>(&route.answer)) {
      std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
        (*later)(*this, request, *id, std::move(done));
      };
      response.body = co_await answer_of(std::move(start));
    } else {
      response.body = co_await std::get<Route::Steps>(route.answer)(*this, request);
    }
    co_return response;
  }
  throw Error(ErrorCode::not_found, "no such route: " + request.method + " " + request.path);
}

}  // namespace dtrain::head
