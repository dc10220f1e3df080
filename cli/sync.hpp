#pragma once

#include <string>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// What `dtrain sync` is asked for.
struct SyncRequest {
  std::string from;  // up: empty for the cluster YAML's file_mounts
  std::string to;
  std::vector<std::string> nodes;  // up: empty for all; down: one at most, the head's by default
  std::vector<std::string> exclude;
  bool head_only = false;   // up: the head's node alone
  bool yaml_rules = false;  // up: rsync_exclude and rsync_filter of the cluster YAML count
  bool all = false;
  bool dry_run = false;
  bool overwrite = false;
  bool keep = false;    // up: delete nothing
  bool remove = false;  // down: delete
};

// Give the exit code.
int sync_up(Context& context, const SyncRequest& request);
int sync_down(Context& context, const SyncRequest& request);

}  // namespace dtrain::cli
