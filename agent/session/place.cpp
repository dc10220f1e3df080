#include "agent/session/place.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "agent/head/setup.hpp"
#include "agent/node/config.hpp"
#include "agent/session/agents.hpp"
#include "agent/session/host.hpp"
#include "agent/session/setup.hpp"
#include "agent/session/systemd.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::session {
namespace {

std::string sum_of(std::string_view text) {
  Sha256 sum;
  sum.add(text);
  return sum.hex();
}

// /var/tmp is everybody's: what is ours there must be ours.
void make_base(const fs::path& base) {
  if (base == spare_base()) {
    make_private_folder(base);
  } else {
    make_folders(base);
  }
}

void describe_certificate(const paths::NodeRoot& root, wire::NodeFound& found) {
  try {
    const auto certificate = read_file_if_there(root.identity() / "cert.pem");
    const auto ca = read_file_if_there(root.identity() / "ca.pem");
    if (!certificate || !ca) return;
    found.expires_ms = to_millis(wire::expires(*certificate));
    found.ca_sha256 = sum_of(*ca);
  } catch (const Error&) {
    found.expires_ms = 0;  // damaged: as good as none
    found.ca_sha256.clear();
  }
}

void check_config(const NodePlace& place, const std::string& text) {
  const nlohmann::json json = wire::parse_json(text, "node.json");
  if (wire::get_string(json, "cluster") != place.cluster.str() ||
      wire::get_string(json, "node") != place.node.str()) {
    throw Error(ErrorCode::invalid, "node.json is not of this node");
  }
  wire::get_string(json, "address");
  wire::member(json, "head");
}

// By its mode, or as its owner. Storage that shows this user under another's name lets us write.
bool others_may_write(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return true;
  }
  if (status.st_uid == ::geteuid()) return false;
  return ::geteuid() == 0 || ::access(folder.c_str(), W_OK) != 0;
}

}  // namespace

NodePlace place_of(const wire::OpenNode& which, const wire::HostFacts& host,
                   const fs::path& program) {
  NodePlace place{which.cluster, which.node, host.base, host.home, program};
  if (!which.base.empty()) place.base = expand_base(which.base, host.home);
  if (place.base == spare_base() && spare_base_taken()) {
    throw Error(ErrorCode::denied, place.base.string() + " is not a folder of this user");
  }
  if (which.node.str() == "head") {
    throw Error(ErrorCode::invalid, "a node cannot be called head: its folder is the head's");
  }
  return place;
}

wire::FoundClusters find_clusters(const wire::FindClusters& which, const wire::HostFacts& host) {
  std::set<fs::path> bases = known_bases(host.base, host.home);
  if (!which.base.empty()) {
    bases.merge(known_bases(expand_base(which.base, host.home), host.home));
  }
  wire::FoundClusters found;
  for (const fs::path& base : bases) {
    std::error_code none;
    const bool is_shared = others_may_write(base);
    for (const auto& entry : fs::directory_iterator(base, none)) {
      const paths::HeadRoot root{entry.path() / "head"};
      // Secrets go to a head: where others may have put it, it must be this user's before a word of
      // it is read.
      if (is_shared && (!is_own_folder(entry.path()) || !is_own_folder(root.root))) continue;
      if (!fs::exists(root.config(), none)) continue;
      try {
        wire::HeadFound head = describe_head(root);
        if (head.cluster != entry.path().filename()) continue;
        if (which.name.empty() || which.name == head.name) found.clusters.push_back(head);
      } catch (const Error&) {
        // Half made: nobody can attach to it.
      }
    }
  }
  return found;
}

wire::HeadFound describe_head(const paths::HeadRoot& root) {
  const head::HeadConfig config = head::read_head_config(root);
  wire::HeadFound found;
  found.root = root.root.string();
  found.cluster = config.cluster.str();
  found.name = config.name;
  found.provider = config.provider;
  found.expected_nodes = config.expected_nodes;
  found.wanted_port = config.wanted_port;
  found.port = config.port;
  found.ca_sha256 = sum_of(read_file(root.ca() / "cert.pem"));
  return found;
}

wire::NodeFound open_node(const NodePlace& place, const wire::OpenNode& which) {
  const paths::NodeRoot root = place.root();
  wire::NodeFound found;
  found.root = root.root.string();
  found.head_root = place.head().root.string();
  std::error_code none;
  found.there = fs::exists(root.root, none);
  if (which.prepare) {
    make_base(place.base);
    make_folders(root.root);
    found.request = node::init_node(root, place.cluster, place.node);
  }
  found.config = read_file_if_there(root.config()).value_or("");
  describe_certificate(root, found);
  found.environment = fs::exists(root.login_env(), none);
  found.marks = read_marks(root);
  for (const wire::SetupList& list : which.lists) {
    found.lists.push_back(plan_setup(root, list.list, list.commands));
  }
  found.agents = running_agents(place, which.head);
  found.agents_current = agents_current(place, which.head);
  found.version = version_of(place.watch());
  found.persists = unit_installed(place);
  if (which.head && fs::exists(place.head().config(), none)) {
    found.head = describe_head(place.head());
  }
  return found;
}

std::map<std::string, std::string> read_marks(const paths::NodeRoot& root) {
  std::map<std::string, std::string> marks;
  try {
    const auto text = read_file_if_there(root.marks(), std::size_t{4} << 20);
    if (!text) return marks;
    const nlohmann::json json = wire::parse_json(*text, root.marks().string());
    for (const auto& [name, value] : json.items()) {
      if (value.is_string()) marks[name] = value.get<std::string>();
    }
  } catch (const Error&) {
    marks.clear();  // damaged: all is done anew
  }
  return marks;
}

wire::Configured configure_node(const NodePlace& place, const wire::ConfigureNode& parts) {
  const paths::NodeRoot root = place.root();
  wire::Configured done;
  if (!parts.certificates.empty()) {
    const std::string before = read_file_if_there(root.identity() / "cert.pem").value_or("");
    node::install_identity(root, parts.certificates);
    if (read_file(root.identity() / "cert.pem") != before)
      done.changed.emplace_back("certificates");
  }
  if (!parts.node_config.empty() &&
      read_file_if_there(root.config()).value_or("") != parts.node_config) {
    check_config(place, parts.node_config);
    write_file_atomic(root.config(), parts.node_config);
    node::read_node_config(root);
    done.changed.emplace_back("config");
  }
  if (parts.capture_environment) {
    const auto before = read_file_if_there(root.login_env());
    done.warning = node::capture_environment(root);
    if (read_file_if_there(root.login_env()) != before) done.changed.emplace_back("environment");
  }
  if (!parts.marks.empty()) {
    std::map<std::string, std::string> marks = read_marks(root);
    const auto before = marks;
    for (const auto& [name, value] : parts.marks) {
      if (value.empty()) {
        marks.erase(name);
      } else {
        marks[name] = value;
      }
    }
    if (marks != before) {
      write_file_atomic(root.marks(), wire::dump(nlohmann::json(marks)) + "\n");
      done.changed.emplace_back("marks");
    }
  }
  return done;
}

}  // namespace dtrain::session
