#include "agent/node/pairs.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/node/door.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr const char* kHere = "here";

std::string path_for(const std::string& token) {
  return "/v1/pair/" + token;
}

}  // namespace

// A port that closes by itself.
struct Pairs::Opened {
  Opened(std::shared_ptr<Door> opened, std::chrono::milliseconds after,
         const asio::any_io_executor& executor)
      : door(std::move(opened)), limit(executor, after) {
    limit.async_wait([closing = door](error_code) { closing->close(); });
  }

  std::shared_ptr<Door> door;
  asio::steady_timer limit;  // its end closes it too
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
  std::erase_if(opened_, [](const auto& entry) { return !entry.second->door->is_open(); });
  wire::PairOpened answer;
  answer.test = request.test;
  try {
    const Door::Serve greet =
        [path = path_for(request.token)](wire::AcceptedPeer peer) -> asio::awaitable<void> {
      if (peer.path == path) {
        peer.stream->send_text(kHere);
      } else {
        peer.stream->abort();
      }
      co_return;
    };
    const auto door = Door::open(executor_, identity_, cluster_, greet);
    answer.port = door->port();
    opened_[request.test] = std::make_unique<Opened>(door, request.limit, executor_);
  } catch (const Error& error) {
    answer.error = error;
  } catch (const std::exception& error) {
    answer.error = Error(ErrorCode::io, error.what());
  }
  send_(std::move(answer));
}

void Pairs::close(const wire::ClosePair& request) {
  opened_.erase(request.test);
}

void Pairs::close_all() {
  opened_.clear();
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
