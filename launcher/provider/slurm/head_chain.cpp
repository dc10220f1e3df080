#include "launcher/provider/slurm/head_chain.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::slurm {
namespace {

// Slurm says to the script alone that the time is nearly over; what ends a job it says to all
// processes of it. Who ends what runs to start another, or to clean up, says so by a file, and that
// it is to go on by a word in it; what ends well by itself has been shut down, by somebody who is
// about to clean up.
constexpr const char* kScript = R"sh(#!/bin/sh
# The head of a dtrain cluster: this runs what `up` has put into the folder that is named here, and
# so does the job that follows it.
root=@ROOT@
DTRAIN_HEAD_START=$(date +%s).$$; export DTRAIN_HEAD_START
child= told= n=0 failed=0
trap 'told=USR1; [ "$child" ] && kill -USR1 $child' USR1
trap 'told=TERM; [ "$child" ] && kill -TERM $child' TERM INT
rm -f "$root/held"
while :; do
  until [ -r "$root/start" ]; do
    [ -d "$root" ] || { sleep 5; exit 0; }
    [ "$told" ] && exit 0
    [ $n -lt @PREPARE@ ] || { echo "nobody has prepared the head in $root"; exit 1; }
    n=$((n+1)); sleep 1
  done
  began=$(date +%s)
  sh "$root/start" &
  child=$!
  [ "$told" ] && kill -$told $child  # before there was one to pass it on to
  wait $child; status=$?
  while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
  child= n=0
  [ "$told" ] && exit $status
  if [ ! -e "$root/held" ] && [ -d "$root" ]; then
    if [ $status = 0 ]; then
      : >"$root/held"
      n=@SHUT@
    else
      [ $(($(date +%s)-began)) -lt @YOUNG@ ] && [ $failed -lt @TRIES@ ] || exit $status
      failed=$((failed+1))
      echo "the head ended with $status as soon as it was started; it is tried again"
      while [ $n -lt @PAUSE@ ] && [ ! -e "$root/held" ] && [ -z "$told" ]; do
        n=$((n+1)); sleep 1
      done
      n=0
    fi
  fi
  while [ -e "$root/held" ] && [ ! -s "$root/held" ] && [ $n -lt @HELD@ ] && [ -z "$told" ]; do
    n=$((n+1)); sleep 1
  done
  [ "$told" ] && exit $status
  rm -f "$root/held"
  n=0
done
)sh";

std::string value_of(std::string_view comment, std::string_view name) {
  for (const std::string& word : split(comment, ' ')) {
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      return word.substr(name.size() + 1);
    }
  }
  return {};
}

void replace(std::string& text, const std::string& place, const std::string& value) {
  text.replace(text.find(place), place.size(), value);
}

}  // namespace

HeadChain::HeadChain(Client client, std::string cluster_name)
    : client_(std::move(client)), cluster_name_(std::move(cluster_name)) {}

std::vector<HeadJob> HeadChain::list() {
  std::vector<HeadJob> jobs;
  const auto now = std::chrono::system_clock::now();
  for (Job& job : client_.jobs("dtrain-" + cluster_name_, kHeadMark)) {
    const ClusterId cluster(value_of(job.comment, "cluster-id"));
    if (value_of(job.comment, "cluster") != cluster_name_ || cluster.empty()) continue;
    Standing standing = standing_of(job, now);
    std::string launch = value_of(job.comment, "launch");
    jobs.push_back({std::move(job), cluster, std::move(launch), std::move(standing)});
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const HeadJob& a, const HeadJob& b) {
    const auto key = [](const HeadJob& each) {
      return std::tuple(each.job.submitted, each.job.id.size(), each.job.id);
    };
    return key(a) < key(b);
  });
  return jobs;
}

std::optional<HeadJob> HeadChain::current(const std::vector<HeadJob>& jobs) {
  for (const MachineState state :
       {MachineState::running, MachineState::pending, MachineState::stopping}) {
    const auto found = std::find_if(jobs.begin(), jobs.end(), [&](const HeadJob& each) {
      return each.standing.state == state;
    });
    if (found != jobs.end()) return *found;
  }
  return std::nullopt;
}

HeadChain::Wanted HeadChain::wanted(const ClusterId& cluster, std::vector<std::string> options,
                                    const fs::path& root) const {
  Wanted wanted{std::move(options), kScript};
  std::string log = (root / "allocation.log").string();
  // Slurm's patterns: %j is the job's id.
  for (std::size_t at = 0; (at = log.find('%', at)) != std::string::npos; at += 2) {
    log.insert(at, 1, '%');
  }
  wanted.options.insert(wanted.options.end(),
                        {"--job-name=dtrain-" + cluster_name_,
                         "--comment=" + std::string(kHeadMark) + "cluster=" + cluster_name_ +
                             " cluster-id=" + cluster.str(),
                         "--nodes=1", "--ntasks-per-node=1", "--no-requeue", "--chdir=/",
                         "--output=" + log, "--open-mode=append"});
  replace(wanted.script, "@ROOT@", shell_quote(root.string()));
  replace(wanted.script, "@PREPARE@", std::to_string(kPrepareLimit.count()));
  replace(wanted.script, "@YOUNG@", std::to_string(kYoung.count()));
  replace(wanted.script, "@TRIES@", std::to_string(kTries));
  replace(wanted.script, "@PAUSE@", std::to_string(kPause.count()));
  replace(wanted.script, "@SHUT@", std::to_string((kHeldLimit - kShutLimit).count()));
  replace(wanted.script, "@HELD@", std::to_string(kHeldLimit.count()));
  return wanted;
}

std::string HeadChain::launch_of(const Wanted& wanted) {
  constexpr std::size_t kLength = 16;
  Sha256 sum;
  // Not the script, which other versions have otherwise: a head that has waited for days keeps its
  // place. All that the YAML says is in the options.
  for (const std::string& option : wanted.options) sum.add(option + '\0');
  return sum.hex().substr(0, kLength);
}

std::string HeadChain::ask(const Wanted& wanted, const std::string& after) {
  Client::Batch batch{wanted.options, wanted.script};
  for (std::string& option : batch.options) {
    if (option.starts_with("--comment=")) option += " launch=" + launch_of(wanted);
  }
  if (!after.empty()) batch.options.push_back("--dependency=afterany:" + after);
  return client_.submit(batch);
}

void HeadChain::cancel(const std::vector<HeadJob>& jobs) {
  std::vector<std::string> ids;
  // The successors first: none is to begin because the one before it ends.
  for (auto each = jobs.rbegin(); each != jobs.rend(); ++each) {
    if (each->standing.state != MachineState::gone) ids.push_back(each->job.id);
  }
  if (!ids.empty()) client_.cancel(ids);
}

}  // namespace dtrain::slurm
