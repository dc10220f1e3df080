#include "agent/head/server/api.hpp"

#include "agent/head/server/api_impl.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
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
#include <boost/beast/websocket/rfc6455.hpp>
#include <sstream>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
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

constexpr auto kShutdownLimit = 5s;
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

Api::Api(asio::io_context& context, fs::path socket, Parts parts, std::function<void()> ended)
    : context_(context),
      socket_path_(std::move(socket)),
      parts_(parts),
      ended_(std::move(ended)),
      acceptor_(context) {
  open_door();
}

void Api::open_door() {
  // The root's lock is ours, so a socket that is there is a dead head's.
  ::unlink(socket_path_.c_str());
  const mode_t before = ::umask(0177);
  const asio::local::stream_protocol::endpoint endpoint(socket_path_.string());
  error_code failed;
  acceptor_.open(endpoint.protocol());
  acceptor_.bind(endpoint, failed);
  ::umask(before);
  if (!failed) acceptor_.listen(asio::socket_base::max_listen_connections, failed);
  if (failed) {
    throw Error(ErrorCode::io,
                "cannot listen on " + socket_path_.string() + ": " + failed.message());
  }
  struct stat status {};
  if (::stat(socket_path_.c_str(), &status) == 0) inode_ = status.st_ino;
}

asio::awaitable<void> Api::keep_door() {
  asio::steady_timer timer(context_);
  error_code ignored;
  while (acceptor_.is_open()) {
    timer.expires_after(kDoorCheck);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    struct stat status {};
    if (::stat(socket_path_.c_str(), &status) == 0 && status.st_ino == inode_) continue;
    log::warn("the API's socket was taken away; it is made again");
    acceptor_.close(ignored);
    try {
      make_private_folder(socket_path_.parent_path().parent_path());
      make_private_folder(socket_path_.parent_path());
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

bool Api::hand_over(Socket& socket, const Request& request, std::string behind) {
  const std::vector<std::string> parts = split(request.path, '/');
  const auto as_text = [&] {
    std::ostringstream text;
    text << request.http;
    return text.str();
  };
  if (request.path == "/v1/exec") {
    if (!request.is_websocket()) throw Error(ErrorCode::invalid, "this route is a WebSocket");
    asio::co_spawn(
        context_,
        [](ExecHub& execs, Socket moved, std::string text) -> asio::awaitable<void> {
          try {
            const wire::FrameStreamPtr stream =
                co_await wire::accept_unix(std::move(moved), std::move(text));
            co_await execs.serve(stream);
          } catch (const Error& error) {
            log::debug("an exec ended", {{"reason", error.what()}});
          }
        }(parts_.execs, std::move(socket), as_text()),
        asio::detached);
    return true;
  }
  if (request.path == "/v1/content/upload") {
    if (!request.is_websocket()) throw Error(ErrorCode::invalid, "this route is a WebSocket");
    parts_.contents.upload(std::move(socket), as_text());
    return true;
  }
  if (request.path == "/v1/forward") {
    if (!request.is_websocket()) throw Error(ErrorCode::invalid, "this route is a WebSocket");
    auto [node, port] = forward_query(request.query);
    if (node.str().empty()) node = parts_.execs.nodes_of("head").front();
    if (!parts_.nodes.takes_commands(node)) {
      throw Error(ErrorCode::not_found, "node " + node.str() + " is not connected")
          .with_hint("`dtrain status` lists the nodes");
    }
    asio::co_spawn(
        context_,
        [](ExecHub& execs, Socket moved, std::string text, NodeId to,
           int to_port) -> asio::awaitable<void> {
          try {
            const wire::FrameStreamPtr stream =
                co_await wire::accept_unix(std::move(moved), std::move(text));
            co_await execs.forward(stream, to, to_port);
          } catch (const Error& error) {
            log::debug("a forward ended", {{"reason", error.what()}});
          }
        }(parts_.execs, std::move(socket), as_text(), node, port),
        asio::detached);
    return true;
  }
  // /v1/jobs/ID/follow, /v1/jobs/ID/files/PATH
  if (parts.size() < 5 || parts[1] != "v1" || parts[2] != "jobs") return false;
  const JobId job(parts[3]);
  if (parts.size() == 5 && parts[4] == "follow") {
    if (!request.is_websocket()) throw Error(ErrorCode::invalid, "this route is a WebSocket");
    (void)parts_.engine.job(job);  // Error(not_found) is answered in plain HTTP
    parts_.logs.follow(std::move(socket), as_text(), job, parse_follow_query(request.query));
    return true;
  }
  if (parts[4] == "files" && request.method == "GET") {
    parts_.files.serve(std::move(socket), as_text(), std::move(behind), job);
    return true;
  }
  return false;
}

asio::awaitable<Api::Response> Api::answer(Request request) {
  const std::string route = request.method + " " + request.path;
  if (route == "GET /v1/status") {
    json status = parts_.engine.status();
    status["cluster"]["head"]["port"] = parts_.nodes.port();
    status["cluster"]["head"]["problem"] = parts_.nodes.problem();
    status["cluster"]["open_ports"] = parts_.nodes.pair_tests().open_ports();
    co_return Response{200, std::move(status)};
  }
  if (route == "GET /v1/jobs") co_return Response{200, parts_.engine.jobs()};
  if (route == "POST /v1/jobs") {
    json answered = co_await submit(request.body());
    co_return Response{200, std::move(answered)};
  }
  if (route == "POST /v1/settings" || route == "POST /v1/prune") {
    Response answered = co_await answer_storage(std::move(request));
    co_return answered;
  }
  if (route == "POST /v1/shutdown") {
    json answered = co_await shut_down();
    co_return Response{200, std::move(answered), true};
  }
  const std::vector<std::string> parts = split(request.path, '/');
  if (route == "POST /v1/cluster" || (parts.size() == 5 && parts[2] == "nodes")) {
    Response answered = co_await answer_node(std::move(request));
    co_return answered;
  }
  if (parts.size() >= 4 && parts[1] == "v1" && parts[2] == "jobs") {
    const JobId job(parts[3]);
    const std::string rest = parts.size() == 5 ? parts[4] : "";
    if (parts.size() <= 5) {
      Response answered = co_await answer_job(std::move(request), job, rest);
      co_return answered;
    }
  }
  throw Error(ErrorCode::not_found, "no such route: " + route);
}

asio::awaitable<Api::Response> Api::answer_job(Request request, JobId job, std::string rest) {
  const std::string route = request.method + " " + rest;
  if (route == "GET ") co_return Response{200, parts_.engine.job(job)};
  if (route == "GET metrics") {
    const Engine::MetricsQuery query = metrics_query(request.query);
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.engine.job_metrics(job, query, std::move(done));
    };
    Response response;
    response.body = co_await answer_of(std::move(start));
    co_return response;
  }
  if (route == "GET events") {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.engine.job_events(job, std::move(done));
    };
    json answered = co_await answer_of(std::move(start));
    co_return Response{200, std::move(answered)};
  }
  if (route == "POST stop") {
    const json body = request.body();
    std::optional<std::chrono::seconds> grace;
    if (body.contains("grace_s")) {
      grace = std::chrono::seconds(wire::get_int(body, "grace_s", 0, 86400));
    }
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.engine.stop(job, grace, std::move(done));
    };
    json answered = co_await answer_of(std::move(start));
    co_return Response{200, std::move(answered)};
  }
  if (route == "POST pulled") {
    json answered = co_await pulled(job, request.body());
    co_return Response{200, std::move(answered)};
  }
  if (route == "DELETE ") {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      parts_.engine.remove(job, std::move(done));
    };
    json answered = co_await answer_of(std::move(start));
    co_return Response{200, std::move(answered)};
  }
  throw Error(ErrorCode::not_found, "no such route: " + request.method + " " + request.path);
}

asio::awaitable<json> Api::submit(json body) {
  JobSpec spec = job_spec_from_json(wire::member(body, "spec"));
  const std::vector<Error> problems = validate(spec);
  if (!problems.empty()) throw problems.front();
  if (wire::get_bool(body, "dry_run", false)) co_return parts_.engine.plan(spec);
  const std::string submission = wire::get_string(body, "submission_id");
  std::map<std::string, std::string> secrets;
  if (body.contains("secrets")) {
    if (!body["secrets"].is_object()) throw Error(ErrorCode::invalid, "\"secrets\" is no object");
    for (const auto& [name, value] : body["secrets"].items()) {
      if (!value.is_string()) throw Error(ErrorCode::invalid, "secret " + name + " is no string");
      secrets[name] = value.get<std::string>();
    }
  }
  parts_.engine.check_content(spec);
  if (!wire::get_bool(body, "wait", false)) parts_.engine.check_fits(spec);
  const std::vector<std::string> trees = parts_.engine.content_wanted(spec);
  if (!trees.empty()) {
    std::function<void(Engine::Answer)> look = [&](Engine::Answer done) {
      parts_.contents.missing(trees, std::move(done));
    };
    json missing = co_await answer_of(std::move(look));
    if (!missing["missing"].empty()) co_return missing;
  }
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.submit(submission, spec, secrets, std::move(done));
  };
  json answered = co_await answer_of(std::move(start));
  co_return answered;
}

asio::awaitable<json> Api::shut_down() {
  log::info("shutting down");
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.stop_all(std::move(done));
  };
  (void)co_await answer_of(std::move(start));
  const std::vector<NodeId> told = co_await parts_.nodes.shut_down(kShutdownLimit);
  json answer;
  answer["nodes"] = json::array();
  for (const NodeId& node : told) {
    json row;
    row["node"] = node.str();
    row["state"] = parts_.nodes.connected(node) ? "lost" : "gone";
    answer["nodes"].push_back(std::move(row));
  }
  co_return answer;
}

}  // namespace dtrain::head
