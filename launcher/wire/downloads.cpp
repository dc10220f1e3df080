#include "launcher/wire/downloads.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/wire/client_impl.hpp"

namespace dtrain::wire {
namespace {

// Well below what a socket's buffer holds: the head may be busy writing when this is sent.
constexpr std::size_t kAhead = std::size_t{32} << 10;

// "bytes 7-9/10" as 7; 0 for anything else.
std::uint64_t first_of_range(std::string_view header) {
  constexpr std::string_view kUnit = "bytes ";
  if (!header.starts_with(kUnit)) return 0;
  header.remove_prefix(kUnit.size());
  return number_from<std::uint64_t>(header.substr(0, header.find('-'))).value_or(0);
}

}  // namespace

struct Downloads::Connection {
  Connection(const fs::path& socket, const std::string& cluster, std::chrono::milliseconds limit)
      : exchange(socket, cluster, {limit, {}}) {}

  Exchange exchange;
  beast::flat_buffer buffer;
};

Downloads::Downloads(fs::path socket, std::string cluster, std::chrono::milliseconds silence_limit)
    : socket_(std::move(socket)), cluster_(std::move(cluster)), silence_limit_(silence_limit) {}

Downloads::~Downloads() = default;

void Downloads::ask(std::string target, std::uint64_t offset) {
  asked_.push_back({std::move(target), offset});
}

void Downloads::disconnect() {
  connection_.reset();
  for (Asked& each : asked_) each.bytes = 0;
  sent_ = bytes_ahead_ = 0;
}

void Downloads::drop_first() {
  bytes_ahead_ -= asked_.front().bytes;
  asked_.pop_front();
  --sent_;
}

// In few and large writes, when half of the room is free.
void Downloads::send_requests() {
  if (sent_ > 0 && (one_at_a_time_ || bytes_ahead_ > kAhead / 2)) return;
  std::ostringstream text;
  while (sent_ < asked_.size() && (sent_ == 0 || (!one_at_a_time_ && bytes_ahead_ < kAhead))) {
    Asked& next = asked_[sent_];
    auto request = make_request(http::verb::get, next.target, {});
    request.keep_alive(true);
    // From 0 on too: the answer says where its bytes begin.
    request.set(http::field::range, "bytes=" + std::to_string(next.offset) + "-");
    const auto before = text.tellp();
    text << request;
    next.bytes = static_cast<std::size_t>(text.tellp() - before);
    bytes_ahead_ += next.bytes;
    ++sent_;
  }
  const std::string bytes = text.str();
  if (bytes.empty()) return;
  connection_->exchange.run_or_throw([&](auto done) {
    asio::async_write(connection_->exchange.socket(), asio::buffer(bytes), std::move(done));
  });
}

void Downloads::take(const Sink& sink, const Gap& gap) {
  std::uint64_t given = 0;
  const Sink counting = [&](std::string_view bytes) {
    sink(bytes);
    given += bytes.size();
  };
  std::optional<Error> refusal;
  try {
    if (!connection_) {
      connection_ = std::make_unique<Connection>(socket_, cluster_, silence_limit_);
    }
    send_requests();
    refusal = receive(counting, gap);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout) {
      asked_.front().offset += given;
      disconnect();
    }
    throw;
  }
  if (refusal) throw *refusal;
}

std::optional<Error> Downloads::receive(const Sink& sink, const Gap& gap) {
  Exchange& exchange = connection_->exchange;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  exchange.run_or_throw([&](auto done) {
    http::async_read_header(exchange.socket(), connection_->buffer, parser, std::move(done));
  });
  const unsigned status = parser.get().result_int();
  std::string refusal;
  if (status == 206) {
    const std::uint64_t begin = first_of_range(parser.get()[http::field::content_range]);
    if (begin > asked_.front().offset) {
      gap(begin - asked_.front().offset);
      asked_.front().offset = begin;
    }
  }
  // A server that does not know ranges sends all: what we have is passed over.
  std::uint64_t skip = status == 206 ? 0 : asked_.front().offset;
  std::array<char, 65536> piece;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    const error_code error = exchange.run([&](auto done) {
      http::async_read(exchange.socket(), connection_->buffer, parser, std::move(done));
    });
    std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
    if (status >= 400) {
      if (refusal.size() < kAnswerLimit) refusal += bytes;
      bytes = {};
    }
    const std::uint64_t passed = std::min<std::uint64_t>(skip, bytes.size());
    skip -= passed;
    bytes.remove_prefix(passed);
    if (!bytes.empty()) sink(bytes);
    // What came before the break is given all the same.
    if (error && error != http::error::need_buffer) {
      throw unreachable(cluster_, "broke the connection (" + error.message() + ")");
    }
  }
  drop_first();
  if (!parser.keep_alive()) {
    one_at_a_time_ = true;
    disconnect();
  }
  if (status < 400) return std::nullopt;
  try {
    throw_refusal(status, refusal);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace dtrain::wire
