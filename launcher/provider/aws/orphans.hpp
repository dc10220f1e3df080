#pragma once

#include <memory>
#include <string>

#include "launcher/provider/provider.hpp"

namespace dtrain::aws {

// Of the user's account, in one region.
std::unique_ptr<Orphans> make_orphans(const std::string& region);

}  // namespace dtrain::aws
