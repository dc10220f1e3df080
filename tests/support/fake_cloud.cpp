#include "tests/support/fake_cloud.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace dtrain::testing {

void FakeCloud::step() {
  ++now;
  for (Instance& each : instances) {
    const std::string& node = each.tags.at("dtrain-node");
    if (each.state == MachineState::pending && !stay.contains(node) && --each.left <= 0) {
      each.state = fail.contains(node) ? MachineState::gone : MachineState::running;
      each.reason = fail.contains(node) ? "spot interruption" : "";
    } else if (each.state == MachineState::stopping && --each.left <= 0) {
      each.state = MachineState::gone;
    }
  }
}

FakeCloud::Instance& FakeCloud::instance(const std::string& id) {
  for (Instance& each : instances) {
    if (each.id == id) return each;
  }
  throw std::out_of_range("no instance " + id);
}

void FakeCloud::vanish(const std::string& id) {
  instance(id).state = MachineState::gone;
}

void FakeCloud::stop(const std::string& id) {
  instance(id).state = MachineState::stopped;
}

std::size_t FakeCloud::count(MachineState state) const {
  return static_cast<std::size_t>(
      std::count_if(instances.begin(), instances.end(),
                    [&](const Instance& each) { return each.state == state; }));
}

Machine FakeCloudProvider::machine_of(const FakeCloud::Instance& instance) const {
  Machine machine = dtrain::machine_of(name_, instance.tags).value();
  machine.id = instance.id;
  machine.state = instance.state;
  machine.reason = instance.reason;
  machine.joins = cloud_->joined.contains(machine.node.str());
  machine.zone = instance.zone;
  machine.address = "127.0.0.1";
  machine.price = offer_of(machine.type).costs.prices.price;
  machine.created = std::chrono::system_clock::time_point(std::chrono::seconds(instance.created));
  return machine;
}

std::vector<Machine> FakeCloudProvider::list() {
  std::vector<Machine> machines;
  for (const FakeCloud::Instance& each : cloud_->instances) {
    const bool listed = !cloud_->late.contains(each.id);
    if (listed && dtrain::machine_of(name_, each.tags)) machines.push_back(machine_of(each));
  }
  std::stable_sort(machines.begin(), machines.end(), [](const Machine& a, const Machine& b) {
    return std::pair(!a.head, a.node) < std::pair(!b.head, b.node);
  });
  return machines;
}

std::vector<Machine> FakeCloudProvider::asked_for() {
  std::vector<Machine> machines = list();
  std::erase_if(machines, [](const Machine& machine) { return !machine.joins; });
  return machines;
}

Offer FakeCloudProvider::offer(const std::string& type) {
  ++cloud_->offers;
  return offer_of(type);
}

Offer FakeCloudProvider::offer_of(const std::string& type) const {
  const auto price = cloud_->prices.find(type);
  if (price == cloud_->prices.end()) return {};
  return {"zone-a", {type, {price->second, price->second}, {}}};
}

MachineOutcome FakeCloudProvider::make(const Request& request, const NodeId& node) {
  ++cloud_->asked;
  Machine wanted;
  wanted.node = node;
  wanted.type = request.type;
  wanted.head = request.head;
  wanted.cluster = request.cluster;
  wanted.launch = request.launch;
  const auto room = cloud_->capacity.find(request.type);
  if (room != cloud_->capacity.end() && room->second-- <= 0) {
    wanted.state = MachineState::gone;
    return {wanted, Error(ErrorCode::exhausted, "no capacity for " + request.type)};
  }
  FakeCloud::Instance made;
  made.id = "i-" + std::to_string(cloud_->instances.size() + 1);
  made.tags = tags_of(name_, wanted);
  made.reason = "is being made";
  const auto slow = cloud_->slow.find(node.str());
  made.left = slow == cloud_->slow.end() ? cloud_->steps_pending : slow->second;
  made.created = cloud_->now;
  made.zone = offer_of(request.type).zone;
  cloud_->instances.push_back(made);
  return {machine_of(made), std::nullopt};
}

void FakeCloudProvider::prepare(const std::vector<Request>& requests) {
  for (const Request& request : requests) {
    if (cloud_->never.contains(request.type)) {
      throw Error(ErrorCode::invalid, "there is no type " + request.type);
    }
  }
}

void FakeCloudProvider::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  if (auto first = std::exchange(cloud_->before_create, nullptr)) first();
  for (const Request& request : requests) {
    for (const NodeId& node : request.nodes) tell(make(request, node));
  }
}

void FakeCloudProvider::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) {
    FakeCloud::Instance& instance = cloud_->instance(machine.id);
    if (instance.state != MachineState::gone) {
      instance.state = MachineState::stopping;
      instance.left = cloud_->steps_stopping;
    }
    tell({machine_of(instance), std::nullopt});
  }
}

void FakeCloudProvider::start(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) {
    FakeCloud::Instance& instance = cloud_->instance(machine.id);
    if (cloud_->no_start.contains(machine.id)) {
      tell({machine_of(instance), Error(ErrorCode::exhausted, "no room for " + machine.id)});
      continue;
    }
    if (instance.state == MachineState::stopped) {
      instance.state = MachineState::pending;
      instance.left = cloud_->steps_pending;
      instance.created = cloud_->now;
    }
    tell({machine_of(instance), std::nullopt});
  }
}

void FakeCloudProvider::follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
                               const std::stop_token& stop) {
  const auto is_over = [](MachineState state) {
    return state != MachineState::pending && state != MachineState::stopping;
  };
  std::vector<Machine> open = machines;
  while (!open.empty() && !stop.stop_requested()) {
    cloud_->step();
    std::erase_if(open, [&](Machine& machine) {
      const Machine now = machine_of(cloud_->instance(machine.id));
      if (now.state != machine.state) tell({now, std::nullopt});
      machine = now;
      return is_over(now.state);
    });
    if (cloud_->on_step) cloud_->on_step();
  }
}

std::unique_ptr<Transport> FakeCloudProvider::reach(const Machine& machine) {
  if (cloud_->transport) return cloud_->transport();
  throw Error(ErrorCode::unreachable, machine.node.str() + " is a machine in memory");
}

}  // namespace dtrain::testing
