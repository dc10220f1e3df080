#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/attempt.hpp"

// The starting of an attempt's processes: the port they meet at, their pipes, and themselves.
namespace dtrain::supervise {

// A socket bound to MASTER_PORT with SO_REUSEADDR that does not listen: the kernel gives the port
// to nobody else, and a program that binds it with SO_REUSEADDR may.
struct MasterPort {
  UniqueFd socket;
  int port = 0;
};
// `port` 0: the kernel chooses. Throws Error naming the port.
MasterPort bind_master(int port);

// The number under which rank 0 finds that socket; above what shells use for themselves.
inline constexpr int kMasterListenFd = 127;

// A started process and the reading ends of its output.
struct Started {
  pid_t pid = 0;
  UniqueFd out;
  UniqueFd err;
};

// Starts a rank in a session of its own, killed when the calling thread ends. `master` and
// `cgroup` (an open cgroup.procs) -1: none; no `cpus`: it is bound to none. Throws Error naming
// program and folder, NotStartable as spawn() does.
Started start_rank(const wire::AttemptSpec& spec, std::vector<std::string> env, int master,
                   int cgroup, const std::vector<int>& cpus = {});

// Starts the job's `setup` the same way; both of its streams come out of `out`.
Started start_setup(const wire::AttemptSpec& spec, std::vector<std::string> env, int cgroup);

}  // namespace dtrain::supervise
