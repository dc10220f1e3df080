#include "launcher/provider/slurm/provider.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/slurm/job_transport.hpp"
#include "launcher/provider/slurm/options.hpp"
#include "launcher/provider/wanted_types.hpp"
#include "launcher/remote/local.hpp"

namespace dtrain::slurm {
namespace {

constexpr std::chrono::milliseconds kLookLimit{30000};
constexpr std::chrono::milliseconds kClearLimit{600000};
// What a login shell prints besides stands in front of the mark. Where Slurm's commands are found
// without one, its files are not read.
constexpr const char* kLook = R"sh(
tell() { echo; echo dtrain-place; echo "$HOME"; env | grep -E '^(PATH|LD_LIBRARY_PATH|SLURM_CONF)='; }
if command -v sbatch >/dev/null; then tell; else
exec "${SHELL:-/bin/sh}" -l -c 'command -v sbatch >/dev/null || exit 127; echo; echo dtrain-place; echo "$HOME"; env | grep -E "^(PATH|LD_LIBRARY_PATH|SLURM_CONF)="'
fi
)sh";

// $0 is the shared folder, $1 the cluster's name, or its id. Where the head of this user's newest
// cluster of this name is: this machine's name, and of the head's its name, what reaches it and the
// file.
constexpr const char* kShared =
    R"sh(case $0 in '~') d=$HOME ;; '~/'*) d=$HOME/${0#'~/'} ;; *) d=$0 ;; esac; )sh";
constexpr const char* kTellLogin =
    R"sh(echo; echo dtrain-login; uname -n
ls -t "$d/$1"-??????/head.host 2>/dev/null | while IFS= read -r f; do
  [ -O "$f" ] && cat "$f" && echo "$f" && break
done; :)sh";
constexpr const char* kWriteLogin =
    R"sh(name=$(hostname -f 2>/dev/null); case $name in '' | localhost*) name=$(uname -n) ;; esac
umask 077; mkdir -p "$d/$1" && cd "$d/$1" && { uname -n; echo "$name"; } >head.host.$$ && mv -f head.host.$$ head.host)sh";

std::string setting(const ClusterSpec& spec, const char* name) {
  const auto found = spec.provider.other.find(name);
  return found != spec.provider.other.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.c_str();
}

}  // namespace

SlurmProvider::SlurmProvider(ClusterSpec spec, fs::path state, Access access)
    : spec_(std::move(spec)) {
  login_.node = NodeId(kLoginNode);
  login_.head = true;
  const std::string there = setting(spec_, "login_node");
  if (there.empty()) {
    login_.address = host_name();
    return;
  }
  HostSpec host;
  host.node = login_.node;
  host.host = there;
  host.ssh_user = spec_.auth.ssh_user;
  host.ssh_port = spec_.auth.ssh_port;
  host.ssh_private_key = spec_.auth.ssh_private_key;
  host.ssh_proxy_command = spec_.auth.ssh_proxy_command;
  host.ssh_proxy_jump = spec_.auth.ssh_proxy_jump;
  login_.address = there;
  login_.external_address = there;
  login_.host = host;
  ssh_ = std::make_unique<SshProvider>(std::vector<HostSpec>{host}, std::move(state),
                                       std::move(access));
}

std::vector<Machine> SlurmProvider::list() {
  if (spec_.head_moves()) return list_head();
  return {login_};
}

// The partition; empty: Slurm's default.
Offer SlurmProvider::offer(const std::string& type) {
  Offer offer{setting(spec_, "partition"), {}};
  for (const NodeType& each : spec_.node_types) {
    const auto own =
        each.name == type ? each.node_config.find("partition") : each.node_config.end();
    if (own != each.node_config.end() && own->is_string()) offer.zone = own->get<std::string>();
  }
  return offer;
}

bool SlurmProvider::keeps_agents(const Machine& machine) const {
  return spec_.head_moves() && machine.node.str() == kHeadNode;
}

void SlurmProvider::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  for (const Request& request : requests) {
    for (const NodeId& node : request.nodes) {
      MachineOutcome outcome{login_, std::nullopt};
      if (spec_.head_moves() && node.str() == kHeadNode) {
        try {
          outcome.machine = ask_for_head(request.cluster);
        } catch (const Error& error) {
          outcome.machine = {};
          outcome.machine.node = node;
          outcome.machine.head = true;
          outcome.machine.state = MachineState::gone;
          outcome.error = error;
        }
      } else if (node != login_.node) {
        outcome.machine = {};
        outcome.machine.node = node;
        outcome.machine.state = MachineState::gone;
        outcome.error = Error(ErrorCode::not_found, "with provider slurm the head asks for nodes");
      }
      tell(outcome);
    }
  }
}

void SlurmProvider::release(const std::vector<Machine>& given, const OutcomeSink& tell) {
  std::vector<Machine> asked;
  for (const Machine& machine : given) {
    if (machine.node == login_.node) {
      tell({machine, std::nullopt});
    } else if (keeps_agents(machine)) {  // before the others: it asks for no more of them
      release_head(machine, tell);
    } else {
      asked.push_back(machine);
    }
  }
  if (!asked.empty()) machines().release(asked, tell);
}

void SlurmProvider::follow(const std::vector<Machine>& followed, const OutcomeSink& tell,
                           const std::stop_token& stop) {
  std::vector<Machine> others;
  for (const Machine& machine : followed) {
    if (keeps_agents(machine)) {
      follow_head(machine, tell, stop);
    } else {
      others.push_back(machine);
    }
  }
  machines().follow(others, tell, stop);
}

std::string SlurmProvider::shared_folder() const {
  const std::string shared = setting(spec_, "shared_folder");
  return shared.empty() ? "~/.dtrain" : shared;
}

std::unique_ptr<Transport> SlurmProvider::login_node() {
  std::unique_ptr<Transport> first =
      ssh_ ? ssh_->reach(login_) : std::make_unique<LocalTransport>();
  if (spec_.head_moves()) return first;
  // Each time: a connection that is made anew may lead elsewhere.
  const Captured said = first->run(
      {"sh", "-c", std::string(kShared) + kTellLogin, shared_folder(), spec_.cluster_name}, {},
      kLookLimit);
  const std::vector<std::string> lines = split(said.out, '\n');
  const auto mark = std::find(lines.begin(), lines.end(), "dtrain-login");
  if (lines.end() - mark < 5 || mark[1] == mark[2]) return first;
  const std::string host = printable(mark[3], false);
  const std::string hint =
      "if it is gone for good, remove " + mark[4] + ", and dtrain up starts another head";
  if (!ssh_) {
    throw Error(ErrorCode::unreachable, "the head of cluster " + spec_.cluster_name + " is on " +
                                            host + ", and this is " + mark[1])
        .with_hint("type it there, or name a provider.login_node; " + hint);
  }
  try {
    ssh::check_host(host);
    HostSpec there = *login_.host;
    there.node = NodeId(host);
    there.host = host;
    return ssh_->reach_behind(login_, there);
  } catch (Error& error) {
    error.while_doing("reaching " + host + ", where the head is, through " + login_.address);
    throw error.with_hint(error.hint().empty() ? hint : error.hint() + "; " + hint);
  }
}

void SlurmProvider::head_starts(Transport& there, const ClusterId& cluster) {
  if (spec_.head_moves()) return;
  run_or_throw(there,
               {"sh", "-c", std::string(kShared) + kWriteLogin, shared_folder(), cluster.str()}, {},
               kLookLimit, "writing where the head is");
}

std::unique_ptr<Transport> SlurmProvider::reach(const Machine& machine) {
  if (keeps_agents(machine)) {
    return std::make_unique<JobTransport>(Client(login_node(), place().environment),
                                          [this] { return head_job(); });
  }
  if (machine.node == login_.node) return login_node();
  throw Error(ErrorCode::not_found, "nobody logs in to " + machine.node.str() +
                                        ", a node of Slurm's: it is reached through the head");
}

void SlurmProvider::hang_up() {
  if (ssh_) ssh_->hang_up();
}

const SlurmProvider::Place& SlurmProvider::place() {
  const std::lock_guard lock(mutex_);
  if (place_) return *place_;
  const std::unique_ptr<Transport> transport = login_node();
  const Captured looked = transport->run({"sh", "-c", kLook}, {}, kLookLimit);
  const std::vector<std::string> lines = split(looked.out, '\n');
  const auto mark = std::find(lines.begin(), lines.end(), "dtrain-place");
  if (lines.end() - mark < 2) {
    throw Error(ErrorCode::not_found, "there is no sbatch on " + login_.address)
        .with_hint("provider.login_node names a machine that has Slurm's commands");
  }
  Place found;
  const std::string& home = *(mark + 1);
  for (auto line = mark + 2; line != lines.end(); ++line) {
    if (line->find('=') != std::string::npos) found.environment.push_back(*line);
  }
  std::string shared = shared_folder();
  if (shared == "~" || shared.starts_with("~/")) shared = home + shared.substr(1);
  found.home = home;
  found.shared = shared;
  return place_.emplace(std::move(found));
}

wire::WantedMachines SlurmProvider::wanted(const ClusterId& cluster) {
  wire::WantedMachines wanted;
  wanted.provider = "slurm";
  wanted.environment = place().environment;
  wanted.boot = (place().shared / cluster.str() / "boot").string();
  if (!spec_.provider.head_address.empty()) wanted.addresses = {spec_.provider.head_address};
  wanted.max_workers = most_workers(spec_);
  if (spec_.head_moves()) {
    const HeadChain::Wanted head = wanted_head(cluster);
    wanted.head = {head.options, head.script};
  }
  for (const ClusterSpec::Workers& workers : spec_.workers()) {
    // A machine that is the head's alone.
    if (spec_.head_moves() && workers.type == spec_.head_node_type && workers.most == 0) continue;
    wire::WantedMachines::Type& type = wanted.types.emplace_back(wanted_type(spec_, workers));
    type.options = batch_options(spec_, workers.type);
    const Known known = known_of(spec_, workers.type);
    type.cpus = known.cpus;
    type.gpus = known.gpus;
    type.memory = known.memory;
  }
  return wanted;
}

Machines& SlurmProvider::machines() {
  const Place& here = place();
  const std::lock_guard lock(mutex_);
  if (!machines_) {
    machines_.emplace(Client(login_node(), here.environment), spec_.cluster_name, here.shared,
                      [this](const std::string& type) { return batch_options(spec_, type); });
  }
  return *machines_;
}

void SlurmProvider::check(const std::string& type) {
  Client::Batch batch{batch_options(spec_, type), "#!/bin/sh\n"};
  batch.options.insert(batch.options.end(),
                       {"--nodes=1", "--ntasks-per-node=1", "--chdir=/", "--output=/dev/null"});
  Client(login_node(), place().environment).check(batch);
}

std::vector<Machine> SlurmProvider::asked_for() {
  return machines().list();
}

// Nodes remove what is theirs when they end, if they have the time.
std::vector<Belonging> SlurmProvider::clear_up(const ClusterId& cluster) {
  const fs::path home = place().home / ".dtrain";
  std::set<fs::path> bases{home, place().shared};
  if (spec_.head_moves()) bases.insert(base());
  for (const fs::path& each : bases) clear_up(each / cluster.str());
  return {};
}

void SlurmProvider::clear_up(const fs::path& folder) {
  const std::string heads = spec_.head_moves() ? std::string(" head ") + kHeadNode : "";
  std::vector<std::string> argv = {
      "sh", "-c",
      "cd \"$0\" 2>/dev/null || exit 0; rm -rf boot head.host" + heads +
          "; for t; do for d in \"$t\"-*; do case "
          "${d#\"$t\"-} in *[!0-9]*) ;; *) rm -rf \"$d\" ;; esac; done; done; cd ..; "
          "rmdir \"$0\" 2>/dev/null || true",
      folder.string()};
  for (const NodeType& type : spec_.node_types) argv.push_back(type.name);
  run_or_throw(*login_node(), argv, {}, kClearLimit, "removing what Slurm's nodes have left");
}

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access) {
  // What sbatch would not take is said before anything is done.
  for (const ClusterSpec::Workers& workers : spec.workers()) {
    batch_options(spec, workers.type);
  }
  if (spec.head_moves() && !spec.provider.head_address.empty()) {
    throw Error(ErrorCode::invalid,
                "provider.head_address cannot be where head_node_type puts the head: it moves")
        .with_hint("without it, nodes are told the address of the machine that the head is on");
  }
  return std::make_unique<SlurmProvider>(spec, state, access);
}

}  // namespace dtrain::slurm
