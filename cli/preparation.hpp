#pragma once

#include <stop_token>
#include <string>

#include "cli/context.hpp"
#include "launcher/spec/cluster_spec.hpp"

// What machines that join by themselves are to do to themselves, as the YAML says it of workers:
// given to the head, with the files.
namespace dtrain::cli {

struct PreparationFlags {
  // Not empty, and another text each time: everything again, also over what was changed there.
  std::string again;
  bool no_setup = false;  // commands and probe as the head has them, none if it has none
  std::stop_token stop;   // between files; Error(failed)
};

// Sends what has changed. Throws Error; Error(conflict) where the head's agent is too old.
void send_preparation(const Context& context, const wire::ApiClient& client,
                      const ClusterSpec& spec, const PreparationFlags& how = {});
// Whether the head was given one: from then on each `up` sends it anew.
bool has_preparation(const wire::ApiClient& client);

}  // namespace dtrain::cli
