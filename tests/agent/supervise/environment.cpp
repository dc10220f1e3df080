#include "agent/supervise/environment.hpp"

#include <doctest/doctest.h>

#include "launcher/spec/contract.hpp"

using namespace dtrain;
using supervise::Environment;

namespace {

wire::AttemptSpec two_by_two() {
  wire::AttemptSpec spec;
  spec.job = JobId("mnist-abcdef");
  spec.attempt = 3;
  spec.token = "token";
  spec.node_rank = 1;
  spec.nnodes = 2;
  spec.first_rank = 2;
  spec.nproc = 2;
  spec.world_size = 4;
  spec.node_ips = {"10.0.0.1", "10.0.0.2"};
  spec.master_addr = "10.0.0.1";
  spec.max_restarts = 5;
  spec.storage_path = "/storage";
  return spec;
}

Environment environment(const wire::AttemptSpec& spec, const supervise::Surroundings& around = {},
                        std::optional<int> listen_fd = std::nullopt, const std::string& cpus = {}) {
  Environment env;
  for (const std::string& entry :
       supervise::rank_environment(spec, around, {1, "/errors/3.json", "/s/3", listen_fd, cpus})) {
    const std::size_t equals = entry.find('=');
    env[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return env;
}

}  // namespace

TEST_CASE("a rank's environment, all of it") {
  supervise::Surroundings around;
  around.master_port = 29500;
  around.attempt_root = "/node/jobs/mnist-abcdef/attempt-3";
  const Environment expected{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                             {"CUDA_VISIBLE_DEVICES", "0,3"},
                             {"DTRAIN_ATTEMPT", "3"},
                             {"DTRAIN_ATTEMPT_ROOT", "/node/jobs/mnist-abcdef/attempt-3"},
                             {"DTRAIN_ATTEMPT_TOKEN", "token"},
                             {"DTRAIN_CHECKPOINT", "/storage/checkpoint_000001"},
                             {"DTRAIN_CPUS", "2-3"},
                             {"DTRAIN_JOB_ID", "mnist-abcdef"},
                             {"DTRAIN_MASTER_LISTEN_FD", "127"},
                             {"DTRAIN_NODE_IPS", "10.0.0.1\n10.0.0.2"},
                             {"DTRAIN_REPORT_SOCKET", "/s/3"},
                             {"DTRAIN_STORAGE_PATH", "/storage"},
                             {"GROUP_RANK", "1"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"NODE_RANK", "1"},
                             {"OMP_NUM_THREADS", "1"},
                             {"PYTHONUNBUFFERED", "1"},
                             {"RANK", "3"},
                             {"ROLE_NAME", "default"},
                             {"ROLE_RANK", "3"},
                             {"ROLE_WORLD_SIZE", "4"},
                             {"TORCHELASTIC_ERROR_FILE", "/errors/3.json"},
                             {"TORCHELASTIC_MAX_RESTARTS", "5"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_RUN_ID", "mnist-abcdef"},
                             {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                             {"WORLD_SIZE", "4"}};
  wire::AttemptSpec spec = two_by_two();
  spec.gpus = {0, 3};
  spec.gpus_assigned = true;
  spec.checkpoint = "/storage/checkpoint_000001";
  CHECK(environment(spec, around, 127, "2-3") == expected);
  // Just the names that a job may not set, and defaults.
  std::size_t ours = 0;
  for (const auto& [name, value] : expected) ours += contract::sets(name) ? 1 : 0;
  CHECK(ours == contract::kOfAttempt.size() + contract::kOfRank.size());
  CHECK(expected.size() - ours == 4);
}

TEST_CASE("who lies over whom") {
  wire::AttemptSpec spec = two_by_two();
  supervise::Surroundings around;
  around.base = {{"A", "login"}, {"B", "login"}, {"C", "login"}, {"RANK", "login"}};
  spec.env = {{"B", "job"}, {"C", "job"}, {"WORLD_SIZE", "job"}};
  around.secrets = {{"C", "secret"}, {"MASTER_ADDR", "secret"}};
  Environment env = environment(spec, around);
  CHECK(env["A"] == "login");
  CHECK(env["B"] == "job");
  CHECK(env["C"] == "secret");
  CHECK(env["RANK"] == "3");
  CHECK(env["WORLD_SIZE"] == "4");
  CHECK(env["MASTER_ADDR"] == "10.0.0.1");
}

TEST_CASE("what a launcher gives lies over the job's where it is the launcher's own") {
  wire::AttemptSpec spec = two_by_two();
  supervise::Surroundings around;
  around.base = {{"SLURM_NTASKS", "2"}, {"SLURM_NTASKS_PER_NODE", "1"}, {"HOME", "/home/me"}};
  spec.env = {{"PMIX_RANK", "9"}};
  supervise::RankPlace place{1, "/errors/3.json", "/s/3", std::nullopt};
  place.of_launcher = {
      {"PMIX_RANK", "3"},          {"SLURM_NTASKS", "4"}, {"HOME", "/"},
      {"OF_A_PLUGIN", "x"},        {"RANK", "7"},         {"DTRAIN_LAUNCH", "secret"},
      {"ROCR_VISIBLE_DEVICES", ""}};
  Environment env;
  for (const std::string& entry : supervise::rank_environment(spec, around, place)) {
    env[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
  }
  CHECK(env["PMIX_RANK"] == "3");
  CHECK(env["SLURM_NTASKS"] == "4");
  CHECK(env["HOME"] == "/home/me");
  CHECK(env["OF_A_PLUGIN"] == "x");
  CHECK(env["RANK"] == "3");
  CHECK_FALSE(env.contains("SLURM_NTASKS_PER_NODE"));
  CHECK_FALSE(env.contains("DTRAIN_LAUNCH"));
  CHECK_FALSE(env.contains("ROCR_VISIBLE_DEVICES"));
}

TEST_CASE("nodes of one machine share its CPUs") {
  wire::AttemptSpec spec = two_by_two();
  spec.nproc = 1;
  spec.machine_ranks = 2;
  CHECK(environment(spec)["OMP_NUM_THREADS"] == "1");
  spec.machine_ranks = 1;
  CHECK(environment(spec).count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("what torchrun sets only by default is the job's to set") {
  wire::AttemptSpec spec = two_by_two();
  CHECK(environment(spec)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1");
  spec.env = {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}, {"PYTHONUNBUFFERED", ""}};
  CHECK(environment(spec)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3");
  CHECK(environment(spec)["PYTHONUNBUFFERED"].empty());
}

TEST_CASE("OMP_NUM_THREADS, where nobody set it: the CPUs asked for, else 1 of several ranks") {
  wire::AttemptSpec spec = two_by_two();
  CHECK(environment(spec)["OMP_NUM_THREADS"] == "1");
  CHECK(environment(spec, {{{"OMP_NUM_THREADS", "8"}}, {}, 0})["OMP_NUM_THREADS"] == "8");
  spec.env["OMP_NUM_THREADS"] = "4";
  CHECK(environment(spec)["OMP_NUM_THREADS"] == "4");
  spec.env.clear();
  spec.rank_threads = 3;
  CHECK(environment(spec)["OMP_NUM_THREADS"] == "3");
  CHECK(environment(spec, {{{"OMP_NUM_THREADS", "8"}}, {}, 0})["OMP_NUM_THREADS"] == "8");
  spec.nproc = 1;
  CHECK(environment(spec)["OMP_NUM_THREADS"] == "3");
  spec.rank_threads = 0;
  CHECK(environment(spec).count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES: none, all that the job has, or as the login has it") {
  wire::AttemptSpec spec = two_by_two();
  const supervise::Surroundings around{{{"CUDA_VISIBLE_DEVICES", "7"}}, {}, 0};
  CHECK(environment(spec, around)["CUDA_VISIBLE_DEVICES"] == "7");
  spec.gpus_assigned = true;
  CHECK(environment(spec, around)["CUDA_VISIBLE_DEVICES"].empty());
  spec.gpus = {2};
  CHECK(environment(spec, around)["CUDA_VISIBLE_DEVICES"] == "2");
}

TEST_CASE(
    "CUDA_DEVICE_ORDER: as nvidia-smi counts, where GPUs are given by number and nobody set it") {
  wire::AttemptSpec spec = two_by_two();
  CHECK(environment(spec).count("CUDA_DEVICE_ORDER") == 0);
  spec.gpus_assigned = true;
  CHECK(environment(spec)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID");
  CHECK(environment(spec, {{{"SLURM_STEP_ID", "0"}}, {}, 0}).count("CUDA_DEVICE_ORDER") == 0);
  spec.env["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST";
  CHECK(environment(spec)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST");
}

TEST_CASE("nothing of an outer attempt shows through") {
  supervise::Surroundings around;
  around.base = {{"DTRAIN_CHECKPOINT", "/old"}, {"DTRAIN_MASTER_LISTEN_FD", "9"}};
  const Environment env = environment(two_by_two(), around);
  CHECK(env.count("DTRAIN_CHECKPOINT") == 0);
  CHECK(env.count("DTRAIN_MASTER_LISTEN_FD") == 0);
}

TEST_CASE("setup has what the ranks have but what is one rank's") {
  wire::AttemptSpec spec = two_by_two();
  spec.env["MINE"] = "1";
  supervise::Surroundings around;
  around.attempt_root = "/attempt-3";
  std::string all;
  for (const std::string& entry : supervise::setup_environment(spec, around)) all += "\n" + entry;
  for (const char* there :
       {"\nMINE=1", "\nWORLD_SIZE=4", "\nNODE_RANK=1", "\nDTRAIN_ATTEMPT_TOKEN=token",
        "\nDTRAIN_ATTEMPT_ROOT=/attempt-3", "\nDTRAIN_JOB_ID=mnist-abcdef"}) {
    CHECK(all.find(there) != std::string::npos);
  }
  for (const char* absent : {"\nRANK=", "\nLOCAL_RANK=", "\nROLE_RANK=", "_ERROR_FILE=",
                             "_REPORT_SOCKET=", "_LISTEN_FD="}) {
    CHECK(all.find(absent) == std::string::npos);
  }
}

TEST_CASE("a bundle's libraries come before all others, for the ranks alone") {
  wire::AttemptSpec spec = two_by_two();
  spec.library_path = "/bundle/lib";
  CHECK(environment(spec, {}).at("LD_LIBRARY_PATH") == "/bundle/lib");
  supervise::Surroundings around;
  around.base = {{"LD_LIBRARY_PATH", "/of/the/node"}};
  CHECK(environment(spec, around).at("LD_LIBRARY_PATH") == "/bundle/lib:/of/the/node");
  spec.env["LD_LIBRARY_PATH"] = "/of/the/job";
  CHECK(environment(spec, around).at("LD_LIBRARY_PATH") == "/bundle/lib:/of/the/job");
  for (const std::string& entry : supervise::setup_environment(spec, around)) {
    CHECK(entry.find("/bundle") == std::string::npos);
  }
}

TEST_CASE("env -0 is read back") {
  const std::string text("A=1\0MULTI=a\nb=c\0EMPTY=\0nonsense\0=x\0A=2\0LAST=y", 46);
  const Environment expected{{"A", "2"}, {"MULTI", "a\nb=c"}, {"EMPTY", ""}, {"LAST", "y"}};
  CHECK(supervise::parse_environment(text) == expected);
  CHECK(supervise::parse_environment("").empty());
}
