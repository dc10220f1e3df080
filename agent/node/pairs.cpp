#include "agent/node/pairs.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr auto kGreeting = 3s;
constexpr const char* kHere = "here";

std::string path_for(const std::string& token) {
  return "/v1/pair/" + token;
}

tcp::acceptor listen(const asio::any_io_executor& executor) {
  // Both families where the kernel has them.
  for (const tcp& protocol : {tcp::v6(), tcp::v4()}) {
    tcp::acceptor acceptor(executor);
    error_code failed;
    acceptor.open(protocol, failed);
    if (!failed && protocol == tcp::v6()) {
      acceptor.set_option(asio::ip::v6_only(false), failed);
    }
    if (!failed) acceptor.bind(tcp::endpoint(protocol, 0), failed);
    if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
    if (!failed) return acceptor;
  }
  throw Error(ErrorCode::exhausted, "no port can be opened");
}

}  // namespace

class Pairs::Door : public std::enable_shared_from_this<Pairs::Door> {
 public:
  Door(const asio::any_io_executor& executor, const fs::path& identity, ClusterId cluster,
       const wire::OpenPair& request)
      : executor_(executor),
        cluster_(std::move(cluster)),
        path_(path_for(request.token)),
        tls_(wire::tls_pair_context(identity)),
        acceptor_(listen(executor)),
        limit_(executor, request.limit) {}

  int port() const { return acceptor_.local_endpoint().port(); }

  void start() {
    limit_.async_wait([self = shared_from_this()](error_code stopped) {
      if (!stopped) self->close();
    });
    asio::co_spawn(
        executor_, [self = shared_from_this()] { return self->serve(); }, asio::detached);
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    limit_.cancel();
  }

  bool is_open() const { return acceptor_.is_open(); }

 private:
  asio::awaitable<void> serve() {
    while (acceptor_.is_open()) {
      error_code failed;
      auto socket = std::make_shared<tcp::socket>(
          co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, failed)));
      if (failed) co_return;
      asio::co_spawn(
          executor_, [self = shared_from_this(), socket] { return self->greet(socket); },
          asio::detached);
    }
  }

  asio::awaitable<void> greet(std::shared_ptr<tcp::socket> socket) {
    try {
      wire::AcceptedPeer peer = co_await wire::accept_tls(std::move(*socket), tls_, kGreeting);
      if (peer.name.cluster != cluster_ || peer.path != path_) {
        peer.stream->abort();
        co_return;
      }
      peer.stream->send_text(kHere);
      peer.stream->close();
    } catch (const Error& error) {
      log::debug("a pair test's caller was hung up on", {{"why", error.what()}});
    }
  }

  asio::any_io_executor executor_;
  ClusterId cluster_;
  std::string path_;
  std::shared_ptr<asio::ssl::context> tls_;
  tcp::acceptor acceptor_;
  asio::steady_timer limit_;
};

Pairs::Pairs(asio::any_io_executor executor, fs::path identity, ClusterId cluster,
             std::function<void(wire::NodeMessage)> send)
    : executor_(std::move(executor)),
      identity_(std::move(identity)),
      cluster_(std::move(cluster)),
      send_(std::move(send)) {}

Pairs::~Pairs() {
  close_all();
}

void Pairs::open(const wire::OpenPair& request) {
  std::erase_if(doors_, [](const auto& entry) { return !entry.second->is_open(); });
  wire::PairOpened answer;
  answer.test = request.test;
  try {
    const auto door = std::make_shared<Door>(executor_, identity_, cluster_, request);
    door->start();
    answer.port = door->port();
    if (doors_[request.test]) doors_[request.test]->close();
    doors_[request.test] = door;
  } catch (const Error& error) {
    answer.error = error;
  } catch (const std::exception& error) {
    answer.error = Error(ErrorCode::io, error.what());
  }
  send_(std::move(answer));
}

void Pairs::close(const wire::ClosePair& request) {
  const auto found = doors_.find(request.test);
  if (found == doors_.end()) return;
  found->second->close();
  doors_.erase(found);
}

void Pairs::close_all() {
  for (const auto& [test, door] : doors_) door->close();
  doors_.clear();
}

void Pairs::dial(const wire::DialPairs& request) {
  struct Round {
    wire::PairResult result;
    std::size_t left = 0;
  };
  const auto round = std::make_shared<Round>();
  round->result.test = request.test;
  round->left = request.targets.size();
  if (round->left == 0) {
    send_(round->result);
    return;
  }
  std::shared_ptr<asio::ssl::context> tls;
  std::string trouble;
  try {
    tls = wire::tls_pair_context(identity_);
  } catch (const Error& error) {
    trouble = error.what();
  }
  const std::weak_ptr<int> guard = alive_;
  for (const wire::DialPairs::Target& target : request.targets) {
    const auto finish = [this, guard, round, target](const std::string& why) {
      if (!why.empty()) {
        round->result.failures.push_back({target.node, target.address, target.port, why});
      }
      if (--round->left == 0 && guard.lock()) send_(round->result);
    };
    if (!tls) {
      finish(trouble);
      continue;
    }
    const auto reach = [](wire::DialPairs::Target to, std::shared_ptr<asio::ssl::context> context,
                          ClusterId cluster,
                          std::chrono::milliseconds limit) -> asio::awaitable<std::string> {
      try {
        const std::string path = path_for(to.token);
        const wire::FrameStreamPtr stream =
            co_await wire::dial_tls(to.address, static_cast<std::uint16_t>(to.port), context,
                                    wire::PeerName::Role::node, cluster, path, limit);
        const wire::Frame frame = co_await stream->read();
        stream->abort();
        co_return frame.bytes == kHere ? "" : "another answers there";
      } catch (const Error& error) {
        co_return error.what();
      }
    };
    asio::co_spawn(executor_, reach(target, tls, cluster_, request.limit),
                   [finish](const std::exception_ptr& failed, const std::string& why) {
                     finish(failed ? "it failed" : why);
                   });
  }
}

}  // namespace dtrain::node
