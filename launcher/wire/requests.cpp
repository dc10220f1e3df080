#include "launcher/wire/requests.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <sstream>

#include "launcher/wire/tls_impl.hpp"

namespace dtrain::wire {
namespace {

namespace http = beast::http;

constexpr std::size_t kReplyLimit = std::size_t{64} << 10;
constexpr std::size_t kPiece = std::size_t{64} << 10;
constexpr std::chrono::seconds kGoodbye{5};

// Whole, or as much as there is.
std::string read_piece(int fd, std::uint64_t offset, std::uint64_t size) {
  std::string piece(static_cast<std::size_t>(std::min<std::uint64_t>(size, kPiece)), '\0');
  ssize_t got = 0;
  do {
    got = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  piece.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return piece;
}

asio::awaitable<bool> write_piece(TlsSocket& socket, const std::string& piece) {
  const SocketDeadline silence(beast::get_lowest_layer(socket), kPieceLimit);
  error_code failed;
  co_await asio::async_write(socket.next_layer(), asio::buffer(piece),
                             asio::redirect_error(asio::use_awaitable, failed));
  co_return !failed;
}

std::string head_of(const HttpAnswer& answer) {
  http::response<http::empty_body> head(static_cast<http::status>(answer.status), 11);
  head.set(http::field::content_type, answer.type);
  head.set(http::field::connection, "close");
  if (answer.file) head.set(http::field::etag, '"' + answer.sha256 + '"');
  head.content_length(answer.file ? answer.size : answer.body.size());
  std::ostringstream text;
  text << head;
  return text.str();
}

}  // namespace

asio::awaitable<void> give_answer(std::shared_ptr<TlsSocket> socket, HttpAnswer answer) {
  const SocketDeadline whole(beast::get_lowest_layer(*socket), kAnswerLimit);
  const std::string begin = head_of(answer) + answer.body;
  bool goes_on = co_await write_piece(*socket, begin);
  for (std::uint64_t at = 0; goes_on && answer.file && at < answer.size;) {
    const std::string piece = read_piece(answer.file->get(), at, answer.size - at);
    at += piece.size();
    goes_on = !piece.empty();
    if (goes_on) goes_on = co_await write_piece(*socket, piece);
  }
  // A peer that had all of it is told so: without that it could take a cut connection for the end.
  if (goes_on) {
    const SocketDeadline goodbye(beast::get_lowest_layer(*socket), kGoodbye);
    error_code ignored;
    co_await socket->next_layer().async_shutdown(
        asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<HttpReply> post_tls(std::string address, std::uint16_t port,
                                    std::shared_ptr<asio::ssl::context> context,
                                    PeerName::Role expected_role, ClusterId cluster,
                                    std::string path, std::string body,
                                    std::chrono::milliseconds deadline) {
  const std::string where = host_at(address, port);
  TlsLayer socket(co_await asio::this_coro::executor, *context);
  const SocketDeadline limit(socket.next_layer(), deadline);
  co_await connect_tls(socket, limit, address, port, expected_role, cluster);
  http::request<http::string_body> request(http::verb::post, path, 11);
  request.set(http::field::host, "head");
  request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();
  error_code failed;
  co_await http::async_write(socket, request, asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kReplyLimit);
  co_await http::async_read(socket, buffer, parser,
                            asio::redirect_error(asio::use_awaitable, failed));
  if (failed == http::error::body_limit) {
    throw Error(ErrorCode::exhausted, where + " answers with too much");
  }
  if (failed) throw connection_error(limit, failed, where);
  co_return HttpReply{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
}

}  // namespace dtrain::wire
