#include "agent/supervise/environment.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/contract.hpp"

namespace dtrain::supervise {
namespace {

void put_entry(Environment& env, std::string_view entry) {
  const std::size_t equals = entry.find('=');
  if (equals == std::string_view::npos || equals == 0) return;
  env[std::string(entry.substr(0, equals))] = entry.substr(equals + 1);
}

void lay_over(Environment& env, const Environment& upper) {
  for (const auto& [name, value] : upper) env[name] = value;
}

Environment beneath(const wire::AttemptSpec& spec, const Surroundings& surroundings) {
  Environment env = surroundings.base;
  lay_over(env, spec.env);
  lay_over(env, surroundings.secrets);
  // Some may be absent: a value from beneath must not stand for them.
  for (const std::string_view name : contract::kOfRank) env.erase(std::string(name));
  env.emplace("PYTHONUNBUFFERED", "1");
  env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  return env;
}

// Which devices there are the step of the agents says: the launcher's asks for none.
constexpr std::array<std::string_view, 6> kDevices{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
                                                   "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                                                   "GPU_DEVICE_ORDINAL",   "ZE_AFFINITY_MASK"};

void put_launcher(Environment& env, const Environment& given) {
  // Of the step that the agents are in, and of no other's: what does not come anew would be wrong.
  if (!given.empty()) env.erase("SLURM_NTASKS_PER_NODE");
  for (const auto& [name, value] : given) {
    if (is_of_launcher(name)) {
      env[name] = value;
    } else if (!name.starts_with("DTRAIN_") &&
               std::find(kDevices.begin(), kDevices.end(), name) == kDevices.end()) {
      env.emplace(name, value);
    }
  }
}

// What all processes of the attempt on this node get.
void put_attempt(Environment& env, const wire::AttemptSpec& spec,
                 const Surroundings& surroundings) {
  const Environment& base = surroundings.base;  // what this node has, whatever the job says
  env["WORLD_SIZE"] = std::to_string(spec.world_size);
  env["LOCAL_WORLD_SIZE"] = std::to_string(spec.nproc);
  env["GROUP_RANK"] = std::to_string(spec.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(spec.nnodes);
  env["NODE_RANK"] = std::to_string(spec.node_rank);
  env["ROLE_NAME"] = "default";
  env["ROLE_WORLD_SIZE"] = std::to_string(spec.world_size);
  env["MASTER_ADDR"] = spec.master_addr;
  env["MASTER_PORT"] = std::to_string(surroundings.master_port);
  env["TORCHELASTIC_RUN_ID"] = spec.job.str();
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(spec.attempt - 1);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(spec.max_restarts);
  env["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  env["DTRAIN_JOB_ID"] = spec.job.str();
  env["DTRAIN_ATTEMPT"] = std::to_string(spec.attempt);
  env["DTRAIN_ATTEMPT_TOKEN"] = spec.token;
  env["DTRAIN_ATTEMPT_ROOT"] = surroundings.attempt_root;
  env["DTRAIN_NODE_IPS"] = join(spec.node_ips, "\n");
  env["DTRAIN_STORAGE_PATH"] = spec.storage_path;
  if (spec.gpus_assigned) {
    // Of those that a step of Slurm has, which may be others than the machine's first.
    std::vector<std::string> of_step;
    const auto here = base.find("CUDA_VISIBLE_DEVICES");
    const bool in_step = base.contains("SLURM_STEP_ID");
    if (in_step && here != base.end()) of_step = split(here->second, ',');
    // CUDA's own order goes by speed: of two jobs that count in different ways one number is two
    // GPUs.
    if (!in_step) env.emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    std::vector<std::string> indices;
    for (const int gpu : spec.gpus) {
      const auto number = static_cast<std::size_t>(gpu);
      indices.push_back(number < of_step.size() ? of_step[number] : std::to_string(gpu));
    }
    env["CUDA_VISIBLE_DEVICES"] = join(indices, ",");
  }
}

std::vector<std::string> entries(const Environment& env) {
  std::vector<std::string> out;
  out.reserve(env.size());
  for (const auto& [name, value] : env) out.push_back(name + "=" + value);
  return out;
}

}  // namespace

bool is_of_launcher(std::string_view name) {
  return name.starts_with("SLURM") || name.starts_with("PMIX_") || name.starts_with("PMI_");
}

Environment parse_environment(std::string_view text) {
  Environment env;
  while (!text.empty()) {
    const std::size_t end = text.find('\0');
    put_entry(env, text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return env;
}

Environment own_environment() {
  Environment env;
  for (const std::string& entry : current_environment()) {
    if (!entry.starts_with("DTRAIN_")) put_entry(env, entry);
  }
  return env;
}

std::vector<std::string> rank_environment(const wire::AttemptSpec& spec,
                                          const Surroundings& surroundings,
                                          const RankPlace& place) {
  Environment env = beneath(spec, surroundings);
  put_launcher(env, place.of_launcher);
  // Several ranks of one machine share its CPUs, and so do jobs that ask for some of them.
  if (spec.rank_threads > 0) {
    env.emplace("OMP_NUM_THREADS", std::to_string(spec.rank_threads));
  } else if (std::max(spec.machine_ranks, spec.nproc) > 1) {
    env.emplace("OMP_NUM_THREADS", "1");
  }
  put_attempt(env, spec, surroundings);
  const std::string rank = std::to_string(spec.first_rank + place.local_rank);
  env["RANK"] = rank;
  env["ROLE_RANK"] = rank;
  env["LOCAL_RANK"] = std::to_string(place.local_rank);
  env["TORCHELASTIC_ERROR_FILE"] = place.error_file;
  env["DTRAIN_REPORT_SOCKET"] = place.report_socket;
  // The ranks' alone: what `setup` runs is mostly the system's own, with the system's libraries.
  if (!spec.library_path.empty()) {
    std::string& path = env["LD_LIBRARY_PATH"];
    path = path.empty() ? spec.library_path : spec.library_path + ":" + path;
  }
  if (spec.checkpoint) env["DTRAIN_CHECKPOINT"] = *spec.checkpoint;
  if (!place.cpus.empty()) env["DTRAIN_CPUS"] = place.cpus;
  if (place.master_listen_fd) {
    env["DTRAIN_MASTER_LISTEN_FD"] = std::to_string(*place.master_listen_fd);
  }
  return entries(env);
}

std::vector<std::string> setup_environment(const wire::AttemptSpec& spec,
                                           const Surroundings& surroundings) {
  Environment env = beneath(spec, surroundings);
  put_attempt(env, spec, surroundings);
  return entries(env);
}

}  // namespace dtrain::supervise
