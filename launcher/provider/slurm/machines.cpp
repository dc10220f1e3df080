#include "launcher/provider/slurm/machines.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/listing.hpp"

namespace dtrain::slurm {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::size_t kNamed = 3;  // nodes, in an error

// Each node runs what is its own, with all CPUs, GPUs and memory that the allocation has of it;
// what it says goes to the allocation's log. One that ends, or fails, leaves the others alone. What
// they start with is theirs alone, and goes before the job does. Slurm's signals go to all
// processes of a step, ranks too: that the time is nearly over is told to the first of each alone.
// A step has as many GPUs on each of its nodes, so those that have other numbers of them are other
// steps; scontrol says "Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:4(IDX:0-3)" of nodes alike.
constexpr const char* kBatchScript = R"sh(#!/bin/sh
# The nodes of a dtrain cluster: each runs the file of its number in the folder that is named here.
boot=@BOOT@
gpus=@GPUS@
[ -r "$boot/0" ] || { echo "$boot cannot be read on $(hostname): it must be on storage that all nodes share"; exit 1; }
# "FIRST COUNT GPUS NODES": the numbers of those nodes begin at FIRST; empty where all are alike.
kinds=
[ "$gpus" = all ] && kinds=$(scontrol --details show job "$SLURM_JOB_ID" |
  sed -n 's/^ *Nodes=\([^ ]*\) .* GRES=\([^ ]*\).*/\1 \2/p' |
  while read -r nodes gres; do
    n=0
    for some in $(echo "$gres" | tr , '\n' |
        sed -n 's/(CNT:/:/; s/^gpu:\([^(]*:\)\{0,1\}\([0-9][0-9]*\)[()].*/\2/p'); do n=$((n + some)); done
    scontrol show hostnames "$nodes" | sed "s/^/$n /"
  done |
  awk -v all="$SLURM_JOB_NUM_NODES" '
    !($1 in count) { kind[++kinds] = $1 }
    { count[$1]++; nodes[$1] = nodes[$1] (count[$1] > 1 ? "," : "") $2 }
    END {
      if (kinds < 2 || NR != all) exit
      first = 0
      for (i = 1; i <= kinds; i++) {
        print first, count[kind[i]], kind[i], nodes[kind[i]]
        first += count[kind[i]]
      }
    }')
# run COMMAND FIRST COUNT OPTION...
run() {
command=$1 first=$2 count=$3
shift 3
srun --overlap --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --ntasks="$count" \
  --ntasks-per-node=1 --cpu-bind=none "$@" sh -c "$command" "$boot" "$first" </dev/null &
steps="$steps $!"
}
each() {
steps=
if [ -z "$kinds" ]; then
  run "$1" 0 "$SLURM_JOB_NUM_NODES" ${gpus:+${SLURM_GPUS_ON_NODE:+--gres=gpu:$SLURM_GPUS_ON_NODE}}
  return
fi
while read -r first count some nodes; do
  run "$1" "$first" "$count" --nodes="$count" --nodelist="$nodes" --gres=gpu:"$some"
done <<END
$kinds
END
}
trap '(each "kill -USR1 \$(cat \"\$0/pid.\$((\$1 + SLURM_NODEID))\")")' USR1
each 'n=$(($1 + SLURM_NODEID)); echo $$ >"$0/pid.$n"; exec sh "$0/$n"'
status=0
for step in $steps; do
  wait $step
  code=$?
  while kill -0 $step 2>/dev/null; do
    wait $step
    code=$?
  done
  [ $code = 0 ] || status=$code
done
cd "$boot" && rm -f [0-9]* pid.*
exit $status
)sh";
// Of nodes that are had whole without a word about their GPUs.
constexpr const char* kAllGpus = "all";
std::string machine_id(const std::string& job, std::size_t number) {
  return job + "/" + std::to_string(number);
}
std::string job_of(const std::string& machine_id) {
  return machine_id.substr(0, machine_id.find('/'));
}

std::string job_name(const std::string& cluster_name) {
  return "dtrain-" + cluster_name;
}

Machine machine_of(const Job& job, const Allocation& allocation, const Standing& standing,
                   std::size_t number) {
  Machine machine;
  machine.joins = true;
  machine.node = allocation.nodes[number];
  machine.type = allocation.type;
  machine.id = machine_id(job.id, number);
  machine.state = standing.state;
  machine.reason = standing.reason;
  machine.taken_back = standing.taken_back;
  machine.zone = job.partition;
  machine.cluster = allocation.cluster;
  machine.launch = allocation.launch;
  machine.created = job.submitted;
  return machine;
}

}  // namespace

Machines::Machines(Client client, std::string cluster_name, fs::path boot,
                   std::function<std::vector<std::string>(const std::string& type)> options)
    : client_(std::move(client)),
      cluster_name_(std::move(cluster_name)),
      boot_(client_.login_node(), std::move(boot)),
      options_(std::move(options)) {}

std::vector<Machines::Found> Machines::allocations() {
  std::vector<Found> found;
  for (Job& job : client_.jobs(job_name(cluster_name_), kCommentMark)) {
    auto allocation = allocation_of(job.comment);
    if (!allocation || allocation->cluster_name != cluster_name_) continue;
    found.push_back({std::move(job), std::move(*allocation)});
  }
  return found;
}

std::vector<Machine> Machines::list() {
  const std::vector<Found> found = allocations();
  return machines_of(found, standings_of(found));
}

std::vector<Machine> Machines::machines_of(const std::vector<Found>& found,
                                           const std::map<std::string, Standing>& standings) {
  std::vector<Machine> machines;
  for (const Found& each : found) {
    const Standing& standing = standings.at(each.job.id);
    for (std::size_t i = 0; i < each.allocation.nodes.size(); ++i) {
      machines.push_back(machine_of(each.job, each.allocation, standing, i));
    }
  }
  sort_by_node(machines);
  return machines;
}

void Machines::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  ask_for_missing(list(), requests, tell,
                  [&](const Request& request, const std::vector<NodeId>& missing) {
                    ask_for(request, missing, tell);
                  });
  sweep();
}

void Machines::ask_for(const Request& request, std::span<const NodeId> nodes,
                       const OutcomeSink& tell) {
  const Allocation allocation{
      cluster_name_,  request.cluster,         request.type,
      request.launch, "boot-" + random_hex(8), {nodes.begin(), nodes.end()}};
  if (comment_of(allocation).size() > kMostComment && nodes.size() > 1) {
    ask_for(request, nodes.first(nodes.size() / 2), tell);
    return ask_for(request, nodes.subspan(nodes.size() / 2), tell);
  }
  Job job;
  job.submitted = system_clock::now();
  job.state = "PENDING";
  std::optional<Error> failed;
  try {
    if (!valid_name(request.type)) {
      throw Error(ErrorCode::invalid, printable(request.type, false) + " cannot be a type's name");
    }
    const Job made = submit(request, allocation);
    job.id = made.id;
    job.partition = made.partition;
    job.reason = made.reason;
    job.start = made.start;
  } catch (const Error& error) {
    failed = error;
  }
  Standing standing{MachineState::gone, ""};
  if (!failed) standing = standing_of(job, job.submitted);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    MachineOutcome outcome{machine_of(job, allocation, standing, i), failed};
    if (failed) outcome.machine.id.clear();
    tell(outcome);
  }
}

Client::Batch Machines::batch_of(const Allocation& allocation) const {
  const std::string folder = boot_.of(allocation.boot).string();
  std::string log = folder + "/log";
  // Slurm's patterns: %j is the job's id.
  for (std::size_t at = 0; (at = log.find('%', at)) != std::string::npos; at += 2) {
    log.insert(at, 1, '%');
  }
  Client::Batch batch{options_(allocation.type), kBatchScript};
  const bool says_gpus =
      std::any_of(batch.options.begin(), batch.options.end(), [](const std::string& option) {
        return option.starts_with("--gres") || option.starts_with("--gpus");
      });
  const std::string count = std::to_string(allocation.nodes.size());
  batch.options.insert(
      batch.options.end(),
      {"--job-name=" + job_name(cluster_name_), "--comment=" + comment_of(allocation),
       "--nodes=" + count, "--ntasks-per-node=1", "--no-requeue", "--no-kill", "--chdir=/",
       "--output=" + log, "--open-mode=append"});
  for (const auto& [place, value] :
       {std::pair<std::string, std::string>{"@BOOT@", shell_quote(folder)},
        {"@GPUS@", says_gpus ? "" : kAllGpus}}) {
    batch.script.replace(batch.script.find(place), place.size(), value);
  }
  return batch;
}

Job Machines::submit(const Request& request, const Allocation& allocation) {
  const Client::Batch batch = batch_of(allocation);
  client_.check(batch);
  std::vector<std::string> files;
  for (const NodeId& node : allocation.nodes) files.push_back(request.boot(node));
  boot_.write(allocation.boot, files);
  std::string id;
  std::optional<Error> failed;
  try {
    id = client_.submit(batch);
  } catch (const Error& error) {
    failed = error;
  }
  std::vector<Found> there;
  try {
    there = allocations();
  } catch (const Error&) {  // what there is of it is found when somebody asks again
    if (failed) throw *failed;
    Job unseen;
    unseen.id = id;
    return unseen;
  }
  const auto made = std::find_if(there.begin(), there.end(), [&](const Found& each) {
    return each.allocation.boot == allocation.boot;
  });
  if (made != there.end()) {  // also after an error
    id = made->job.id;
  } else if (failed) {
    boot_.remove({allocation.boot});
    throw *failed;
  } else {  // nobody would find it again
    client_.cancel({id});
    boot_.remove({allocation.boot});
    throw Error(ErrorCode::conflict, "squeue does not show Slurm job " + id +
                                         " with the name and the comment that it was given")
        .with_hint("a site's job_submit plugin may have changed them");
  }
  try {
    refuse_twins(id, allocation, there);
  } catch (const Error&) {
    client_.cancel({id});
    boot_.remove({allocation.boot});
    throw;
  }
  return made->job;
}

// Somebody else may have asked for the same nodes at the same time: the older job has them.
void Machines::refuse_twins(const std::string& id, const Allocation& allocation,
                            const std::vector<Found>& there) {
  const auto age = [](const std::string& job) { return std::pair(job.size(), job); };
  const auto now = system_clock::now();
  const std::set<NodeId> ours(allocation.nodes.begin(), allocation.nodes.end());
  for (const Found& each : there) {
    const bool is_older = age(each.job.id) < age(id);
    const bool is_ours = each.allocation.cluster == allocation.cluster;
    if (!is_ours || !is_older || !is_live(standing_of(each.job, now).state)) continue;
    for (const NodeId& node : each.allocation.nodes) {
      if (!ours.contains(node)) continue;
      throw Error(ErrorCode::conflict, "Slurm job " + each.job.id + " has " + node.str() +
                                           " already: somebody else was asking too");
    }
  }
}

// What jobs have left that nobody followed to their end.
void Machines::sweep() {
  try {
    const std::vector<std::string> old = boot_.older_than(kSweepAge);
    std::set<std::string> folders(old.begin(), old.end());
    if (folders.empty()) return;
    for (const Found& each : allocations()) folders.erase(each.allocation.boot);
    boot_.remove({folders.begin(), folders.end()});
  } catch (const Error&) {  // the next one does it
  }
}

void Machines::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  std::map<std::string, std::set<std::string>> wanted;  // of each job
  for (const Machine& machine : machines) wanted[job_of(machine.id)].insert(machine.id);
  const auto now = system_clock::now();
  // Of each job that is there still: those of its nodes that stay.
  std::map<std::string, std::vector<std::string>> staying;
  std::vector<std::string> ending;
  for (const Found& each : allocations()) {
    const auto named = wanted.find(each.job.id);
    if (named == wanted.end() || standing_of(each.job, now).state == MachineState::gone) continue;
    std::vector<std::string>& stay = staying[each.job.id];
    for (std::size_t i = 0; i < each.allocation.nodes.size(); ++i) {
      const bool goes = named->second.contains(machine_id(each.job.id, i));
      if (!goes) stay.push_back(each.allocation.nodes[i].str());
    }
    if (stay.empty()) ending.push_back(each.job.id);
  }
  std::optional<Error> failed;
  try {
    client_.cancel(ending);
  } catch (const Error& error) {
    failed = error;
  }
  for (const Machine& machine : machines) {
    MachineOutcome outcome{machine, std::nullopt};
    const auto left = staying.find(job_of(machine.id));
    if (left == staying.end()) {
      outcome.machine.state = MachineState::gone;
    } else if (left->second.empty()) {
      outcome.error = failed;
      if (!failed) outcome.machine.state = MachineState::stopping;
    } else {
      const std::size_t named = std::min(kNamed, left->second.size());
      const std::size_t more = left->second.size() - named;
      outcome.error = Error(ErrorCode::conflict,
                            "it is in Slurm job " + left->first + " with " +
                                join(std::span(left->second).first(named), ", ") +
                                (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                                ", and is given back with it");
    }
    tell(outcome);
  }
}

void Machines::bury(std::map<std::string, Standing>& standings, const std::vector<Found>& found,
                    const std::function<bool(const std::string& job)>& ours) {
  std::map<std::string, std::string> over;  // job by folder
  for (const Found& each : found) {
    const std::string& folder = each.allocation.boot;
    const bool has_ended = standings[each.job.id].state == MachineState::gone;
    if (has_ended && !folder.empty() && !buried_.contains(folder) && ours(each.job.id)) {
      over.emplace(folder, each.job.id);
    }
  }
  std::vector<std::string> folders;
  for (const auto& [folder, job] : over) folders.push_back(folder);
  for (const auto& [folder, words] : boot_.last_words(folders)) {
    const auto job = over.find(folder);
    if (job != over.end()) standings[job->second].reason += ": " + words;
  }
  boot_.remove(folders);
  buried_.insert(folders.begin(), folders.end());
}

std::map<std::string, Standing> Machines::standings_of(const std::vector<Found>& found) {
  std::map<std::string, Standing> standings;
  const auto now = system_clock::now();
  for (const Found& each : found) standings.emplace(each.job.id, standing_of(each.job, now));
  return standings;
}

std::vector<Machine> Machines::settle() {
  const std::vector<Found> found = allocations();
  std::map<std::string, Standing> standings = standings_of(found);
  bury(standings, found, [](const std::string&) { return true; });
  return machines_of(found, standings);
}

std::map<std::string, Standing> Machines::look(const std::map<std::string, Machine>& followed) {
  const std::vector<Found> found = allocations();
  std::map<std::string, Standing> standings = standings_of(found);
  bury(standings, found, [&](const std::string& job) {
    const auto first = followed.lower_bound(job + "/");
    return first != followed.end() && job_of(first->first) == job;
  });
  return standings;
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
  auto heard = std::chrono::steady_clock::now();
  while (!followed.empty() && !stop.stop_requested()) {
    std::map<std::string, Standing> standings;
    std::optional<Error> deaf;
    try {
      standings = look(followed);
      heard = std::chrono::steady_clock::now();
    } catch (const Error& error) {  // slurmctld is started anew, say
      if (std::chrono::steady_clock::now() - heard > kLookPatience) throw;
      deaf = error;
    }
    for (auto each = followed.begin(); each != followed.end();) {
      Machine& machine = each->second;
      const auto job = standings.find(job_of(machine.id));
      Standing standing{MachineState::gone, "Slurm does not know its job any more"};
      if (job != standings.end()) standing = job->second;
      if (deaf) standing = {machine.state, deaf->message()};
      if (standing.state != machine.state || standing.reason != machine.reason) {
        machine.state = standing.state;
        machine.reason = standing.reason;
        machine.taken_back = standing.taken_back;
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
