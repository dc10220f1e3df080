#pragma once

#include <string>
#include <vector>

#include "cli/pull.hpp"
#include "launcher/wire/client.hpp"

namespace dtrain::cli {

// Tells the head which checkpoints are here, whole, so that `down` need not ask about them. What
// was brought is here all the same: a failure is a sentence for the user, empty when all went well.
std::string tell_pulled(const wire::ApiClient& client, const std::string& job,
                        const std::vector<RemoteFile>& files);

}  // namespace dtrain::cli
