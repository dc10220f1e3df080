#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::train {

// Who started this process, as far as its environment says.
enum class StartedBy : std::uint8_t {
  nobody,    // no RANK: one rank, no network
  torchrun,  // RANK and MASTER_ADDR, and perhaps torchrun's own store
  dtrain,    // DTRAIN_JOB_ID as well
  slurm,     // no RANK, but srun's SLURM_PROCID and SLURM_NTASKS
};

// What a rank is told by its launcher: docs/rank_contract.md and torchrun's documentation. Plain
// values; nothing here opens a socket.
struct Environment {
  StartedBy started_by = StartedBy::nobody;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int attempt = 1;  // TORCHELASTIC_RESTART_COUNT + 1, or DTRAIN_ATTEMPT

  std::string master_addr;
  std::uint16_t master_port = 0;
  bool agent_store = false;             // the launcher hosts the store: every rank is a client
  std::optional<int> master_listen_fd;  // rank 0 under dtrain: bound, not listening
  std::vector<std::string> node_ips;    // by node rank; empty if not known

  std::string job;  // DTRAIN_JOB_ID, else empty
  std::string run;  // the same, or TORCHELASTIC_RUN_ID, or SLURM_JOB_ID; else empty
  std::optional<std::filesystem::path> storage_path;
  std::optional<std::filesystem::path> checkpoint;     // committed; to resume from
  std::optional<std::filesystem::path> report_socket;  // unix stream socket
  std::optional<std::filesystem::path> error_file;     // where to leave torchrun's JSON

  // Slurm's --gpus-per-task: each rank sees its own GPUs only.
  std::optional<int> gpus_per_task;

  bool one_node() const { return local_world_size == world_size; }
};

// Which of the GPUs that this rank sees is its own: as LOCAL_RANK says where the ranks of a node
// see the same ones, the first where Slurm shows each rank its own only (--gpus-per-task, or a
// binding that leaves one). Throws Error when there are too few.
int gpu_index(const Environment& environment, int visible);

// Looks up one variable; nullopt when it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

std::optional<std::string> process_variable(const std::string& name);

// Reads and checks all variables. RANK comes before Slurm's: torchrun and dtrain may run inside of
// a Slurm job. Without MASTER_ADDR and MASTER_PORT, Slurm's ranks meet at the first host of
// SLURM_JOB_NODELIST (on loopback if it is the only one), at a port made of job and step. Throws
// Error that names the variable, its value and what is wrong with it: missing (RANK without
// WORLD_SIZE), not a whole number, out of its range.
Environment read_environment(const Lookup& lookup = process_variable);

}  // namespace dtrain::train
