#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/boot_data.hpp"
#include "launcher/provider/aws/cloud.hpp"
#include "launcher/provider/aws/endpoints.hpp"
#include "launcher/provider/aws/head_role.hpp"
#include "launcher/provider/aws/heads_instances.hpp"
#include "launcher/provider/wanted_types.hpp"
#include "launcher/remote/agent_session.hpp"

// What AwsProvider does for a head that asks for machines itself.
namespace dtrain::aws {
namespace {

using nlohmann::json;

// $0 is the sum. It says which folder that is, and whether the program is there.
constexpr const char* kLookForScaler =
    R"sh(d=$HOME/.dtrain/agents/$0; if [ -x "$d/dtrain-scaler" ]; then echo "have $d"; else echo "need $d"; fi)sh";
constexpr std::chrono::milliseconds kLookLimit{30000};

// What the head asks AWS without, of how this machine does.
std::vector<std::string> of_this_machine_alone(const Config& config, const std::string& url) {
  std::vector<std::string> names;
  if (!config.ca_bundle().empty()) names.emplace_back("AWS_CA_BUNDLE (or ca_bundle)");
  const std::vector<std::string> proxies =
      url.starts_with("https:")
          ? std::vector<std::string>{"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}
          : std::vector<std::string>{"http_proxy", "all_proxy", "ALL_PROXY"};
  for (const std::string& name : proxies) {
    if (config.variable(name)) names.push_back(name);
  }
  return names;
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

}  // namespace

std::vector<Machine> AwsProvider::asked_for() {
  std::vector<Machine> machines = list();
  std::erase_if(machines, [](const Machine& machine) { return !machine.joins; });
  return machines;
}

wire::WantedMachines AwsProvider::wanted(const ClusterId& cluster_id) {
  cloud().network.follow_rules();
  // Those that it has asked for before, and are wanted no more, it gives back.
  const bool has_some = spec_.grows() || !asked_for().empty();
  if (!has_some && !spec_.down_when_idle) return {};
  Cloud& cloud = this->cloud();
  if (!cloud.head_that_runs()) list();
  const std::optional<Machine> head = cloud.head_that_runs();
  if (!head) throw Error(ErrorCode::not_found, "EC2 lists no head that runs");
  wire::WantedMachines wanted;
  wanted.provider = to_string(ProviderKind::aws);
  const std::string& region = cloud.client.region();
  const std::string url = endpoint_of(Service::ec2, region, cloud.config).url;
  wanted.config = to_json(CloudPlace{region, url});
  const std::vector<std::string> without = of_this_machine_alone(cloud.config, url);
  if (access_.warn && !without.empty()) {
    access_.warn("the head asks " + url +
                 " by itself, without what this machine has set: " + join(without, ", "));
  }
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
    const double price =
        offer(workers.type).costs.prices.price.value_or(std::numeric_limits<double>::max());
    types.emplace(price, heads_type(workers, cluster_id));
  }
  for (auto& [price, type] : types) wanted.types.push_back(std::move(type));
  ensure_head_role(cloud.client, spec_.cluster_name, cluster_id, head->id, profiles);
  wanted.scaler = send_scaler(*reach(*head));
  return wanted;
}

wire::WantedMachines::Type AwsProvider::heads_type(const ClusterSpec::Workers& workers,
                                                   const ClusterId& cluster_id) {
  wire::WantedMachines::Type type = wanted_type(spec_, workers);
  Launch launch;
  try {
    const Prepared& made = prepared(type_of(workers.type), cluster_id);
    launch = made.launch;
    if (made.has) {  // else the first one that comes shows it
      type.cpus = made.has->cpus;
      type.gpus = made.has->gpus;
      type.memory = made.has->memory;
    }
  } catch (const Error& error) {
    if (!is_wrong(error)) throw;
    refused_.insert_or_assign(workers.type, error);
    launch.wrong = error.what();
  }
  launch.settings = settings_of(nullptr, public_key(), spec_.provider.cache_stopped_nodes);
  launch.user = spec_.auth.ssh_user;
  type.config = to_json(launch);
  return type;
}

void AwsProvider::check(const std::string& type) {
  if (const auto why = refused_.find(type); why != refused_.end()) throw Error(why->second);
}

}  // namespace dtrain::aws
