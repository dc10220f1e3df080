#include "launcher/provider/aws/provider.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/efa.hpp"
#include "launcher/provider/aws/head_role.hpp"
#include "launcher/provider/aws/heads_instances.hpp"
#include "launcher/provider/aws/images.hpp"
#include "launcher/provider/aws/instance_types.hpp"
#include "launcher/provider/aws/prices.hpp"
#include "launcher/provider/wanted_types.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/remote/ssh/keyring.hpp"
#include "launcher/remote/ssh/new_key.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kHostKeyTag = "dtrain-host-key";
// In the cluster's folder: notes of what was asked for, whose account and region that was in,
constexpr const char* kIntents = "intents";
constexpr const char* kPlaceFile = "account.json";
constexpr const char* kOwnKey = "ssh_key";  // and the key that logs in, where the YAML names none
// $0 is the sum. It says which folder that is, and whether the program is there.
constexpr const char* kLookForScaler =
    R"sh(d=$HOME/.dtrain/agents/$0; if [ -x "$d/dtrain-scaler" ]; then echo "have $d"; else echo "need $d"; fi)sh";
constexpr milliseconds kLookLimit{30000};
// For so long one that was just made may let nobody in: it boots, and cloud-init prepares it.
constexpr milliseconds kBoots{300000};

// cloud-init reads JSON as the YAML that it is.
// `restarts`: scripts are run each time that the machine starts. Who says that says all that is
// done then: this is what cloud-init does of itself, and what an image does not know it leaves out.
std::string settings_of(const ssh::NewKey* host_key, const std::string& login_key,
                        bool restarts = false) {
  json settings = {
      // Of a person's own settings the lists count too.
      {"merge_how",
       {{{"name", "list"}, {"settings", {"append"}}},
        {{"name", "dict"}, {"settings", {"no_replace", "recurse_list", "recurse_dict"}}},
        {{"name", "str"}, {"settings", json::array()}}}}};
  if (host_key != nullptr) {
    settings["ssh_keys"] = {{"ed25519_private", host_key->private_text},
                            {"ed25519_public", host_key->public_line()}};
  }
  if (!login_key.empty()) settings["ssh_authorized_keys"] = {login_key};
  if (restarts) {
    settings["cloud_final_modules"] = {"package-update-upgrade-install",
                                       "scripts-vendor",
                                       "scripts-per-once",
                                       "scripts-per-boot",
                                       "scripts-per-instance",
                                       json::array({"scripts-user", "always"}),
                                       "ssh-authkey-fingerprints",
                                       "keys-to-console",
                                       "final-message",
                                       "power-state-change"};
  }
  return "#cloud-config\n" + settings.dump() + "\n";
}

// The key pair that the YAML has for all types; empty: none.
std::string pair_name(const ClusterSpec& spec) {
  return spec.provider.other.value("key_pair", json::object()).value("key_name", "");
}

std::string text_of(const json& config, const char* name) {
  const auto found = config.find(name);
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// Without what is null, which is as good as absent.
json config_of(const NodeType& type) {
  json config = json::object();
  config.merge_patch(type.node_config);
  return config;
}

// Puts dtrain-scaler beside the head's agents, where it is not there yet: its path there.
std::string send_scaler(Transport& head) {
  const auto scaler = AgentBinary::load(find_scaler());
  const std::string all =
      trimmed(run_or_throw(head, {"sh", "-c", kLookForScaler, scaler->sha256}, {}, kLookLimit,
                           "looking for dtrain-scaler on the head's machine"));
  const std::string said = all.substr(all.rfind('\n') + 1);  // behind what a profile prints
  const bool is_there = said.starts_with("have ");
  if (!is_there && !said.starts_with("need ")) {
    throw Error(ErrorCode::failed, "the head's machine does not say where dtrain-scaler goes: " +
                                       printable(said, false));
  }
  const fs::path file = fs::path(said.substr(5)) / "dtrain-scaler";
  if (!is_there) head.put(scaler->content, file, 0700);
  return file.string();
}

// Each place as spot, and then each on demand.
void add_on_demand(Launch& launch) {
  if (!is_spot(launch.config)) return;
  if (launch.places.empty()) launch.places.emplace_back();
  std::vector<Launch::Place> on_demand = launch.places;
  for (Launch::Place& place : on_demand) {
    place.zone += place.zone.empty() ? "on demand" : ", on demand";
    place.config["InstanceMarketOptions"] = nullptr;
  }
  launch.places.insert(launch.places.end(), on_demand.begin(), on_demand.end());
}

}  // namespace

struct AwsProvider::Cloud {
  Cloud(const ClusterSpec& spec, const fs::path& state,
        std::function<Launch(const Request&)> launch_of)
      : config(process_variables()),
        http(make_http(config.ca_bundle())),
        client(config, real_world(*http), spec.provider.other.value("region", "us-west-2")),
        network(client, spec),
        prices(client, paths::state_home() / kPricesFile),
        instances(client, spec.cluster_name, state / kIntents, std::move(launch_of),
                  [this](const Machine& machine, const Tags& tags) {
                    const std::lock_guard lock(mutex);
                    const bool runs = machine.state == MachineState::running;
                    if (machine.head && runs) head = machine;
                    if (machine.state == MachineState::stopped) {
                      stopped.insert(machine.id);
                    } else {
                      stopped.erase(machine.id);
                    }
                    const auto key = tags.find(kHostKeyTag);
                    if (key != tags.end()) host_keys[machine.id] = key->second;
                  }) {}

  // Whose credentials these are.
  std::string account() {
    const std::lock_guard lock(mutex);
    if (account_id.empty()) {
      account_id = client.sts("GetCallerIdentity", {}).at("GetCallerIdentityResult/Account");
    }
    return account_id;
  }

  std::optional<Machine> head_that_runs() {
    const std::lock_guard lock(mutex);
    return head;
  }

  // The tag that says an instance's host key; empty: it has none.
  std::string host_key(const std::string& id, bool fresh) {
    if (!fresh) {
      const std::lock_guard lock(mutex);
      if (const auto listed = host_keys.find(id); listed != host_keys.end()) return listed->second;
    }
    const Xml answer = client.ec2("DescribeTags", {{"Filter.1.Name", "resource-id"},
                                                   {"Filter.1.Value.1", id},
                                                   {"Filter.2.Name", "key"},
                                                   {"Filter.2.Value.1", kHostKeyTag}});
    const std::vector<Xml>& tags = answer.list("tagSet");
    return tags.empty() ? "" : tags.front().at("value");
  }

  Config config;
  std::unique_ptr<Http> http;
  Client client;
  Network network;
  Prices prices;
  Instances instances;
  std::mutex mutex;
  // As EC2 last listed them: the tags with instances' host keys, the head's that runs, and those
  // that are stopped.
  std::map<std::string, std::string> host_keys;
  std::optional<Machine> head;
  std::set<std::string> stopped;
  std::string account_id;
};

AwsProvider::AwsProvider(ClusterSpec spec, fs::path state, Access access)
    : spec_(std::move(spec)),
      state_(std::move(state)),
      access_(std::move(access)),
      ssh_({}, state_, access_),
      host_keys_(state_ / "known_hosts",
                 {[this](const std::string& id, bool fresh) { return cloud().host_key(id, fresh); },
                  [this](const std::string& id, const std::string& value) {
                    cloud().client.ec2(
                        "CreateTags",
                        {{"ResourceId.1", id}, {"Tag.1.Key", kHostKeyTag}, {"Tag.1.Value", value}});
                  }}) {}

AwsProvider::~AwsProvider() = default;

AwsProvider::Cloud& AwsProvider::cloud() {
  const std::lock_guard lock(mutex_);
  if (!cloud_) {
    cloud_ = std::make_unique<Cloud>(spec_, state_,
                                     [this](const Request& request) { return launch_of(request); });
  }
  return *cloud_;
}

const NodeType& AwsProvider::type_of(const std::string& name) const {
  const auto found = std::find_if(spec_.node_types.begin(), spec_.node_types.end(),
                                  [&](const NodeType& each) { return each.name == name; });
  if (found != spec_.node_types.end()) return *found;
  throw Error(ErrorCode::not_found, "there is no node type " + printable(name, false));
}

// Another account's or region's list says nothing of the machines that were made here.
void AwsProvider::check_place() {
  const fs::path file = state_ / kPlaceFile;
  const auto text = read_file_if_there(file);
  if (!text) return;
  const json made = wire::parse_json(*text, printable_path(file));
  const std::string region = wire::get_string(made, "region");
  const std::string account = wire::get_string(made, "account");
  Cloud& cloud = this->cloud();
  if (region != cloud.client.region()) {
    throw Error(ErrorCode::conflict, "cluster " + spec_.cluster_name + " has machines in " +
                                         region + ", and the YAML says " + cloud.client.region())
        .with_hint("dtrain down by the YAML as it was gives them back");
  }
  if (const std::string now = cloud.account(); now != account) {
    throw Error(ErrorCode::conflict, "cluster " + spec_.cluster_name + " has machines in account " +
                                         account + ", and these credentials are of " + now)
        .with_hint("AWS_PROFILE names others");
  }
}

std::vector<Machine> AwsProvider::list() {
  check_place();
  return cloud().instances.list();
}

Offer AwsProvider::offer(const std::string& name) {
  const NodeType& type = type_of(name);
  const json config = config_of(type);
  Offer offer;
  const std::string zones = spec_.provider.other.value("availability_zone", "");
  const bool has_own = config.contains("SubnetId") || config.contains("SubnetIds") ||
                       config.contains("NetworkInterfaces");
  if (!has_own) offer.zone = trimmed(zones.substr(0, zones.find(',')));
  const auto price = [&](bool spot) {
    return cloud().prices.instance_hour(text_of(config, "InstanceType"), offer.zone, spot,
                                        access_.warn);
  };
  offer.price = price(is_spot(config));
  offer.most = type.on_demand_fallback && is_spot(config) ? price(false) : offer.price;
  return offer;
}

// Where its machines are: the next command refuses to look elsewhere.
void AwsProvider::note_place() {
  make_folders(state_);
  write_file_atomic(
      state_ / kPlaceFile,
      json{{"region", cloud().client.region()}, {"account", cloud().account()}}.dump() + "\n");
}

void AwsProvider::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  const fs::path place = state_ / kPlaceFile;
  const bool is_first = !read_file_if_there(place);
  note_place();
  bool has_some = false;
  cloud().instances.create(requests, [&](const MachineOutcome& outcome) {
    has_some = has_some || !outcome.error;
    tell(outcome);
  });
  // Where nothing was made another region, or account, is as good.
  if (is_first && !has_some && Intents(state_ / kIntents).all().empty()) fs::remove(place);
}

void AwsProvider::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  cloud().instances.release(machines, tell);
}

void AwsProvider::start(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  note_place();
  cloud().instances.start(machines, {}, tell);
}

void AwsProvider::follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
                         const std::stop_token& stop) {
  cloud().instances.follow(machines, tell, stop);
}

Launch AwsProvider::launch_of(const Request& request) {
  Launch launch = prepared(type_of(request.type), request.cluster);
  const ssh::NewKey host_key = ssh::make_key();
  launch.settings = settings_of(&host_key, public_key());
  launch.tags[kHostKeyTag] = HostKeys::tag_of_first(host_key.public_key);
  return launch;
}

const Launch& AwsProvider::prepared(const NodeType& type, const ClusterId& cluster_id) {
  auto known = launches_.find(type.name);
  if (known == launches_.end()) {
    known = launches_.emplace(type.name, prepare(type, cluster_id)).first;
  }
  return known->second;
}

Launch AwsProvider::prepare(const NodeType& type, const ClusterId& cluster_id) {
  Cloud& cloud = this->cloud();
  Launch launch;
  launch.config = config_of(type);
  json& config = launch.config;
  const bool has_template = config.contains("LaunchTemplate");
  const std::string kind = text_of(config, "InstanceType");
  if (kind.empty() && (!has_template || type.efa)) {
    throw Error(ErrorCode::invalid, "node type " + printable(type.name, false) +
                                        " does not say which InstanceType it is");
  }
  if (type.efa) config["NetworkInterfaces"] = efa_interfaces(cloud.client, kind);
  launch.places = cloud.network.places(config, cluster_id);
  config.erase("SubnetIds");
  const std::string image = text_of(config, "ImageId");
  if (!has_template || !image.empty()) config["ImageId"] = image_of(cloud.client, image, kind);
  if (!has_template && !config.contains("MetadataOptions")) {
    config["MetadataOptions"] = {{"HttpTokens", "required"}};
  }
  if (!type.placement_group.empty()) {
    config["Placement"]["GroupName"] =
        ensure_placement_group(cloud.client, spec_.cluster_name, type.name, type.placement_group);
  }
  if (type.on_demand_fallback) add_on_demand(launch);
  if (const std::string pair = pair_name(spec_); !pair.empty() && !config.contains("KeyName")) {
    ensure_key_pair(cloud.client, pair, spec_.cluster_name, public_key());
    config["KeyName"] = pair;
  }
  launch.is_fresh = cloud.network.has_made() || !type.placement_group.empty();
  return launch;
}

// auth's; else what Ray and AWS's own tools call the key of a pair; else the cluster's own.
fs::path AwsProvider::identity() const {
  if (!spec_.auth.ssh_private_key.empty()) return spec_.auth.ssh_private_key;
  std::string pair = pair_name(spec_);
  for (const NodeType& type : spec_.node_types) {
    if (pair.empty()) pair = text_of(type.node_config, "KeyName");
  }
  if (pair.find('/') == std::string::npos && !pair.empty()) {
    const fs::path home = process_variables()("HOME").value_or("");
    std::error_code absent;
    for (const char* suffix : {".pem", ""}) {
      fs::path file = home / ".ssh" / (pair + suffix);
      if (fs::exists(file, absent)) return file;
    }
  }
  return state_ / kOwnKey;
}

// Of identity(), as authorized_keys has it; the cluster's own is made when it is not there. Empty:
// it cannot be read.
std::string AwsProvider::public_key() {
  const fs::path file = identity();
  if (file == state_ / kOwnKey) {
    make_folders(state_);
    const FileLock lock = FileLock::wait(file.native() + ".lock");
    if (!read_file_if_there(file)) write_file_atomic(file, ssh::make_key().private_text, 0600);
  }
  const std::string blob = ssh::Keyring().look(file).public_blob;
  const std::string bytes = ssh::decode_base64(blob);
  const auto type = ssh::BlobReader(bytes).text();
  return type ? std::string(*type) + " " + blob + " dtrain" : "";
}

HostSpec AwsProvider::host_of(const Machine& machine) const {
  HostSpec host;
  host.node = machine.node;
  const bool inside = spec_.provider.use_internal_ips || machine.external_address.empty();
  host.host = inside ? machine.address : machine.external_address;
  host.address = machine.address;
  host.ssh_user = spec_.auth.ssh_user;
  host.ssh_port = spec_.auth.ssh_port;
  std::error_code absent;
  const fs::path key = identity();  // the cluster's own may be another laptop's
  if (!spec_.auth.ssh_private_key.empty() || fs::exists(key, absent)) host.ssh_private_key = key;
  host.ssh_proxy_command = spec_.auth.ssh_proxy_command;
  host.ssh_proxy_jump = spec_.auth.ssh_proxy_jump;
  return host;
}

// As far as that was asked for already.
bool AwsProvider::is_stopped(const Machine& machine) {
  if (machine.state == MachineState::stopped) return true;
  const std::lock_guard lock(mutex_);
  if (!cloud_) return false;
  const std::lock_guard listed(cloud_->mutex);
  return cloud_->stopped.contains(machine.id);
}

std::unique_ptr<Transport> AwsProvider::reach(const Machine& machine) {
  if (machine.id.empty() || (machine.address.empty() && machine.external_address.empty())) {
    throw Error(ErrorCode::not_found, "no address of " + machine.node.str() +
                                          " is known: its machine is " +
                                          std::string(to_string(machine.state)));
  }
  if (is_stopped(machine)) {
    throw Error(ErrorCode::unreachable,
                "the machine of " + machine.node.str() + ", " + machine.id + ", is stopped")
        .with_hint("dtrain up starts it");
  }
  const bool has_way = !spec_.auth.ssh_proxy_command.empty() || !spec_.auth.ssh_proxy_jump.empty();
  const bool is_inside = machine.external_address.empty() && !spec_.provider.use_internal_ips;
  std::optional<Machine> first;
  if (is_inside && !has_way && !machine.head) first = cloud().head_that_runs();
  try {
    if (!first) return reach_behind(machine, nullptr);
    reach_behind(*first, nullptr);
    return reach_behind(machine, &*first);
  } catch (Error& error) {
    const bool denied = error.code() == ErrorCode::denied && error.hint().empty();
    if (denied && identity() == state_ / kOwnKey && !read_file_if_there(state_ / kOwnKey)) {
      error.with_hint(
          "the machine that made this cluster has its key; auth.ssh_private_key names "
          "one that others have too");
    }
    const bool silent =
        error.code() == ErrorCode::timeout || error.code() == ErrorCode::unreachable;
    if (silent && error.hint().empty()) {
      error.with_hint(
          "its security group may let in another address than this machine has now: docs/aws.md");
    }
    throw error;
  }
}

std::unique_ptr<Transport> AwsProvider::reach_behind(const Machine& machine, const Machine* first) {
  HostSpec behind;
  SshReach how{.key_name = machine.id};
  if (first != nullptr) {
    behind = host_of(*first);
    how.first = &behind;
    how.first_key_name = first->id;
  }
  if (std::chrono::system_clock::now() - machine.created < kBoots) how.patience = kBoots;
  return host_keys_.reach(
      machine.id, [&] { return ssh_.reach(host_of(machine), how); }, access_.warn);
}

std::vector<Machine> AwsProvider::asked_for() {
  std::vector<Machine> machines = list();
  std::erase_if(machines, [](const Machine& machine) { return !machine.joins; });
  return machines;
}

wire::WantedMachines AwsProvider::wanted(const ClusterId& cluster_id) {
  // Those that it has asked for before, and are wanted no more, it gives back.
  const bool has_some = spec_.grows() || !asked_for().empty();
  if (!has_some && !spec_.down_when_idle) return {};
  Cloud& cloud = this->cloud();
  if (!cloud.head_that_runs()) list();
  const std::optional<Machine> head = cloud.head_that_runs();
  if (!head) throw Error(ErrorCode::not_found, "EC2 lists no head that runs");
  wire::WantedMachines wanted;
  wanted.provider = to_string(ProviderKind::aws);
  wanted.config = to_json(
      CloudPlace{cloud.client.region(), cloud.client.config().endpoint("ec2").value_or("")});
  if (!spec_.provider.head_address.empty()) wanted.addresses = {spec_.provider.head_address};
  wanted.max_workers = most_workers(spec_);
  wanted.upscaling_speed = spec_.upscaling_speed;
  wanted.cache_stopped_nodes = spec_.provider.cache_stopped_nodes;
  if (const auto& down = spec_.down_when_idle) {
    constexpr double kLong = 3650.0 * 24 * 60;  // minutes; what is more is this
    const double ms = 60000 * std::min(down->minutes, kLong);
    wanted.down_when_idle = {std::chrono::milliseconds(std::llround(std::max(ms, 1.0))),
                             down->terminate};
  }
  std::multimap<double, wire::WantedMachines::Type> types;  // the cheapest first
  std::vector<std::string> profiles;
  for (const ClusterSpec::Workers& workers : spec_.workers()) {
    if (workers.most == 0 || !has_some) continue;
    const json config = config_of(type_of(workers.type));
    const json profile = config.value("IamInstanceProfile", json::object());
    for (const char* key : {"Arn", "Name"}) {
      if (const std::string name = text_of(profile, key); !name.empty()) profiles.push_back(name);
    }
    const double price = offer(workers.type).price.value_or(std::numeric_limits<double>::max());
    types.emplace(price, heads_type(workers, cluster_id));
  }
  for (auto& [price, type] : types) wanted.types.push_back(std::move(type));
  ensure_head_role(cloud.client, spec_.cluster_name, cluster_id, head->id, profiles);
  wanted.scaler = send_scaler(*reach(*head));
  return wanted;
}

wire::WantedMachines::Type AwsProvider::heads_type(const ClusterSpec::Workers& workers,
                                                   const ClusterId& cluster_id) {
  Launch launch = prepared(type_of(workers.type), cluster_id);
  launch.settings = settings_of(nullptr, public_key(), spec_.provider.cache_stopped_nodes);
  launch.user = spec_.auth.ssh_user;
  wire::WantedMachines::Type type = wanted_type(spec_, workers);
  const std::string kind = text_of(launch.config, "InstanceType");
  try {
    if (!kind.empty()) {  // else a template says it
      const InstanceType has = instance_type(cloud().client, kind);
      type.cpus = has.cpus;
      type.gpus = has.gpus;
      type.memory = has.memory;
    }
  } catch (const ApiError&) {  // the first one that comes shows what they have
  }
  type.config = to_json(launch);
  return type;
}

std::vector<Belonging> AwsProvider::clear_up(const ClusterId&) {
  Cloud& cloud = this->cloud();
  const Form ours = of_cluster(spec_.cluster_name);
  await_detached(cloud.client, ours);
  std::vector<Belonging> found;
  for (auto& [cluster, thing] : belongings(cloud.client, ours, cloud.prices)) {
    take_away(cloud.client, thing);
    found.push_back(std::move(thing));
  }
  return found;
}

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access) {
  return std::make_unique<AwsProvider>(spec, state, access);
}

}  // namespace dtrain::aws
