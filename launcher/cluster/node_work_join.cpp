#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/node_work.hpp"
#include "launcher/core/address.hpp"
#include "launcher/core/text.hpp"

// Reaching the machine, and what makes it a node of the cluster: the agent's session, its place in
// the cluster, its certificate, its configuration.
namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kLeastDisk = std::int64_t{50} << 20;  // bytes free, to begin with
constexpr seconds kClockTold{60};                            // a difference that is worth a word
constexpr std::chrono::hours kClockLimit{24};                // certificates begin 48 h back
constexpr std::chrono::hours kRenewBefore{24 * 15};

// What another machine can use: no name, and no zone, which means something on one machine alone.
bool is_for_others(const std::string& address) {
  return is_numeric_address(address) && address.find('%') == std::string::npos;
}

}  // namespace

void NodeWork::connect() {
  begin("connect");
  transport_ = provider_.reach(task_.machine);
  connected_ = true;
  begin("agent");
  if (options_.dry_run && !agent_is_there()) {
    report_.steps.push_back({"agent", "install it, " + human_bytes(binary_->content.size())});
    all_is_to_be_done();
    return;
  }
  AgentSessionOptions how;
  how.spread = task_.spread;
  how.name = task_.machine.node.str();
  session_.emplace(AgentSession::open(*transport_, binary_, how));
  if (session_->sent_binary()) did("installed, " + human_bytes(binary_->content.size()));
}

bool NodeWork::agent_is_there() {
  const Captured captured = transport_->run(
      {"/bin/sh", "-c", "test -x \"$HOME/.dtrain/agents/" + binary_->sha256 + "/dtrain-agent\""},
      {}, seconds(30));
  return captured.exit.code == 0;
}

void NodeWork::all_is_to_be_done() {
  const auto would = [&](const char* step, const std::string& text) {
    report_.steps.push_back({step, text});
  };
  would("identity", "make key and certificate");
  for (const FileMount& mount : spec_.file_mounts) {
    would("files", mount.local + " to " + mount.remote);
  }
  for (const wire::SetupList& list : lists()) {
    would("setup", list.list + ": " + counted(list.commands.size(), "command"));
  }
  would("start", task_.head ? "head and node agents" : "node agent");
}

void NodeWork::check() {
  begin("check");
  const wire::HostFacts& host = session_->hello().host;
  if (host.home_free >= 0 && host.home_free < kLeastDisk) {
    throw Error(ErrorCode::exhausted,
                "the disk of " + host.base + " has " +
                    human_bytes(static_cast<std::uint64_t>(host.home_free)) + " free, and " +
                    human_bytes(static_cast<std::uint64_t>(kLeastDisk)) + " are wanted")
        .with_hint("make room there, or set provider.root to a folder on another disk");
  }
  const milliseconds ahead = session_->clock_ahead();
  if (std::chrono::abs(ahead) > kClockLimit) {
    throw Error(ErrorCode::failed, "its clock is " + human_duration(std::chrono::abs(ahead)) +
                                       (ahead.count() > 0 ? " ahead" : " behind"))
        .with_hint("set it (timedatectl set-ntp true): certificates depend on it");
  }
  if (std::chrono::abs(ahead) > kClockTold) {
    warn("its clock is " + human_duration(std::chrono::abs(ahead)) +
         (ahead.count() > 0 ? " ahead" : " behind"));
  }
  if (host.home_on_network) {
    warn("its home is on " + host.home_filesystem + ", so its files are below " + host.base);
  }
}

void NodeWork::find_cluster() {
  if (!task_.head) {
    begin("wait", "for the head");
    try {
      cluster_ = desk_.head(options_.access.stop).cluster;
    } catch (const Error& error) {
      if (!options_.dry_run || error.code() != ErrorCode::not_found) throw;
    }
    return;
  }
  const wire::FoundClusters found =
      session_->find_clusters({spec_.cluster_name, spec_.provider.root});
  const ClusterId& made_for = task_.machine.cluster;
  for (const wire::HeadFound& each : found.clusters) {
    if (!made_for.empty() && each.cluster != made_for.str()) continue;
    if (!cluster_ || (task_.known && each.cluster == task_.known->str())) {
      cluster_ = ClusterId(each.cluster);
    }
  }
  if (!cluster_ && options_.dry_run) return;
  if (cluster_) return;
  cluster_ = made_for.empty() ? make_cluster_id(spec_.cluster_name) : made_for;
}

void NodeWork::open() {
  wire::OpenNode wanted;
  wanted.cluster = *cluster_;
  wanted.node = task_.machine.node;
  wanted.base = spec_.provider.root;
  wanted.prepare = !options_.dry_run;
  wanted.head = task_.head;
  wanted.lists = lists();
  node_ = session_->open_node(wanted);
  report_.machine.root = node_.root;
}

void NodeWork::check_versions() {
  if (node_.agents_current || options_.downgrade) return;
  if (options_.no_restart && !node_.agents.empty()) return;
  begin("check");
  const wire::SessionHello& ours = session_->hello();
  refuse_downgrade(node_.version, ours.agent_version);
  std::set<std::string> seen{ours.agent};
  for (const wire::AgentProcess& each : node_.agents) {
    if (!seen.insert(each.program).second) continue;
    // The file may be gone, the program that runs is not.
    const Captured said = transport_->run(
        {"/proc/" + std::to_string(each.pid) + "/exe", "--version"}, {}, seconds(30));
    if (said.exit.ok())
      refuse_downgrade(said.out.substr(0, said.out.find('\n')), ours.agent_version);
  }
}

void NodeWork::identity() {
  begin("identity");
  if (task_.head) {
    if (options_.dry_run) {
      if (!node_.head) did("make the cluster's CA");
    } else {
      wire::InitHead init;
      init.name = spec_.cluster_name;
      init.provider = to_string(spec_.provider.kind);
      init.expected_nodes = spec_.promised_nodes();
      init.ranks_on_head = !traits_of(spec_.provider.kind).head_asks;
      init.moves = provider_.keeps_agents(task_.machine);
      init.wanted_port = spec_.provider.head_port.value_or(0);
      const bool had = node_.head.has_value();
      const int port = had ? node_.head->port : 0;
      node_.head = session_->init_head(init);
      if (!had) did("made the cluster's CA");
      is_changed_ = is_changed_ || (had && node_.head->port != port);
    }
    if (node_.head) open_desk();
  }
  const std::string ca =
      task_.head ? (node_.head ? node_.head->ca_sha256 : "") : desk_.head({}).found.ca_sha256;
  const std::int64_t soon = session_->hello().host.wall_ms +
                            std::chrono::duration_cast<milliseconds>(kRenewBefore).count();
  certificates_.clear();
  const bool good = node_.expires_ms > soon && !ca.empty() && node_.ca_sha256 == ca;
  if (good && !options_.force) return;
  if (options_.dry_run)
    return did(node_.expires_ms == 0 ? "make key and certificate" : "make a new certificate");
  certificates_ = desk_.sign(task_.machine.node, node_.request);
  did(node_.expires_ms == 0 ? "certificate made" : "certificate renewed");
}

void NodeWork::open_desk() {
  HeadDesk::Head head;
  head.cluster = *cluster_;
  head.found = *node_.head;
  head.agent = session_->hello().agent;
  head.uid = session_->hello().host.uid;
  const auto add = [&](const std::string& as_written) {
    const std::string address = canonical_address(as_written);
    if (is_for_others(address) &&
        std::find(head.addresses.begin(), head.addresses.end(), address) == head.addresses.end()) {
      head.addresses.push_back(address);
    }
  };
  if (!spec_.provider.head_address.empty()) {
    head.addresses.push_back(spec_.provider.head_address);
  } else {
    add(task_.machine.address);
    add(task_.machine.external_address);
    for (const wire::Interface& each : session_->hello().host.interfaces) add(each.address);
  }
  // A session of its own: this thread's may be busy with a long setup when others want to join.
  desk_.open(
      head,
      [&provider = provider_, machine = task_.machine, binary = binary_,
       open = wire::OpenNode{*cluster_, task_.machine.node, spec_.provider.root, false, true, {}},
       transport = std::shared_ptr<Transport>(), session = std::shared_ptr<AgentSession>()](
          const NodeId& node, const std::string& request) mutable {
        if (!session || !session->usable()) {
          transport = provider.reach(machine);
          session = std::make_shared<AgentSession>(AgentSession::open(*transport, binary));
          session->open_node(open);
        }
        return session->sign(node, request);
      });
}

std::string NodeWork::node_config() const {
  nlohmann::json config{{"cluster", cluster_->str()}, {"node", task_.machine.node.str()}};
  config["address"] = own_address();
  if (task_.head) {
    config["head"] = {{"file", node_.head->root + "/head.json"}};
  } else {
    const HeadDesk::Head head = desk_.head({});
    config["head"] = {{"addresses", head.addresses}, {"port", head.found.port}};
  }
  return config.dump(2) + "\n";
}

std::string NodeWork::own_address() const {
  const std::string& told = task_.machine.address;
  if (is_for_others(told)) return canonical_address(told);
  const std::vector<wire::Interface>& interfaces = session_->hello().host.interfaces;
  for (const wire::Interface& each : interfaces) {
    if (!is_ipv6_address(each.address)) return each.address;
  }
  return interfaces.empty() ? told : interfaces.front().address;
}

std::string NodeWork::head_ip() const {
  if (task_.head) return own_address();
  const HeadDesk::Head head = desk_.head({});
  return head.addresses.empty() ? "" : head.addresses.front();
}

void NodeWork::environment() {
  wire::ConfigureNode parts;
  parts.certificates = certificates_;
  parts.capture_environment = !node_.environment || options_.force;
  if (options_.dry_run) {
    begin("environment");
    if (parts.capture_environment) did("capture the login shell's");
    return;
  }
  const std::string config = node_config();
  if (config != node_.config) parts.node_config = config;
  if (parts.certificates.empty() && parts.node_config.empty() && !parts.capture_environment) {
    return;
  }
  begin("environment");
  const wire::Configured configured = session_->configure(parts);
  is_changed_ = is_changed_ || !parts.node_config.empty() || !certificates_.empty();
  if (!configured.warning.empty()) warn(configured.warning);
  if (!configured.changed.empty()) did(join(configured.changed, ", "));
}

}  // namespace dtrain
