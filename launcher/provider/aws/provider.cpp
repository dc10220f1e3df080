#include "launcher/provider/aws/provider.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/boot_data.hpp"
#include "launcher/provider/aws/cloud.hpp"
#include "launcher/provider/aws/efa.hpp"
#include "launcher/provider/aws/images.hpp"
#include "launcher/provider/aws/launch_template.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/remote/ssh/keyring.hpp"
#include "launcher/remote/ssh/new_key.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// In the cluster's folder, beside notes of what was asked for: the key that logs in, where the YAML
// names none.
constexpr const char* kOwnKey = "ssh_key";
constexpr std::size_t kMostKey = 65536;  // bytes of a public key's file
// For so long one that was just made may let nobody in: it boots, and cloud-init prepares it.
constexpr milliseconds kBoots{300000};

// The key pair that the YAML has for all types; empty: none.
std::string pair_name(const ClusterSpec& spec) {
  return spec.provider.other.value("key_pair", json::object()).value("key_name", "");
}

// What auth.ssh_public_key's file has, as authorized_keys has it.
std::string public_line(const ClusterSpec& spec) {
  const std::string& file = spec.auth.ssh_public_key;
  std::string text = trimmed(read_file_if_there(file, kMostKey).value_or(""));
  const std::size_t type = text.find(' ');
  if (type != std::string::npos && text.find_first_of("\r\n") == std::string::npos) {
    const std::size_t end = text.find(' ', type + 1);
    const std::string bytes = ssh::decode_base64(text.substr(type + 1, end - type - 1));
    if (const auto said = ssh::BlobReader(bytes).text(); said && *said == text.substr(0, type)) {
      return text;
    }
  }
  Error wrong(ErrorCode::invalid,
              "auth.ssh_public_key: " + printable(file, false) + " is no public key of OpenSSH's");
  for (const LocalPath& path : spec.local_paths) {
    if (path.what == LocalPath::What::public_key) wrong.at(path.location);
  }
  throw Error(wrong);
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
    cloud_ = std::make_unique<Cloud>(spec_, state_, access_,
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

// Another account's or region's list says nothing of the machines that were made here. False: where
// they were made is not noted.
bool AwsProvider::check_place() {
  const fs::path file = state_ / kPlaceFile;
  const auto text = read_file_if_there(file);
  if (!text) return false;
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
  return true;
}

std::vector<Machine> AwsProvider::list() {
  const bool is_noted = check_place();
  std::vector<Machine> machines = cloud().instances.list();
  if (!is_noted && !machines.empty()) note_place_of(machines);
  return machines;
}

Offer AwsProvider::offer(const std::string& name) {
  const NodeType& type = type_of(name);
  const json config = config_of(type);
  Offer offer;
  const bool has_own = config.contains("SubnetId") || config.contains("SubnetIds") ||
                       config.contains("NetworkInterfaces");
  std::set<std::string> zones;
  const std::string said = spec_.provider.other.value("availability_zone", "");
  for (const std::string& word : split(has_own ? "" : said, ',')) {
    const std::string zone = trimmed(word);
    if (zone.empty()) continue;
    if (zones.empty()) offer.zone = zone;
    zones.insert(zone);
  }
  const auto hour = [&](const std::string& kind, bool spot) {
    return cloud().prices.instance_hour(kind, zones, spot, access_.warn);
  };
  const bool spot = is_spot(config);
  const std::vector<std::string> kinds = instance_types_of(type, config);
  for (const std::string& kind : kinds) {
    wire::Prices prices{hour(kind, spot), {}};
    prices.most = spot && type.on_demand_fallback ? hour(kind, false) : prices.price;
    if (kinds.size() > 1) offer.costs.instance_types.push_back({kind, prices});
    wire::Prices& all = offer.costs.prices;
    const bool is_first = kind == kinds.front();
    if (is_first) all = prices;
    all.most = all.most && prices.most ? std::max(all.most, prices.most) : std::nullopt;
  }
  return offer;
}

// Where its machines are: the next command refuses to look elsewhere.
void AwsProvider::note_place() {
  make_folders(state_);
  write_file_atomic(
      state_ / kPlaceFile,
      json{{"region", cloud().client.region()}, {"account", cloud().account()}}.dump() + "\n");
}

// The same of a cluster that another machine has brought up, once it is known here.
void AwsProvider::note_place_of(const std::vector<Machine>& machines) {
  const fs::path file = state_ / kClusterFile;
  const auto text = read_file_if_there(file);
  if (!text) return;
  try {
    const ClusterId ours(wire::get_string(wire::parse_json(*text, printable_path(file)), "id"));
    const bool are_ours = std::any_of(machines.begin(), machines.end(),
                                      [&](const Machine& each) { return each.cluster == ours; });
    if (are_ours) note_place();
  } catch (const Error&) {  // who cannot ask whose credentials these are goes on without
  }
}

void AwsProvider::prepare(const std::vector<Request>& requests) {
  if (requests.empty()) return;
  if (!spec_.auth.ssh_public_key.empty()) public_key();
  for (const Request& request : requests) {
    const NodeType& type = type_of(request.type);
    try {
      prepared(type, request.cluster);
    } catch (Error& error) {
      if (type.location.line > 0) error.at(type.location);
      error.while_doing("preparing machines of type " + printable(type.name, false));
      throw;
    }
  }
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

// What EC2 does not know is gone, where it was made there.
void AwsProvider::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  const bool is_noted = check_place();
  Cloud& cloud = this->cloud();
  cloud.instances.release(machines, [&](const MachineOutcome& outcome) {
    const std::string& id = outcome.machine.id;
    const bool is_gone = !outcome.error && outcome.machine.state == MachineState::gone;
    if (is_noted || !is_gone || id.empty() || cloud.has_listed(id)) return tell(outcome);
    const auto asked = std::find_if(machines.begin(), machines.end(),
                                    [&](const Machine& each) { return each.id == id; });
    tell({asked == machines.end() ? outcome.machine : *asked,
          Error(ErrorCode::conflict,
                "EC2 does not know it in " + cloud.client.region() +
                    " by these credentials, and nothing here says that it was made there")});
  });
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
  Launch launch = prepared(type_of(request.type), request.cluster).launch;
  const ssh::NewKey host_key = ssh::make_key();
  launch.settings = settings_of(&host_key, public_key());
  launch.tags[kHostKeyTag] = HostKeys::tag_of_first(host_key.public_key);
  return launch;
}

const AwsProvider::Prepared& AwsProvider::prepared(const NodeType& type,
                                                   const ClusterId& cluster_id) {
  auto known = prepared_.find(type.name);
  if (known != prepared_.end()) return known->second;
  Prepared made;
  const std::vector<std::string> kinds = instance_types_of(type, config_of(type));
  try {
    if (!kinds.front().empty()) made.has = least_of(cloud().client, kinds);  // else a template says
  } catch (const ApiError& error) {  // who may not ask goes on without
    if (is_wrong(error)) throw;
  }
  made.launch = prepare(type, cluster_id);
  return prepared_.emplace(type.name, std::move(made)).first->second;
}

Launch AwsProvider::prepare(const NodeType& type, const ClusterId& cluster_id) {
  Cloud& cloud = this->cloud();
  Launch launch;
  launch.config = config_of(type);
  json& config = launch.config;
  const std::vector<std::string> kinds = instance_types_of(type, config);
  const bool has_template = config.contains("LaunchTemplate");
  if (kinds.front().empty() && (!has_template || type.efa)) {
    throw Error(ErrorCode::invalid, "node type " + printable(type.name, false) +
                                        " does not say which InstanceType it is");
  }
  try {
    look_at_template(cloud.client, config);
  } catch (const ApiError& error) {  // who may not look goes on without
    if (error.code() != ErrorCode::denied) throw;
    if (access_.warn) {
      access_.warn("node type " + printable(type.name, false) +
                   ": nobody sees whether its LaunchTemplate asks for persistent spot requests, "
                   "which make a machine anew for each that is given back: " +
                   error.message());
    }
  }
  std::vector<json> own;
  for (const std::string& kind : kinds) own.push_back(own_config(type, config, kind));
  if (!has_template && !config.contains("MetadataOptions")) {
    config["MetadataOptions"] = {{"HttpTokens", "required"}};
  }
  if (!type.placement_group.empty()) {
    config["Placement"]["GroupName"] = ensure_placement_group(
        cloud.client, spec_.cluster_name, cluster_id, type.name, type.placement_group);
  }
  if (const std::string pair = pair_name(spec_); !pair.empty() && !config.contains("KeyName")) {
    ensure_key_pair(cloud.client, pair, spec_.cluster_name, public_key());
    config["KeyName"] = pair;
  }
  const json asked = config;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    json whole = asked;
    whole.merge_patch(own[i]);
    std::vector<Launch::Place> places = cloud.network.places(whole, cluster_id);
    if (i == 0) config = whole;
    if (kinds.size() > 1 && places.empty()) places.emplace_back();
    for (Launch::Place& place : places) {
      if (kinds.size() == 1) continue;
      const json there = std::exchange(place.config, own[i]);
      place.config.update(there);
      if (!kinds[i].empty()) place.zone += (place.zone.empty() ? "" : ", ") + kinds[i];
    }
    std::move(places.begin(), places.end(), std::back_inserter(launch.places));
  }
  config.erase("SubnetIds");
  if (type.on_demand_fallback) add_on_demand(launch);
  launch.is_fresh = cloud.network.has_made() || !type.placement_group.empty();
  return launch;
}

// What RunInstances is told of one instance type in another's place.
json AwsProvider::own_config(const NodeType& type, const json& asked, const std::string& kind) {
  json own = json::object();
  if (!kind.empty()) own["InstanceType"] = kind;
  if (type.efa) own["NetworkInterfaces"] = efa_interfaces(cloud().client, kind);
  const std::string image = text_of(asked, "ImageId");
  if (!asked.contains("LaunchTemplate") || !image.empty()) {
    own["ImageId"] = image_of(cloud().client, image, kind);
  }
  return own;
}

// auth's, also beside its public half; else what Ray and AWS's own tools call the key of a pair;
// else the cluster's own.
fs::path AwsProvider::identity() const {
  if (!spec_.auth.ssh_private_key.empty()) return spec_.auth.ssh_private_key;
  fs::path half = spec_.auth.ssh_public_key;
  std::error_code absent;
  if (half.extension() == ".pub" && fs::exists(half.replace_extension(), absent)) return half;
  std::string pair = pair_name(spec_);
  for (const NodeType& type : spec_.node_types) {
    if (pair.empty()) pair = text_of(type.node_config, "KeyName");
  }
  if (pair.find('/') == std::string::npos && !pair.empty()) {
    const fs::path home = process_variables()("HOME").value_or("");
    for (const char* suffix : {".pem", ""}) {
      fs::path file = home / ".ssh" / (pair + suffix);
      if (fs::exists(file, absent)) return file;
    }
  }
  return state_ / kOwnKey;
}

// auth's, or of identity(), as authorized_keys has it; the cluster's own is made when it is not
// there. Empty: it cannot be read.
std::string AwsProvider::public_key() {
  if (!spec_.auth.ssh_public_key.empty()) return public_line(spec_);
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

std::vector<Belonging> AwsProvider::clear_up(const ClusterId&) {
  Cloud& cloud = this->cloud();
  const Form ours = of_cluster(spec_.cluster_name);
  std::vector<Belonging> found = give_back_unnamed();
  for (Belonging& each : await_detached(cloud.client, ours)) found.push_back(std::move(each));
  // Once more as long as there is something new, for a list may not have all at once.
  std::set<std::pair<std::string, std::string>> known;
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (Orphan& each : belongings(cloud.client, ours, cloud.prices)) {
      Belonging& thing = each.thing;
      if (!known.emplace(thing.what, thing.id).second) continue;
      is_new = true;
      take_away(cloud.client, each);
      std::erase_if(found, [&](const Belonging& before) {  // it was attached then
        return before.what == thing.what && before.id == thing.id;
      });
      found.push_back(std::move(thing));
    }
  }
  return found;
}

// Instances of which nobody knows which machines they are: the cluster's they are all the same.
std::vector<Belonging> AwsProvider::give_back_unnamed() {
  Instances& instances = cloud().instances;
  std::vector<Machine> going = instances.all();
  std::erase_if(going, [](const Machine& each) { return !each.node.empty(); });
  std::map<std::string, Belonging> things;
  for (const Machine& each : going) {
    things[each.id] = {"machine", each.id, false, false, "has the cluster's tag, and no node's"};
  }
  const auto tell = [&](const MachineOutcome& outcome) {
    Belonging& thing = things[outcome.machine.id];
    thing.gone = !outcome.error && outcome.machine.state == MachineState::gone;
    if (outcome.error) thing.note = outcome.error->message();
  };
  if (!going.empty()) instances.give_back(going, tell, access_.stop);
  std::vector<Belonging> found;
  for (auto& [id, thing] : things) found.push_back(std::move(thing));
  return found;
}

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access) {
  return std::make_unique<AwsProvider>(spec, state, access);
}

}  // namespace dtrain::aws
