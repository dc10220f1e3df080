#include "agent/head/machines/account.hpp"

#include <algorithm>
#include <utility>

#include "launcher/wire/fields.hpp"

namespace dtrain::head {

using nlohmann::json;

void fields(wire::Is<MachineAccount::Entry> auto& m, auto&& f) {
  f("id", m.id, "node", m.node, "type", m.type, "instance_type", wire::if_set(m.instance_type),
    "head", m.head, "joins", m.joins, "spot", m.spot, "price", m.price, "since", m.since, "counted",
    m.counted, "over", m.over, "seen", m.seen);
}

namespace {

struct KeptAccount {
  json told = json::object();
  double spent = 0;
  int unpriced = 0;
  std::optional<WallTime> since;
  std::vector<MachineAccount::Entry> machines;
};
BOOST_DESCRIBE_STRUCT(KeptAccount, (), (told, spent, unpriced, since, machines))

json price_json(const std::optional<double>& price) {
  return price ? json(*price) : json();
}

}  // namespace

MachineAccount::MachineAccount(const json& kept) {
  if (kept.is_null()) return;
  KeptAccount all;
  wire::read(kept, all);
  told_ = wire::cluster_costs_from_json(all.told);
  spent_ = all.spent;
  unpriced_ = all.unpriced;
  since_ = all.since;
  for (Entry& entry : all.machines) entries_.emplace(entry.id, entry);
}

json MachineAccount::dump() const {
  if (!told_) return nullptr;
  KeptAccount all{wire::to_json(*told_), spent_, unpriced_, since_, {}};
  for (const auto& [id, entry] : entries_) all.machines.push_back(entry);
  return wire::written(all);
}

std::optional<double> MachineAccount::told_price(const Entry& entry) const {
  const wire::ClusterCosts::Type* found = told_->find(entry.type);
  return found == nullptr ? std::nullopt : found->price_of(entry.instance_type, entry.spot);
}

std::optional<double> MachineAccount::most_of(const std::string& type) const {
  const wire::ClusterCosts::Type* found = told_ ? told_->find(type) : nullptr;
  return found == nullptr ? std::nullopt : found->most();
}

double MachineAccount::owed(const Entry& entry, WallTime now) {
  if (entry.over || now <= entry.counted) return 0;
  return entry.price.value_or(0) *
         std::chrono::duration<double, std::ratio<3600>>(now - entry.counted).count();
}

// What has no price yet counts from its beginning once it has one.
void MachineAccount::count(Entry& entry, WallTime until) {
  if (!entry.price) return;
  spent_ += owed(entry, until);
  entry.counted = std::max(entry.counted, until);
}

void MachineAccount::settle(WallTime now) {
  for (auto& [id, entry] : entries_) {
    if (!entry.over) count(entry, now);
  }
}

// What it did not run for costs nothing.
bool MachineAccount::started_anew(Entry& entry, WallTime created) {
  if (created <= entry.since) return false;
  entry.since = created;
  entry.counted = std::max(entry.counted, created);
  return true;
}

void MachineAccount::tell(wire::ClusterCosts costs, WallTime now) {
  for (const auto& machine : costs.machines) {
    const auto found = entries_.find(machine.id);
    if (found != entries_.end()) started_anew(found->second, machine.created);
  }
  settle(now);
  told_ = std::move(costs);
  for (auto& [id, entry] : entries_) {
    if (const auto price = told_price(entry)) entry.price = price;
  }
}

bool MachineAccount::see(const std::vector<Machine>& machines, bool all, WallTime now) {
  if (!told_) return false;
  bool changed = false;
  std::set<std::string> there;
  for (const Machine& machine : machines) {
    if (machine.id.empty() || !is_live(machine.state)) continue;
    there.insert(machine.id);
    changed = take_in(machine, now) || changed;
  }
  for (auto& [id, entry] : entries_) {
    if (!all || entry.over || there.contains(id)) continue;
    count(entry, now);
    unpriced_ += entry.price ? 0 : 1;
    entry.over = true;
    entry.seen = now;
    // What was told is all that is known once nobody is asked any more.
    std::erase_if(told_->machines, [&gone = id](const auto& each) { return each.id == gone; });
    changed = true;
  }
  changed = std::erase_if(entries_,
                          [&](const auto& each) {
                            return each.second.over && now - each.second.seen > kRemembered;
                          }) > 0 ||
            changed;
  if (changed) settle(now);
  return changed;
}

bool MachineAccount::take_in(const Machine& machine, WallTime now) {
  const WallTime created = machine.created == WallTime{} ? now : std::min(machine.created, now);
  const auto [found, is_new] = entries_.try_emplace(machine.id);
  Entry& entry = found->second;
  if (is_new) {
    entry = {machine.id,   machine.node,  machine.type, machine.instance_type,
             machine.head, machine.joins, machine.spot, {},
             created,      created,       false,        {}};
    entry.price = told_price(entry);
    since_ = std::min(created, since_.value_or(created));
    return true;
  }
  bool changed = machine.created != WallTime{} && started_anew(entry, created);
  if (entry.over) {
    if (!entry.price) --unpriced_;
    entry.over = false;
    changed = true;
  }
  const bool is_another =
      !machine.instance_type.empty() && machine.instance_type != entry.instance_type;
  if (machine.spot != entry.spot || is_another) {  // not known when it was asked for
    count(entry, now);
    entry.spot = machine.spot;
    if (is_another) entry.instance_type = machine.instance_type;
    if (const auto price = told_price(entry)) entry.price = price;
    changed = true;
  }
  return changed;
}

bool MachineAccount::has(const std::string& id) const {
  const auto found = entries_.find(id);
  return found != entries_.end() && !found->second.over;
}

std::optional<double> MachineAccount::price_of(const std::string& id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : found->second.price;
}

CostLimit MachineAccount::limit(const std::vector<std::string>& others,
                                const std::map<std::string, int>& to_stand_ready) const {
  CostLimit limit;
  if (!told_) return limit;
  limit.most = told_->max_per_hour;
  std::map<std::string, int> missing = to_stand_ready;
  for (const auto& [id, entry] : entries_) {
    if (entry.over) continue;
    limit.now += entry.price.value_or(0);
    if (entry.joins) continue;
    limit.least += entry.price.value_or(0);
    if (!entry.head) --missing[entry.type];
  }
  for (const std::string& type : others) limit.now += most_of(type).value_or(0);
  for (const auto& [type, count] : missing) {
    limit.least += std::max(0, count) * most_of(type).value_or(0);
  }
  return limit;
}

json MachineAccount::view(WallTime now) const {
  if (!told_) return nullptr;
  double per_hour = 0;
  double spent = spent_;
  int unpriced = 0;
  json machines = json::array();
  for (const auto& [id, entry] : entries_) {
    if (entry.over) continue;
    per_hour += entry.price.value_or(0);
    spent += owed(entry, now);
    unpriced += entry.price ? 0 : 1;
    machines.push_back({{"node", entry.node.str()},
                        {"id", id},
                        {"type", entry.type},
                        {"price", price_json(entry.price)},
                        {"since", rfc3339(entry.since)}});
  }
  return {{"per_hour", per_hour},
          {"max_per_hour", price_json(told_->max_per_hour)},
          {"spent", spent},
          {"since", since_ ? json(rfc3339(*since_)) : json()},
          {"unpriced", unpriced},
          {"unpriced_ended", unpriced_},
          {"machines", std::move(machines)}};
}

std::map<std::string, std::string> stay_below(
    MachineDecision& decision, const wire::WantedMachines& wanted, const CostLimit& limit,
    const std::function<std::optional<double>(const std::string& type)>& price) {
  std::map<std::string, std::string> why;
  double cost = limit.now;
  for (const wire::WantedMachines::Type& type : wanted.types) {
    const auto found = decision.create.find(type.name);
    if (found == decision.create.end()) continue;
    const auto each = price(type.name);
    int count = found->second;
    while (!too_dear(limit, count, each, cost).empty()) --count;
    cost += count * each.value_or(0);
    const int less = std::exchange(found->second, count) - count;
    if (less > 0) {
      why[type.name] = std::to_string(less) + (less == 1 ? " is" : " are") +
                       " missing: " + too_dear(limit, less, each, cost);
    }
    if (count == 0) decision.create.erase(found);
  }
  return why;
}

}  // namespace dtrain::head
