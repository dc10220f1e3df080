#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>

#include "agent/node/config.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::node {

// Opens one of the head's WebSockets for nodes, on whatever executor it is awaited: the head's
// addresses are tried in turn. Throws the first Error when none answers. `patient`: as of
// wire::dial_tls.
boost::asio::awaitable<wire::FrameStreamPtr> dial_head(paths::NodeRoot root, std::string path,
                                                       bool patient = false);

}  // namespace dtrain::node
