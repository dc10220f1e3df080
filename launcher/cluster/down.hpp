#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/cluster/progress.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain {

// What a `down` would end or lose, for the question before it.
struct DownSurvey {
  bool there = false;                // there is anything to take down
  bool head_answers = false;         // false: `running` is not known
  std::vector<std::string> running;  // ids of jobs that have not ended
  // Committed ones in the head's own storage that nobody has pulled whole.
  int checkpoints = 0;
  std::uint64_t checkpoint_bytes = 0;
  std::vector<std::string> checkpoint_jobs;  // whose they are
  std::string checkpoints_unknown;           // why they could not be counted; empty: they are
  std::shared_ptr<Provider> provider;        // with the connections that were made, for `down`
};

struct DownOptions {
  bool keep_files = false;
  std::chrono::milliseconds stop_limit{90000};  // for jobs' grace and the nodes' end
  std::function<void(const std::string&)> say = [](const std::string&) {};

  // Machines that are there already; provider local knows none of these.
  fs::path agent;
  Access access;
  std::shared_ptr<Provider> provider;  // of a survey before; null: none
  int max_parallel = kMaxParallel;
  ProgressSink progress = [](const NodeProgress&) {};
  bool workers_only = false;  // the head stays, and with it all that it keeps
  bool searched = false;      // by its YAML: what machines elsewhere have is in cluster.json
};

DownSurvey survey_down(const std::string& name, const DownOptions& options);

// One line of the proof: what was there, and what is left of it.
struct DownRow {
  std::string node;  // empty: of this machine, or of the whole
  std::string what;  // "processes", "sockets", "port 28500", "files"
  std::string had;   // "4"
  std::string now;   // "0", or what would not go
  std::string note;
  bool gone = true;
};
struct DownReport {
  std::string name;
  bool was_there = false;
  bool complete = true;  // every row is gone
  std::vector<DownRow> rows;
  fs::path kept;  // with keep_files: where the files are now
};

// Ends the cluster and looks for what is left. Takes the cluster's lock; idempotent; works without
// a head from the state folder and the process table.
DownReport down(const std::string& name, const DownOptions& options);

// Kills what runs below a cluster's folder and empties it, the lock aside. For `up`, which holds
// the lock, when it begins anew.
void clear_away(const fs::path& folder);

}  // namespace dtrain
