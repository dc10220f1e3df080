#include "agent/node/dial.hpp"

#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <optional>

#include "launcher/core/error.hpp"

namespace dtrain::node {
namespace {

constexpr std::chrono::seconds kDialLimit{10};

}  // namespace

boost::asio::awaitable<wire::FrameStreamPtr> dial_head(paths::NodeRoot root, std::string path,
                                                       bool patient) {
  const NodeConfig config = read_node_config(root);
  const HeadPlace place = head_place(config);
  const auto tls = wire::tls_context(root.identity(), wire::PeerName::Role::node);
  std::optional<Error> first;
  for (const std::string& address : place.addresses) {
    try {
      co_return co_await wire::dial_tls(address, static_cast<std::uint16_t>(place.port), tls,
                                        wire::PeerName::Role::head, config.cluster, path,
                                        kDialLimit, patient);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  throw first.value_or(Error(ErrorCode::unreachable, "the head has no address"));
}

}  // namespace dtrain::node
