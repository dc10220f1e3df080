#include "trainer/core/environment.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "trainer/core/error.hpp"
#include "trainer/core/slurm.hpp"

namespace dtrain::train {
namespace {

// Reads whole numbers, and says which variable was wrong.
class Numbers {
 public:
  // `set`: the variable that makes others needed.
  explicit Numbers(const Lookup& lookup, std::string set = "RANK")
      : lookup_(lookup), set_(std::move(set)) {}

  std::optional<int> find(const std::string& name, int least, int most) const {
    const std::optional<std::string> text = lookup_(name);
    if (!text) return std::nullopt;
    int value = 0;
    const char* end = text->data() + text->size();
    const auto [rest, error] = std::from_chars(text->data(), end, value);
    if (error != std::errc() || rest != end) {
      throw Error("environment: " + name + "='" + *text + "' is not a whole number");
    }
    if (value < least || value > most) {
      throw Error("environment: " + name + "=" + *text + " is not within " + std::to_string(least) +
                  " to " + std::to_string(most));
    }
    return value;
  }

  int need(const std::string& name, int least, int most) const {
    const std::optional<int> value = find(name, least, most);
    if (!value) {
      throw Error("environment: " + set_ + " is set but " + name +
                  " is not; start the program with dtrain submit, torchrun or srun, or unset " +
                  set_);
    }
    return *value;
  }

 private:
  const Lookup& lookup_;
  std::string set_;
};

std::optional<std::filesystem::path> path_of(const Lookup& lookup, const std::string& name) {
  const std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) return std::nullopt;
  return std::filesystem::path(*text);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::string::size_type begin = 0;
  while (begin < text.size()) {
    auto end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string first_of(const Lookup& lookup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto text = lookup(name); text && !text->empty()) return *text;
  }
  return {};
}

void read_slurm(const Lookup& lookup, Environment& env) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const Numbers numbers(lookup, "SLURM_PROCID");
  env.started_by = StartedBy::slurm;
  env.world_size = numbers.need("SLURM_NTASKS", 1, kMost);
  env.rank = numbers.need("SLURM_PROCID", 0, env.world_size - 1);
  env.local_rank = numbers.need("SLURM_LOCALID", 0, env.world_size - 1);
  env.node_rank = numbers.need("SLURM_NODEID", 0, kMost);
  // "2", or with the GPUs' type "a100:2"; what else Slurm may write there says nothing to us.
  const std::string own = first_of(lookup, {"SLURM_GPUS_PER_TASK"});
  const std::string count = own.substr(own.rfind(':') + 1);
  int gpus = 0;
  const auto [rest, error] = std::from_chars(count.data(), count.data() + count.size(), gpus);
  if (error == std::errc() && rest == count.data() + count.size() && gpus > 0) {
    env.gpus_per_task = gpus;
  }
  env.attempt = numbers.find("SLURM_RESTART_COUNT", 0, kMost - 1).value_or(0) + 1;

  const std::string list =
      first_of(lookup, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (list.empty()) throw Error("environment: SLURM_PROCID is set but SLURM_JOB_NODELIST is not");
  const std::vector<std::string> hosts = slurm_hosts(list);
  const std::string tasks = first_of(lookup, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto node = static_cast<std::size_t>(env.node_rank);
  if (hosts.size() == 1) {
    env.local_world_size = env.world_size;
  } else if (const std::vector<int> by_node =
                 tasks.empty() ? std::vector<int>{} : slurm_tasks_by_node(tasks);
             node < by_node.size()) {
    env.local_world_size = by_node[node];
  } else {  // as srun deals them out when nothing else is asked for
    env.local_world_size =
        std::max(env.local_rank + 1, env.world_size / static_cast<int>(hosts.size()));
  }
  env.master_addr = first_of(lookup, {"MASTER_ADDR"});
  if (env.master_addr.empty()) env.master_addr = hosts.size() == 1 ? "127.0.0.1" : hosts.front();
  const auto port = numbers.find("MASTER_PORT", 1, 65535);
  env.master_port = port ? static_cast<std::uint16_t>(*port)
                         : slurm_port(first_of(lookup, {"SLURM_JOB_ID", "SLURM_JOBID"}),
                                      first_of(lookup, {"SLURM_STEP_ID", "SLURM_STEPID"}));
}

}  // namespace

int gpu_index(const Environment& env, int visible) {
  const bool own = env.gpus_per_task && visible == *env.gpus_per_task;
  if (own || (env.started_by == StartedBy::slurm && visible == 1)) return 0;
  if (env.local_rank < visible) return env.local_rank;
  throw Error("LOCAL_RANK=" + std::to_string(env.local_rank) + " but only " +
              std::to_string(visible) + (visible == 1 ? " GPU is" : " GPUs are") + " visible");
}

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Environment read_environment(const Lookup& lookup) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const Numbers numbers(lookup);
  Environment env;

  env.storage_path = path_of(lookup, "DTRAIN_STORAGE_PATH");
  env.checkpoint = path_of(lookup, "DTRAIN_CHECKPOINT");
  env.report_socket = path_of(lookup, "DTRAIN_REPORT_SOCKET");
  env.error_file = path_of(lookup, "TORCHELASTIC_ERROR_FILE");
  env.job = lookup("DTRAIN_JOB_ID").value_or("");
  env.run = first_of(lookup, {"DTRAIN_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"});
  if (!lookup("RANK")) {
    if (lookup("SLURM_PROCID") && lookup("SLURM_NTASKS")) read_slurm(lookup, env);
    return env;
  }

  env.started_by = env.job.empty() ? StartedBy::torchrun : StartedBy::dtrain;
  env.world_size = numbers.need("WORLD_SIZE", 1, kMost);
  env.rank = numbers.need("RANK", 0, env.world_size - 1);
  env.local_world_size = numbers.find("LOCAL_WORLD_SIZE", 1, env.world_size).value_or(1);
  env.local_rank = numbers.find("LOCAL_RANK", 0, env.local_world_size - 1).value_or(0);
  if (const auto node = numbers.find("NODE_RANK", 0, kMost)) {
    env.node_rank = *node;
  } else {
    env.node_rank = numbers.find("GROUP_RANK", 0, kMost).value_or(0);
  }
  env.attempt = numbers.find("TORCHELASTIC_RESTART_COUNT", 0, kMost - 1).value_or(0) + 1;
  if (const auto attempt = numbers.find("DTRAIN_ATTEMPT", 1, kMost)) env.attempt = *attempt;

  env.master_port = static_cast<std::uint16_t>(numbers.need("MASTER_PORT", 1, 65535));
  const std::optional<std::string> master = lookup("MASTER_ADDR");
  if (!master || master->empty()) {
    throw Error("environment: RANK is set but MASTER_ADDR is not");
  }
  env.master_addr = *master;
  const std::string agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("False");
  if (agent_store != "True" && agent_store != "False") {
    throw Error("environment: TORCHELASTIC_USE_AGENT_STORE='" + agent_store +
                "' is neither True nor False");
  }
  env.agent_store = agent_store == "True";
  if (env.rank == 0 && !env.agent_store) {
    env.master_listen_fd = numbers.find("DTRAIN_MASTER_LISTEN_FD", 0, kMost);
  }
  env.node_ips = lines_of(lookup("DTRAIN_NODE_IPS").value_or(""));
  if (!env.node_ips.empty() && static_cast<std::size_t>(env.node_rank) >= env.node_ips.size()) {
    throw Error("environment: NODE_RANK=" + std::to_string(env.node_rank) +
                " but DTRAIN_NODE_IPS has only " + std::to_string(env.node_ips.size()) + " lines");
  }
  return env;
}

}  // namespace dtrain::train
