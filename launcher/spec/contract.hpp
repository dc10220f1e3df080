#pragma once

#include <array>
#include <string_view>

// The names that dtrain puts into a rank's environment, as docs/rank_contract.md lists them.
namespace dtrain::contract {

// Of every process of an attempt.
inline constexpr std::array<std::string_view, 21> kOfAttempt{
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "DTRAIN_JOB_ID",
    "DTRAIN_ATTEMPT",
    "DTRAIN_ATTEMPT_TOKEN",
    "DTRAIN_ATTEMPT_ROOT",
    "DTRAIN_NODE_IPS",
    "DTRAIN_STORAGE_PATH",
    // Where the node has GPUs.
    "CUDA_VISIBLE_DEVICES",
};

// Of one rank, which `setup` does not get.
inline constexpr std::array<std::string_view, 8> kOfRank{
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "TORCHELASTIC_ERROR_FILE",
    "DTRAIN_REPORT_SOCKET",
    // Where there is one.
    "DTRAIN_CHECKPOINT",
    // Where the rank is bound to some.
    "DTRAIN_CPUS",
    // On rank 0.
    "DTRAIN_MASTER_LISTEN_FD",
};

// Of every process of a search's trial.
inline constexpr std::array<std::string_view, 3> kOfTrial{"DTRAIN_PARAMS", "DTRAIN_SEARCH_ID",
                                                          "DTRAIN_TRIAL"};

// Only where neither the login environment nor the job has them.
inline constexpr std::array<std::string_view, 6> kUnlessSet{
    "OMP_NUM_THREADS",    "PYTHONUNBUFFERED",   "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CUDA_DEVICE_ORDER",
};

// True for kOfAttempt, kOfRank and kOfTrial: the job's env and secrets may not set them.
bool sets(std::string_view name) noexcept;

}  // namespace dtrain::contract
