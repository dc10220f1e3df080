#include "launcher/cluster/state.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

fs::path state_file(const std::string& name) {
  return paths::cluster_state(name) / "cluster.json";
}

fs::path temporary_mark(const std::string& name) {
  return paths::cluster_state(name) / "temporary";
}

Error no_cluster() {
  return Error(ErrorCode::unreachable, "no cluster is up")
      .with_hint("dtrain up configs/local.yaml, or for one job: dtrain submit --local …");
}

}  // namespace

ClusterState remembered(const ClusterSpec& spec, const ClusterId& id) {
  ClusterState state;
  state.name = spec.cluster_name;
  state.id = id;
  state.provider = to_string(spec.provider.kind);
  state.spec = to_json(spec);
  state.source = spec.source;
  state.created = rfc3339(std::chrono::system_clock::now());
  return state;
}

nlohmann::json to_json(const ClusterState& state) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Machine& machine : state.nodes) {
    nlohmann::json node{{"node", machine.node.str()},
                        {"address", machine.address},
                        {"root", machine.root.string()}};
    if (machine.host) node["host"] = to_json(*machine.host);
    const auto add = [&](const char* key, const std::string& text) {
      if (!text.empty()) node[key] = text;
    };
    add("id", machine.id);
    add("type", machine.type);
    add("launch", machine.launch);
    add("zone", machine.zone);
    add("external_address", machine.external_address);
    nodes.push_back(std::move(node));
  }
  return {{"version", 1},
          {"name", state.name},
          {"id", state.id.str()},
          {"provider", state.provider},
          {"nodes", nodes},
          {"head_root", state.head_root.string()},
          {"head_socket", state.head_socket.string()},
          {"agent", state.agent},
          {"spec", state.spec},
          {"source", state.source},
          {"created", state.created},
          {"prepared", state.prepared}};
}

ClusterState cluster_state_from_json(const nlohmann::json& json) {
  ClusterState state;
  state.name = wire::get_string(json, "name");
  state.id = ClusterId(wire::get_string(json, "id"));
  state.provider = wire::get_string(json, "provider");
  state.head_root = wire::get_string(json, "head_root");
  state.head_socket = wire::get_string(json, "head_socket", "");
  state.agent = wire::get_string(json, "agent");
  state.spec = wire::member(json, "spec");
  state.source = wire::get_string(json, "source", "");
  state.created = wire::get_string(json, "created", "");
  state.prepared = wire::get_bool(json, "prepared", false);
  for (const nlohmann::json& node : wire::member(json, "nodes")) {
    Machine machine;
    machine.node = NodeId(wire::get_string(node, "node"));
    machine.address = wire::get_string(node, "address");
    machine.root = wire::get_string(node, "root");
    machine.id = wire::get_string(node, "id", "");
    machine.type = wire::get_string(node, "type", "");
    machine.launch = wire::get_string(node, "launch", "");
    machine.zone = wire::get_string(node, "zone", "");
    machine.external_address = wire::get_string(node, "external_address", "");
    if (!machine.id.empty()) machine.cluster = state.id;
    machine.head = state.nodes.empty();
    if (node.contains("host")) machine.host = host_spec_from_json(node["host"]);
    state.nodes.push_back(std::move(machine));
  }
  return state;
}

std::optional<ClusterState> load_cluster(const std::string& name) {
  const fs::path file = state_file(name);
  const std::optional<std::string> text = read_file_if_there(file);
  if (!text) return std::nullopt;
  try {
    return cluster_state_from_json(wire::parse_json(*text, "the file"));
  } catch (Error& error) {
    error.at({file.string(), 0, 0});
    error.with_hint("dtrain down -c " + name + " clears it away");
    throw;
  }
}

void save_cluster(const ClusterState& state) {
  make_folders(paths::cluster_state(state.name));
  write_file_atomic(state_file(state.name), to_json(state).dump(2) + "\n");
}

std::string choose_cluster(const std::string& wanted) {
  std::string name = wanted;
  if (name.empty()) {
    const char* variable = std::getenv("DTRAIN_CLUSTER");
    if (variable != nullptr) name = variable;
  }
  if (name.empty()) name = current_cluster().value_or("");
  if (name.empty()) throw no_cluster();
  if (!valid_cluster_name(name)) {
    throw Error(ErrorCode::usage, "\"" + name + "\" cannot be the name of a cluster")
        .with_hint("letters, digits and . _ -, as in cluster_name of the cluster's YAML");
  }
  return name;
}

std::optional<std::string> current_cluster() {
  std::optional<std::string> text = read_file_if_there(paths::current_cluster(), 4096);
  if (!text) return std::nullopt;
  while (!text->empty() && text->back() == '\n') text->pop_back();
  if (!valid_cluster_name(*text)) return std::nullopt;
  return text;
}

void set_current_cluster(const std::string& name) {
  if (current_cluster() == name) return;
  make_folders(paths::state_home());
  write_file_atomic(paths::current_cluster(), name + "\n");
}

void clear_current_cluster(const std::string& name) {
  if (current_cluster() != name) return;
  std::error_code ignored;
  fs::remove(paths::current_cluster(), ignored);
}

bool is_temporary(const std::string& name) {
  return read_file_if_there(temporary_mark(name)).has_value();
}

void set_temporary(const std::string& name, bool temporary) {
  if (temporary) {
    write_file_atomic(temporary_mark(name), "");
  } else if (is_temporary(name)) {
    fs::remove(temporary_mark(name));
  }
}

ClusterLock ClusterLock::take(const std::string& name, const std::function<void()>& waiting,
                              const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kTurn{50};
  std::mutex mutex;
  std::condition_variable_any stopped;
  const fs::path path = paths::cluster_state(name) / "lock";
  bool told = false;
  while (true) {
    make_folders(path.parent_path());
    UniqueFd fd;
    try {
      fd = open_file(path, O_RDWR | O_CREAT);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;  // a `down` took the folder away
      throw;
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) throw errno_error("cannot lock " + path.string(), errno);
      if (!told && waiting) waiting();
      told = true;
      // flock() itself would wait on after a stop.
      std::unique_lock lock(mutex);
      stopped.wait_for(lock, stop, kTurn, [] { return false; });
      if (!stop.stop_requested()) continue;
      throw Error(ErrorCode::failed,
                  "stopped, while another up or down of " + name + " is at work");
    }
    // The one before us may have been a `down`, which removes the file that we now hold.
    struct stat held {};
    struct stat there {};
    if (::fstat(fd.get(), &held) == 0 && ::stat(path.c_str(), &there) == 0 &&
        held.st_ino == there.st_ino && held.st_dev == there.st_dev) {
      return ClusterLock(std::move(fd));
    }
  }
}

}  // namespace dtrain
