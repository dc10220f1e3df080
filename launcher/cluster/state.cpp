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
#include "launcher/core/text.hpp"
#include "launcher/spec/host_fields.hpp"

namespace dtrain {

using wire::if_set;
using wire::or_default;

namespace {

fs::path state_file(const std::string& name) {
  return paths::cluster_state(name) / "cluster.json";
}

fs::path temporary_mark(const std::string& name) {
  return paths::cluster_state(name) / "temporary";
}

fs::path unnoted_mark(const std::string& name) {
  return paths::cluster_state(name) / "unnoted";
}

Error no_cluster() {
  return Error(ErrorCode::unreachable, "no cluster is up")
      .with_hint("dtrain up, or for one job: dtrain submit --local …");
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

// What is remembered of it.
void fields(wire::Is<Machine> auto& m, auto&& f) {
  f("node", wire::any_id(m.node), "address", m.address, "root", m.root, "host", if_set(m.host),
    "id", if_set(m.id), "type", if_set(m.type), "launch", if_set(m.launch), "zone", if_set(m.zone),
    "external_address", if_set(m.external_address));
}

void fields(wire::Is<ClusterState> auto& m, auto&& f) {
  f("name", m.name, "id", wire::any_id(m.id), "provider", m.provider, "nodes", m.nodes, "head_root",
    m.head_root, "head_socket", or_default(m.head_socket), "agent", m.agent, "spec", m.spec,
    "source", or_default(m.source), "created", or_default(m.created), "prepared",
    or_default(m.prepared));
}

nlohmann::json to_json(const ClusterState& state) {
  nlohmann::json json = wire::written(state);
  json["version"] = 1;
  return json;
}

ClusterState cluster_state_from_json(const nlohmann::json& json) {
  ClusterState state;
  wire::read(json, state);
  for (Machine& machine : state.nodes) {
    if (!machine.id.empty()) machine.cluster = state.id;
  }
  if (!state.nodes.empty()) state.nodes.front().head = true;
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

void set_unnoted(const std::string& name, const std::string& source) {
  write_file_atomic(unnoted_mark(name), source);
}

void clear_unnoted(const std::string& name) {
  std::error_code ignored;
  fs::remove(unnoted_mark(name), ignored);
}

void refuse_unnoted(const std::string& name) {
  const auto source = read_file_if_there(unnoted_mark(name));
  if (!source || fs::exists(state_file(name))) return;
  throw Error(ErrorCode::conflict, "an up of cluster " + name +
                                       " on machines elsewhere was cut off: what it has left there "
                                       "is not known here")
      .with_hint("dtrain down " + (source->empty() ? "CLUSTER.yaml" : shell_quote(*source)) +
                 " -c " + name + " finds it");
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
