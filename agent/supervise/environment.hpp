#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/wire/attempt.hpp"

// A rank's environment as docs/rank_contract.md draws it. Pure functions: nothing is read here.
namespace dtrain::supervise {

using Environment = std::map<std::string, std::string>;

// NAME=VALUE entries, each ended by NUL, as `env -0` writes them. What is not an entry is passed
// over; of two with one name the later wins.
Environment parse_environment(std::string_view text);

// This process's environment without what dtrain itself puts into one: the base where a node's
// login environment is not known.
Environment own_environment();

// What the ranks of one node have in common.
struct Surroundings {
  Environment base;     // the node's login environment
  Environment secrets;  // of the job
  int master_port = 0;
  std::string attempt_root = {};  // the attempt's folder
};

// Whether a name, or NAME=VALUE, is of those that Slurm puts into a task's environment.
bool is_of_launcher(std::string_view name);

// What is one rank's own.
struct RankPlace {
  int local_rank = 0;
  std::string error_file;
  std::string report_socket;
  std::optional<int> master_listen_fd;
  std::string cpus = {};  // that are its own, "0-3"; empty: none are
  // What its launcher has for it: the launcher's own over the job's, other names only where nobody
  // else has one.
  Environment of_launcher = {};
};

// NAME=VALUE, sorted: the base, over it the job's env, over that its secrets, ours last. Nothing of
// an outer attempt's contract shows through.
std::vector<std::string> rank_environment(const wire::AttemptSpec& spec,
                                          const Surroundings& surroundings, const RankPlace& place);

// The same for `setup`, without what only a rank has.
std::vector<std::string> setup_environment(const wire::AttemptSpec& spec,
                                           const Surroundings& surroundings);

}  // namespace dtrain::supervise
