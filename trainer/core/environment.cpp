#include "trainer/core/environment.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// Reads whole numbers, and says which variable was wrong.
class Numbers {
 public:
  explicit Numbers(const Lookup& lookup) : lookup_(lookup) {}

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
      throw Error("environment: RANK is set but " + name +
                  " is not; start the program with dtrain submit or torchrun, or unset RANK");
    }
    return *value;
  }

 private:
  const Lookup& lookup_;
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

}  // namespace

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
  if (!lookup("RANK")) return env;

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
