#include "trainer/core/environment.hpp"

#include <doctest/doctest.h>

#include <map>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", "1"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"}};
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

std::string refusal(const Variables& variables) {
  return message_of<Error>([&] { read(variables); });
}

}  // namespace

TEST_CASE("without RANK the program is alone") {
  const Environment env = read({{"WORLD_SIZE", "nonsense that nobody looks at"}});
  CHECK(env.started_by == StartedBy::nobody);
  CHECK(env.world_size == 1);
  CHECK(env.rank == 0);
  CHECK(env.one_node());
  CHECK_FALSE(env.report_socket.has_value());
}

TEST_CASE("torchrun's variables") {
  const Environment env = read(torchrun());
  CHECK(env.started_by == StartedBy::torchrun);
  CHECK(env.rank == 3);
  CHECK(env.world_size == 4);
  CHECK(env.local_rank == 1);
  CHECK(env.node_rank == 1);
  CHECK(env.attempt == 3);
  CHECK(env.agent_store);
  CHECK(env.master_addr == "10.0.0.1");
  CHECK(env.master_port == 29500);
  CHECK(*env.error_file == "/tmp/e.json");
  CHECK_FALSE(env.one_node());
}

TEST_CASE("dtrain's variables") {
  Variables variables = torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["RANK"] = "0";
  variables["NODE_RANK"] = "0";
  variables["LOCAL_RANK"] = "0";
  variables["DTRAIN_JOB_ID"] = "mnist-k3x7qa";
  variables["DTRAIN_ATTEMPT"] = "5";
  variables["DTRAIN_NODE_IPS"] = "10.0.0.1\n10.0.0.2\n";
  variables["DTRAIN_REPORT_SOCKET"] = "/tmp/s";
  variables["DTRAIN_STORAGE_PATH"] = "/storage";
  variables["DTRAIN_CHECKPOINT"] = "/storage/checkpoints/checkpoint_000001";
  variables["DTRAIN_MASTER_LISTEN_FD"] = "7";
  const Environment env = read(variables);
  CHECK(env.started_by == StartedBy::dtrain);
  CHECK(env.job == "mnist-k3x7qa");
  CHECK(env.attempt == 5);
  CHECK(env.node_ips == std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  CHECK(*env.report_socket == "/tmp/s");
  CHECK(*env.storage_path == "/storage");
  CHECK(env.checkpoint->filename() == "checkpoint_000001");
  CHECK(*env.master_listen_fd == 7);

  SUBCASE("the socket of the master port is rank 0's alone") {
    variables["RANK"] = "1";
    CHECK_FALSE(read(variables).master_listen_fd.has_value());
  }
  SUBCASE("an empty DTRAIN_CHECKPOINT is none") {
    variables["DTRAIN_CHECKPOINT"] = "";
    CHECK_FALSE(read(variables).checkpoint.has_value());
  }
  SUBCASE("fewer addresses than nodes") {
    variables["NODE_RANK"] = "2";
    CHECK(contains(refusal(variables), "DTRAIN_NODE_IPS has only 2"));
  }
}

TEST_CASE("wrong variables are named with their value") {
  CHECK(contains(refusal(with(torchrun(), "WORLD_SIZE", "two")), "WORLD_SIZE='two'"));
  CHECK(contains(refusal(with(torchrun(), "WORLD_SIZE", "4x")), "WORLD_SIZE='4x'"));
  CHECK(contains(refusal(with(torchrun(), "RANK", "4")), "RANK=4 is not within 0 to 3"));
  CHECK(contains(refusal(with(torchrun(), "RANK", "-1")), "RANK=-1"));
  CHECK(contains(refusal(with(torchrun(), "LOCAL_RANK", "2")), "LOCAL_RANK=2"));
  CHECK(contains(refusal(with(torchrun(), "MASTER_PORT", "65536")), "MASTER_PORT=65536"));
  CHECK(contains(refusal(with(torchrun(), "MASTER_PORT", "99999999999")), "MASTER_PORT="));
  CHECK(contains(refusal(with(torchrun(), "MASTER_ADDR", "")), "MASTER_ADDR"));
  CHECK(contains(refusal(with(torchrun(), "TORCHELASTIC_USE_AGENT_STORE", "yes")), "'yes'"));
  for (const char* name : {"WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"}) {
    Variables variables = torchrun();
    variables.erase(name);
    CHECK(contains(refusal(variables), std::string("RANK is set but ") + name));
  }
}

TEST_CASE("srun's variables, and where its ranks meet") {
  const Variables srun{{"SLURM_PROCID", "5"},       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "1"},      {"SLURM_NODEID", "2"},
                       {"SLURM_JOB_ID", "4711"},    {"SLURM_JOB_NODELIST", "gpu[08-09,11],big1"},
                       {"SLURM_RESTART_COUNT", "1"}};
  const Environment env = read(srun);
  CHECK(env.started_by == StartedBy::slurm);
  CHECK(env.rank == 5);
  CHECK(env.world_size == 7);
  CHECK(env.local_rank == 1);
  CHECK(env.node_rank == 2);
  CHECK(env.attempt == 2);
  CHECK(env.run == "4711");
  CHECK(env.master_addr == "gpu08");
  CHECK(env.master_port >= 20000);
  CHECK(env.master_port < 30000);
  CHECK(read(with(srun, "SLURM_PROCID", "0")).master_port == env.master_port);
  CHECK(read(with(srun, "SLURM_JOB_ID", "4712")).master_port != env.master_port);
  CHECK(read(with(srun, "SLURM_TASKS_PER_NODE", "1,2(x2),2")).local_world_size == 2);
  CHECK(read(with(srun, "MASTER_PORT", "29500")).master_port == 29500);

  const Environment one = read(with(srun, "SLURM_JOB_NODELIST", "gpu08"));
  CHECK(one.one_node());
  CHECK(one.master_addr == "127.0.0.1");

  const auto problem = [](const Variables& variables) {
    return message_of<Error>([&] { read(variables); });
  };
  CHECK(contains(problem(with(srun, "SLURM_PROCID", "7")), "SLURM_PROCID=7"));
  CHECK(contains(problem(with(srun, "SLURM_JOB_NODELIST", "gpu[1-")), "gpu[1-"));
  CHECK(contains(problem(with(srun, "SLURM_JOB_NODELIST", "gpu[9-1]")), "gpu[9-1]"));
  CHECK(contains(problem(with(srun, "SLURM_JOB_NODELIST", "gpu[1-99999999]")), "gpu[1-9999"));
}

TEST_CASE("torchrun's variables come before Slurm's") {
  Variables both = torchrun();
  both.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  CHECK(read(both).started_by == StartedBy::torchrun);
}

TEST_CASE("the GPU of a rank: its own where Slurm shows it no others") {
  const auto index = [](const Variables& variables, int visible) {
    return gpu_index(read(variables), visible);
  };
  Variables srun{{"SLURM_PROCID", "3"},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_JOB_NODELIST", "n[1-2]"}};
  CHECK(index(srun, 2) == 1);
  CHECK(index(srun, 1) == 0);  // a binding that leaves one
  CHECK(index(with(srun, "SLURM_GPUS_PER_TASK", "1"), 1) == 0);
  CHECK(index(with(srun, "SLURM_GPUS_PER_TASK", "a100:2"), 2) == 0);
  CHECK(index(with(srun, "SLURM_GPUS_PER_TASK", "2"), 8) == 1);  // it was not bound
  CHECK(index(with(srun, "SLURM_GPUS_PER_TASK", "many"), 8) == 1);
  CHECK(index(torchrun(), 2) == 1);
  CHECK(message_of<Error>([&] { index(torchrun(), 1); }) ==
        "LOCAL_RANK=1 but only 1 GPU is visible");
  // torchrun inside of a Slurm job: its ranks share what it sees.
  CHECK(index(with(torchrun(), "SLURM_GPUS_PER_TASK", "2"), 2) == 1);
}
