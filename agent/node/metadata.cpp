#include "agent/node/metadata.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

namespace {

constexpr std::size_t kAnswerLimit = std::size_t{64} << 10;
constexpr const char* kToken = "X-aws-ec2-metadata-token";
constexpr const char* kTokenLife = "X-aws-ec2-metadata-token-ttl-seconds";
constexpr const char* kLife = "21600";  // the longest that there is
constexpr int kUnauthorized = 401;

// "http://ADDRESS", "http://ADDRESS:PORT", "http://[ADDRESS]:PORT", and a slash.
tcp::endpoint endpoint_of(const std::string& url) {
  const Error wrong(ErrorCode::invalid,
                    "the metadata service is at http://ADDRESS or http://ADDRESS:PORT, not " + url);
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) throw wrong;
  std::string host = url.substr(kScheme.size());
  if (host.ends_with('/')) host.pop_back();
  std::uint16_t port = 80;
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    const auto number = number_from<std::uint16_t>(host.substr(colon + 1));
    if (!number) throw wrong;
    port = *number;
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  boost::system::error_code failed;
  const auto address = asio::ip::make_address(host, failed);
  if (failed) throw wrong;
  return {address, port};
}

}  // namespace

MetadataOptions metadata_options() {
  MetadataOptions options;
  const char* endpoint = std::getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint != nullptr && *endpoint != '\0') options.endpoint = endpoint;
  return options;
}

Metadata::Metadata(asio::any_io_executor executor, MetadataOptions options)
    : executor_(std::move(executor)), options_(std::move(options)) {}

asio::awaitable<Metadata::Answer> Metadata::ask(bool put, std::string path) {
  const tcp::endpoint endpoint = endpoint_of(options_.endpoint);
  http::request<http::empty_body> request(put ? http::verb::put : http::verb::get, "/" + path, 11);
  request.set(http::field::host, endpoint.address().to_string());
  request.set(http::field::connection, "close");
  if (put) {
    request.set(kTokenLife, kLife);
    request.content_length(0);
  } else {
    request.set(kToken, token_);
  }
  beast::tcp_stream stream(executor_);
  stream.expires_after(options_.limit);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kAnswerLimit);
  try {
    co_await stream.async_connect(endpoint, asio::use_awaitable);
    co_await http::async_write(stream, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
  } catch (const boost::system::system_error& failed) {
    throw Error(ErrorCode::unreachable, "the instance metadata service at " + options_.endpoint +
                                            ": " + failed.code().message());
  }
  co_return Answer{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
}

asio::awaitable<Metadata::Answer> Metadata::get(std::string path) {
  const bool had_token = !token_.empty();
  if (had_token) {
    Answer answer = co_await ask(false, path);
    if (answer.status != kUnauthorized) co_return answer;
  }
  token_.clear();
  Answer token = co_await ask(true, "latest/api/token");
  // It becomes a field of the next request.
  const bool good = token.status == kOk && !token.body.empty() &&
                    token.body.find_first_of("\r\n") == std::string::npos;
  if (!good) {
    throw Error(ErrorCode::denied, "the instance metadata service at " + options_.endpoint +
                                       " gives no token: " + std::to_string(token.status));
  }
  token_ = std::move(token.body);
  co_return co_await ask(false, std::move(path));
}

}  // namespace dtrain::node
