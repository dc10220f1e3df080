#include "launcher/provider/slurm/machines.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::slurm {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::string_view kMark = "dtrain";
constexpr milliseconds kFileLimit{30000};
constexpr const char* kLastLines = "3";
// Where nothing is known Slurm estimates a start in a year or in a thousand.
constexpr std::chrono::hours kFarAway{24 * 365};

// Each runs what is its own; what it says goes to the allocation's log. A step of all CPUs, GPUs
// and memory that the allocation has on a node; one that has ended leaves the others alone.
constexpr const char* kBatchScript = R"sh(#!/bin/sh
# The nodes of a dtrain cluster: each runs the file of its number in the folder that is named here.
boot=@BOOT@
[ -r "$boot/0" ] || { echo "$boot cannot be read on $(hostname): it must be on storage that all nodes share"; exit 1; }
exec srun --overlap --kill-on-bad-exit=0 --wait=0 --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --cpu-bind=none --label sh -c 'exec sh "$0/$SLURM_NODEID"' "$boot"
)sh";

std::string machine_id(const std::string& job, std::size_t number) {
  return job + "/" + std::to_string(number);
}
std::string job_of(const std::string& machine_id) {
  return machine_id.substr(0, machine_id.find('/'));
}

std::string job_name(const std::string& cluster_name) {
  return "dtrain-" + cluster_name;
}

// In this machine's time zone: "14:20", on another day with the date.
std::string about(system_clock::time_point when, system_clock::time_point now) {
  const std::time_t then = system_clock::to_time_t(when);
  const std::time_t today = system_clock::to_time_t(now);
  std::tm there{};
  std::tm here{};
  ::localtime_r(&then, &there);
  ::localtime_r(&today, &here);
  const bool same = there.tm_yday == here.tm_yday && there.tm_year == here.tm_year;
  std::array<char, 32> text{};
  const std::size_t size =
      std::strftime(text.data(), text.size(), same ? "%H:%M" : "%Y-%m-%d %H:%M", &there);
  return {text.data(), size};
}

Machine machine_of(const Job& job, const Allocation& allocation, const Standing& standing,
                   std::size_t number) {
  Machine machine;
  machine.node = allocation.nodes[number];
  machine.type = allocation.type;
  machine.id = machine_id(job.id, number);
  machine.state = standing.state;
  machine.reason = standing.reason;
  machine.zone = job.partition;
  machine.cluster = allocation.cluster;
  machine.launch = allocation.launch;
  machine.created = job.submitted;
  return machine;
}

}  // namespace

std::string comment_of(const Allocation& allocation) {
  std::vector<std::string> nodes;
  for (const NodeId& node : allocation.nodes) nodes.push_back(node.str());
  return std::string(kMark) + " cluster=" + allocation.cluster_name +
         " cluster-id=" + allocation.cluster.str() + " type=" + allocation.type +
         " launch=" + allocation.launch + " boot=" + allocation.boot + " nodes=" + join(nodes, ",");
}

std::optional<Allocation> allocation_of(std::string_view comment) {
  const std::vector<std::string> words = split(comment, ' ');
  if (words.front() != kMark) return std::nullopt;
  std::map<std::string, std::string> values;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  Allocation allocation{values["cluster"], ClusterId(values["cluster-id"]),
                        values["type"],    values["launch"],
                        values["boot"],    {}};
  if (allocation.cluster_name.empty() || values["nodes"].empty()) return std::nullopt;
  // It names a folder.
  if (!allocation.boot.empty() && !valid_name(allocation.boot)) return std::nullopt;
  for (const std::string& node : split(values["nodes"], ',')) {
    if (!valid_name(node)) return std::nullopt;
    allocation.nodes.emplace_back(node);
  }
  return allocation;
}

Standing standing_of(const Job& job, system_clock::time_point now) {
  static const std::map<std::string, Standing> standings{
      {"RUNNING", {MachineState::running, ""}},
      {"RESIZING", {MachineState::running, ""}},
      {"SIGNALING", {MachineState::running, ""}},
      {"SUSPENDED", {MachineState::running, "is suspended"}},
      {"STOPPED", {MachineState::running, "is stopped"}},
      {"STAGE_OUT", {MachineState::stopping, ""}},
      {"COMPLETING", {MachineState::stopping, ""}},
      {"COMPLETED", {MachineState::gone, "has ended"}},
      {"CANCELLED", {MachineState::gone, "was cancelled"}},
      {"FAILED", {MachineState::gone, "has failed"}},
      {"TIMEOUT", {MachineState::gone, "reached its time limit"}},
      {"DEADLINE", {MachineState::gone, "reached its deadline"}},
      {"PREEMPTED", {MachineState::gone, "was preempted"}},
      {"NODE_FAIL", {MachineState::gone, "lost a node"}},
      {"BOOT_FAIL", {MachineState::gone, "got a node that does not boot"}},
      {"OUT_OF_MEMORY", {MachineState::gone, "ran out of memory"}},
      {"REVOKED", {MachineState::gone, "went to another cluster of Slurm's"}},
  };
  const std::string name = "Slurm job " + job.id;
  if (const auto found = standings.find(job.state); found != standings.end()) {
    const auto& [state, what] = found->second;
    return {state, what.empty() ? "" : name + " " + what};
  }
  // PENDING, CONFIGURING, and whatever else there will be.
  std::string reason = "waits";
  if (!job.partition.empty()) reason += " in partition " + printable(job.partition, false);
  if (job.state != "PENDING") {
    reason += ": " + printable(job.state, false);
  } else if (!job.reason.empty() && job.reason != "None") {
    reason += ": " + printable(job.reason, false);
  }
  if (job.start && *job.start > now && *job.start - now < kFarAway) {
    reason += ", starts about " + about(*job.start, now);
  }
  return {MachineState::pending, reason};
}

Machines::Machines(Client client, std::string cluster_name, fs::path boot,
                   std::function<std::vector<std::string>(const std::string& type)> options)
    : client_(std::move(client)),
      cluster_name_(std::move(cluster_name)),
      boot_(std::move(boot)),
      options_(std::move(options)) {}

std::vector<Machines::Found> Machines::allocations() {
  std::vector<Found> found;
  for (Job& job : client_.jobs(job_name(cluster_name_))) {
    auto allocation = allocation_of(job.comment);
    if (!allocation || allocation->cluster_name != cluster_name_) continue;
    found.push_back({std::move(job), std::move(*allocation)});
  }
  return found;
}

std::vector<Machine> Machines::list() {
  std::vector<Machine> machines;
  const auto now = system_clock::now();
  for (const Found& each : allocations()) {
    const Standing standing = standing_of(each.job, now);
    for (std::size_t i = 0; i < each.allocation.nodes.size(); ++i) {
      machines.push_back(machine_of(each.job, each.allocation, standing, i));
    }
  }
  return machines;
}

void Machines::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  std::map<NodeId, Machine> there;
  for (Machine& machine : list()) {
    if (machine.state == MachineState::pending || machine.state == MachineState::running) {
      there.emplace(machine.node, std::move(machine));
    }
  }
  for (const Request& request : requests) {
    std::vector<NodeId> missing;
    for (const NodeId& node : request.nodes) {
      const auto found = there.find(node);
      if (found == there.end()) {
        missing.push_back(node);
      } else {
        tell({found->second, std::nullopt});
      }
    }
    if (missing.empty()) continue;
    try {
      ask_for(request, missing, tell);
    } catch (const Error& error) {
      for (const NodeId& node : missing) {
        Machine machine;
        machine.node = node;
        machine.type = request.type;
        machine.cluster = request.cluster;
        machine.launch = request.launch;
        machine.state = MachineState::gone;
        tell({machine, error});
      }
    }
  }
}

void Machines::ask_for(const Request& request, const std::vector<NodeId>& nodes,
                       const OutcomeSink& tell) {
  if (!valid_name(request.type)) {
    throw Error(ErrorCode::invalid, printable(request.type, false) + " cannot be a type's name");
  }
  const Allocation allocation{cluster_name_,  request.cluster,         request.type,
                              request.launch, "boot-" + random_hex(8), nodes};
  const fs::path folder = boot_ / allocation.boot;
  Client::Batch batch;
  batch.options = options_(request.type);
  for (const std::string& option :
       {"--job-name=" + job_name(cluster_name_), "--comment=" + comment_of(allocation),
        "--nodes=" + std::to_string(nodes.size()), std::string("--ntasks-per-node=1"),
        std::string("--no-requeue"), std::string("--no-kill"), std::string("--chdir=/"),
        "--output=" + (folder / "log").string(), std::string("--open-mode=append")}) {
    batch.options.push_back(option);
  }
  batch.script = kBatchScript;
  const std::string place = "@BOOT@";
  batch.script.replace(batch.script.find(place), place.size(), shell_quote(folder.string()));
  client_.check(batch);
  Job job;
  try {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      client_.login_node().put(request.boot(nodes[i]), folder / std::to_string(i), 0600);
    }
    job.id = client_.submit(batch);
  } catch (const Error&) {
    remove_boot(allocation);
    throw;
  }
  job.state = "PENDING";
  job.submitted = system_clock::now();
  const Standing standing = standing_of(job, job.submitted);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    tell({machine_of(job, allocation, standing, i), std::nullopt});
  }
}

void Machines::remove_boot(const Allocation& allocation) {
  if (allocation.boot.empty()) return;
  client_.login_node().run({"rm", "-rf", "--", (boot_ / allocation.boot).string()}, {}, kFileLimit);
}

std::string Machines::last_words(const Allocation& allocation) {
  if (allocation.boot.empty()) return {};
  const Captured tail = client_.login_node().run(
      {"tail", "-n", kLastLines, "--", (boot_ / allocation.boot / "log").string()}, {}, kFileLimit);
  std::vector<std::string> lines;
  for (const std::string& line : split(tail.out, '\n')) {
    if (!line.empty()) lines.push_back(printable(line, false));
  }
  return join(lines, "; ");
}

void Machines::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  std::set<std::string> wanted;
  for (const Machine& machine : machines) wanted.insert(machine.id);
  std::map<std::string, Found> found;
  for (Found& each : allocations()) {
    const std::string id = each.job.id;
    found.emplace(id, std::move(each));
  }
  const auto now = system_clock::now();
  // Of each job that is there still: those of its nodes that stay.
  std::map<std::string, std::vector<std::string>> staying;
  std::vector<std::string> ended;
  for (const auto& [id, each] : found) {
    const bool is_named =
        std::any_of(wanted.begin(), wanted.end(),
                    [&, &job = id](const auto& one) { return job_of(one) == job; });
    if (!is_named || standing_of(each.job, now).state == MachineState::gone) continue;
    std::vector<std::string>& stay = staying[id];
    for (std::size_t i = 0; i < each.allocation.nodes.size(); ++i) {
      if (!wanted.contains(machine_id(id, i))) stay.push_back(each.allocation.nodes[i].str());
    }
    if (stay.empty()) ended.push_back(id);
  }
  client_.cancel(ended);
  for (const Machine& machine : machines) {
    Machine now_is = machine;
    const auto left = staying.find(job_of(machine.id));
    if (left == staying.end()) {
      now_is.state = MachineState::gone;
      tell({now_is, std::nullopt});
    } else if (left->second.empty()) {
      now_is.state = MachineState::stopping;
      tell({now_is, std::nullopt});
    } else {
      tell({now_is, Error(ErrorCode::conflict, "it is in Slurm job " + left->first + " with " +
                                                   join(left->second, ", ") +
                                                   ", and is given back with it")});
    }
  }
}

void Machines::follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
                      const std::stop_token& stop) {
  std::map<std::string, Machine> followed;
  for (const Machine& machine : machines) {
    const bool moves =
        machine.state == MachineState::pending || machine.state == MachineState::stopping;
    if (moves) followed.emplace(machine.id, machine);
  }
  std::mutex mutex;
  std::condition_variable_any wake;
  milliseconds pause = kFirstLook;
  while (!followed.empty() && !stop.stop_requested()) {
    std::map<std::string, Standing> standings;
    const auto now = system_clock::now();
    for (const Found& each : allocations()) {
      Standing standing = standing_of(each.job, now);
      const auto of_it = followed.lower_bound(each.job.id + "/");
      const bool is_followed = of_it != followed.end() && job_of(of_it->first) == each.job.id;
      if (is_followed && standing.state == MachineState::gone) {
        const std::string words = last_words(each.allocation);
        if (!words.empty()) standing.reason += ": " + words;
        remove_boot(each.allocation);
      }
      standings.emplace(each.job.id, std::move(standing));
    }
    for (auto each = followed.begin(); each != followed.end();) {
      Machine& machine = each->second;
      const auto job = standings.find(job_of(machine.id));
      const Standing standing =
          job != standings.end()
              ? job->second
              : Standing{MachineState::gone, "Slurm does not know its job any more"};
      if (standing.state != machine.state || standing.reason != machine.reason) {
        machine.state = standing.state;
        machine.reason = standing.reason;
        tell({machine, std::nullopt});
      }
      const bool rests =
          machine.state == MachineState::running || machine.state == MachineState::gone;
      each = rests ? followed.erase(each) : std::next(each);
    }
    if (followed.empty()) return;
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, pause, [] { return false; });
    pause = std::min(kLastLook, pause + pause / 2);
  }
}

}  // namespace dtrain::slurm
