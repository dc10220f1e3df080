#include <algorithm>
#include <condition_variable>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/slurm/options.hpp"
#include "launcher/provider/slurm/provider.hpp"

// A head in allocations of its own, as `up` and `down` see it: one machine that stays the same,
// whichever of the jobs is the head.
namespace dtrain::slurm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFileLimit{60000};
constexpr const char* kHeadId = "head-allocation";
// For so long a job that was seen to be the head is believed to be.
constexpr std::chrono::seconds kSeenLately{2};
// Roots of heads of a cluster's name, below a base, the folders of the clusters alone.
constexpr const char* kLeftHeads =
    R"sh(cd "$0" 2>/dev/null || exit 0; for f in "$1"-*/head/head.json; do [ -r "$f" ] && grep -qF "\"name\": \"$1\"" "$f" && echo "${f%%/*}"; done; :)sh";

}  // namespace

HeadChain SlurmProvider::chain() {
  return HeadChain(Client(login_node(), place().environment), spec_.cluster_name);
}

fs::path SlurmProvider::base() {
  const std::string& root = spec_.provider.root;
  if (root == "~") return place().home;
  if (root.starts_with("~/")) return place().home / root.substr(2);
  return root;
}

HeadChain::Wanted SlurmProvider::wanted_head(const ClusterId& cluster) {
  return chain().wanted(cluster, batch_options(spec_, spec_.head_node_type),
                        base() / cluster.str() / kHeadNode);
}

Machine SlurmProvider::head_machine(const HeadJob& job) const {
  Machine machine;
  machine.node = NodeId(kHeadNode);
  machine.type = spec_.head_node_type;
  machine.head = true;
  machine.id = kHeadId;
  machine.state = job.standing.state;
  machine.reason = job.standing.reason;
  machine.zone = job.job.partition;
  machine.cluster = job.cluster;
  machine.created = job.job.submitted;
  return machine;
}

std::vector<Machine> SlurmProvider::list_head() {
  const auto job = HeadChain::current(chain().list());
  if (!job) return {};
  Machine machine = head_machine(*job);
  machine.outdated = is_outdated(*job);
  return {machine};
}

// It may wait for what can never run.
bool SlurmProvider::is_outdated(const HeadJob& job) {
  if (!job.waits()) return false;
  try {
    return job.launch != HeadChain::launch_of(wanted_head(job.cluster));
  } catch (const Error&) {  // what the YAML says is wrong, which whoever asks for it hears
    return true;
  }
}

// Of one whose last allocation ended without a successor, on storage that outlives them.
ClusterId SlurmProvider::id_of_new(const ClusterId& fresh) {
  if (!spec_.head_moves()) return fresh;
  const std::string said =
      run_or_throw(*login_node(), {"sh", "-c", kLeftHeads, base().string(), spec_.cluster_name}, {},
                   kFileLimit, "looking for a head's folder in " + base().string());
  std::vector<std::string> found = split(said, '\n');
  std::erase_if(found, [](const std::string& name) { return name.empty(); });
  if (found.size() > 1) {
    throw Error(ErrorCode::conflict, "heads of " + spec_.cluster_name + " have left " +
                                         join(found, " and ") + " in " + base().string() +
                                         ", and which is to go on is not known")
        .with_hint("move those that are not wanted away");
  }
  return found.empty() ? fresh : ClusterId(found.front());
}

Machine SlurmProvider::ask_for_head(const ClusterId& cluster) {
  HeadChain jobs = chain();
  std::vector<HeadJob> before = jobs.list();
  const auto there = HeadChain::current(before);
  const bool ends = there && there->standing.state == MachineState::stopping;
  const HeadChain::Wanted wanted = wanted_head(cluster);
  const bool anew = there && is_outdated(*there);
  if (there && !ends && !anew) return head_machine(*there);
  jobs.check(wanted);
  const std::string root = (base() / cluster.str() / kHeadNode).string();
  run_or_throw(*login_node(), {"sh", "-c", "umask 077 && mkdir -p -- \"$0\"", root}, {}, kFileLimit,
               "making " + root);
  if (anew) jobs.cancel(before);
  const std::string id = jobs.ask(wanted, ends ? there->job.id : "");
  try {
    return head_machine(only_one(jobs, id));
  } catch (const Error&) {  // nobody would know of it
    HeadJob own;
    own.job.id = id;
    jobs.cancel({own});
    throw;
  }
}

// Another laptop may have asked at the same time: the first stays.
HeadJob SlurmProvider::only_one(HeadChain& jobs, const std::string& id) const {
  const std::vector<HeadJob> all = jobs.list();
  const auto own =
      std::find_if(all.begin(), all.end(), [&](const HeadJob& each) { return each.job.id == id; });
  if (own == all.end()) {
    throw Error(ErrorCode::failed, "Slurm took the head's job " + id + ", and does not list it");
  }
  for (auto each = all.begin(); each != own; ++each) {
    if (!each->runs() && !each->waits()) continue;
    throw Error(ErrorCode::conflict, "another up has asked for the head of " + spec_.cluster_name +
                                         " at the same time: Slurm job " + each->job.id)
        .with_hint("dtrain up again goes on with that one");
  }
  return *own;
}

void SlurmProvider::release_head(const Machine& head, const OutcomeSink& tell) {
  MachineOutcome outcome{head, std::nullopt};
  try {
    // One that is born meanwhile asks for no nodes.
    const fs::path wanted = paths::HeadRoot{base() / head.cluster.str() / "head"}.machines();
    run_or_throw(*login_node(), {"rm", "-f", "--", wanted.string()}, {}, kFileLimit,
                 "removing " + wanted.string());
    HeadChain jobs = chain();
    jobs.cancel(jobs.list());
    outcome.machine.state = MachineState::stopping;
  } catch (const Error& error) {
    outcome.error = error;
  }
  tell(outcome);
}

void SlurmProvider::follow_head(Machine head, const OutcomeSink& tell,
                                const std::stop_token& stop) {
  const bool goes = head.state == MachineState::stopping;
  if (!goes && head.state != MachineState::pending) return;
  std::mutex mutex;
  std::condition_variable_any wake;
  milliseconds pause = Machines::kFirstLook;
  auto heard = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    Machine now = head;
    try {
      HeadChain jobs = chain();
      const std::vector<HeadJob> all = jobs.list();
      const auto job = HeadChain::current(all);
      heard = std::chrono::steady_clock::now();
      // One that was about to begin when the others were ended.
      const bool is_born = goes && job && (job->runs() || job->waits());
      if (is_born) jobs.cancel(all);
      now.state = job ? job->standing.state : MachineState::gone;
      now.reason = job ? job->standing.reason : goes ? "" : "no Slurm job of it is left";
      if (is_born) now.state = MachineState::stopping;
    } catch (const Error& error) {  // slurmctld is started anew, say
      if (std::chrono::steady_clock::now() - heard > Machines::kLookPatience) throw;
      now.reason = error.message();
    }
    if (now.state != head.state || now.reason != head.reason) {
      head = now;
      tell({head, std::nullopt});
    }
    if (head.state == MachineState::gone && goes) return release_late(stop);
    if (head.state == MachineState::gone || head.state == MachineState::running) return;
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, pause, [] { return false; });
    pause = std::min(Machines::kLastLook, pause + pause / 2);
  }
}

// Nodes that the head has asked for since they were given back: it did not hear that it ends.
void SlurmProvider::release_late(const std::stop_token& stop) {
  std::vector<Machine> late = machines().list();
  std::erase_if(late, [](const Machine& machine) {
    return machine.state != MachineState::pending && machine.state != MachineState::running;
  });
  if (late.empty()) return;
  std::optional<Error> failed;
  std::vector<Machine> going;
  machines().release(late, [&](const MachineOutcome& outcome) {
    if (outcome.error) failed = outcome.error;
    going.push_back(outcome.machine);
  });
  if (failed) throw Error(*failed);
  machines().follow(
      going, [](const MachineOutcome&) {}, stop);
}

std::string SlurmProvider::head_job() {
  const std::lock_guard lock(head_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (seen_head_ && now - seen_head_->first < kSeenLately) return seen_head_->second;
  const auto job = HeadChain::current(chain().list());
  if (!job) {
    throw Error(ErrorCode::unreachable, "the head has no allocation: no Slurm job of it is left")
        .with_hint("dtrain up CLUSTER.yaml asks for one, in which it goes on");
  }
  if (!job->runs()) {
    throw Error(ErrorCode::unreachable,
                "the head's allocation, Slurm job " + job->job.id + ", " +
                    (job->standing.reason.empty() ? "is ending" : job->standing.reason))
        .with_hint("jobs go on meanwhile");
  }
  seen_head_.emplace(now, job->job.id);
  return job->job.id;
}

}  // namespace dtrain::slurm
