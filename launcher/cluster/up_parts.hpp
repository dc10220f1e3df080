#pragma once

#include "launcher/cluster/up.hpp"

// The two ways of `up`, for up.cpp. The cluster's lock is held.
namespace dtrain {

UpReport up_local(const ClusterSpec& spec, const UpOptions& options);
UpReport up_hosts(const ClusterSpec& spec, const UpOptions& options);

}  // namespace dtrain
