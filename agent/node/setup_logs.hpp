#pragma once

#include "launcher/core/paths.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::node {

// The ends of the logs of this node's setup lists, by name. Any thread; what cannot be read is left
// out.
wire::SetupLogs read_setup_logs(const paths::NodeRoot& root, const std::string& request);

}  // namespace dtrain::node
