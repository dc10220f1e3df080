#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "agent/head/engine/spares.hpp"
#include "launcher/core/text.hpp"

// The nodes that are kept for a running job beyond its own: chosen, prepared as those of an attempt
// are, and given back. An attempt that begins takes them by the queue's decision.
namespace dtrain::head {
namespace {

constexpr int kNotedSpares = 100;  // lines of a job's events about them
constexpr std::chrono::seconds kPairsAgain{60};

bool wants_spares(const Job& job) {
  return job.spec.spares > 0 && job.durable && !job.attempts.empty() && !job.ended() &&
         job.row.stop_cause == StopCause::none && !job.gave_up_kept;
}

NodeCapacity* find_capacity(std::vector<NodeCapacity>& nodes, const NodeId& id) {
  const auto at =
      std::lower_bound(nodes.begin(), nodes.end(), id,
                       [](const NodeCapacity& a, const NodeId& b) { return a.node < b; });
  return at != nodes.end() && at->node == id ? &*at : nullptr;
}

Spare* find_spare(Job* job, const NodeId& node, int number) {
  if (job == nullptr) return nullptr;
  for (Spare& spare : job->spares) {
    if (spare.share.node == node && spare.number == number) return &spare;
  }
  return nullptr;
}

}  // namespace

bool Engine::Impl::takes_ranks(const Node& node) {
  return node.row.state == NodeState::ready && node.connected && !node.being_removed &&
         node.leaves.empty() && !node.unprepared;
}

// It is not connected, and may be again before it is lost.
bool Engine::Impl::may_come(const Node& node) {
  const bool stays = node.row.state == NodeState::ready || node.row.state == NodeState::joining;
  return stays && !node.connected && node.leaves.empty() && !node.being_removed;
}

// No GPU is kept that another has: where a head does not know who gave up, who began last has it.
Engine::Impl::KeptGangs Engine::Impl::kept_gangs() const {
  std::vector<const Job*> theirs;
  for (const auto& [id, job] : live) {
    const bool waits = job->row.state == JobState::restarting && !job->preparing;
    if (waits && wants_spares(*job)) theirs.push_back(job);
  }
  KeptGangs gangs_kept;
  if (theirs.empty()) return gangs_kept;
  std::stable_sort(theirs.begin(), theirs.end(), [](const Job* a, const Job* b) {
    return a->attempts.back().row.created > b->attempts.back().row.created;
  });
  std::vector<NodeCapacity> capacity = capacities();
  for (const Job* job : theirs) {
    for (const Share& share : job->attempts.back().shares) {
      NodeCapacity* there = find_capacity(capacity, share.row.node);
      if (there == nullptr || !takes_ranks(nodes.at(share.row.node))) continue;
      PlacedShare part = placed(*job, share);
      if (!has_gpus_for(*there, part)) continue;
      use(*there, part);
      gangs_kept[job->row.id].push_back(std::move(part));
    }
  }
  return gangs_kept;
}

WaitingJob::Kept Engine::Impl::kept_for(const Job& job, const KeptGangs& gangs_kept) const {
  WaitingJob::Kept kept;
  if (!wants_spares(job) || job.row.state != JobState::restarting) return kept;
  if (const auto gang = gangs_kept.find(job.row.id); gang != gangs_kept.end())
    kept.gang = gang->second;
  const auto is_away = [&](const NodeId& id) {
    const auto node = nodes.find(id);
    return node != nodes.end() && may_come(node->second);
  };
  for (const Spare& spare : job.spares) {
    kept.spares.push_back(spare.share);
    kept.away = kept.away || is_away(spare.share.node);
  }
  for (const Share& share : job.attempts.back().shares) {
    kept.away = kept.away || is_away(share.row.node);
  }
  kept.width = static_cast<int>(job.attempts.back().shares.size());
  return kept;
}

void Engine::Impl::use_kept(const Job& job, const KeptGangs& gangs_kept, bool spares_too,
                            std::vector<NodeCapacity>& capacity) {
  const auto keep = [&](const PlacedShare& share, const std::string& how) {
    NodeCapacity* node = find_capacity(capacity, share.node);
    if (node == nullptr) return;
    use(*node, share);
    node->kept = "is kept " + how + job.row.id.str();
  };
  if (const auto gang = gangs_kept.find(job.row.id); gang != gangs_kept.end()) {
    for (const PlacedShare& share : gang->second) keep(share, "for ");
  }
  if (!spares_too) return;
  for (const Spare& spare : job.spares) keep(spare.share, "as a spare of ");
}

void Engine::Impl::settle_spares(bool take_new) {
  std::vector<SpareWant> wants;
  std::vector<Job*> theirs;
  for (const auto& [id, each] : live) {
    Job& job = *each;
    if (!wants_spares(job)) {
      if (!job.spares.empty()) keep_spares(job, {}, "");
      continue;
    }
    SpareWant want{id, job.spec.priority, job.order, demand_of(job.spec), 0, {}};
    for (const Share& share : job.attempts.back().shares) want.not_on.insert(share.row.node);
    for (const auto& [node, why] : job.unfit) want.not_on.insert(node);
    for (const Spare& spare : job.spares) want.has.push_back(spare.share.node);
    want.count = static_cast<std::size_t>(job.spec.spares);
    want.takes_new = take_new;
    wants.push_back(std::move(want));
    theirs.push_back(&job);
  }
  if (wants.empty()) return;
  std::vector<NodeCapacity> capacity = capacities();
  for (NodeCapacity& node : capacity) {
    if (const auto kept = growth.kept.find(node.node); kept != growth.kept.end()) {
      for (const PlacedShare& share : kept->second) use(node, share);
    }
  }
  const KeptGangs gangs_kept = kept_gangs();
  for (const Job* job : theirs) use_kept(*job, gangs_kept, false, capacity);
  std::set<NodeId> away;
  for (const auto& [id, node] : nodes) {
    if (may_come(node)) away.insert(id);
  }
  SpareDecision decision = decide_spares(std::move(capacity), away, std::move(wants));
  for (Job* job : theirs) {
    std::string reason = take_new ? decision.reasons[job->row.id] : job->lacks;
    if (take_new && !reason.empty()) {
      if (const auto coming = growth.reasons.find(job->row.id); coming != growth.reasons.end()) {
        reason += "; " + coming->second;
      }
      if (const auto first = job->unfit.begin(); first != job->unfit.end()) {
        reason += "; " + first->first.str() + " cannot be one: " + first->second;
      }
    }
    keep_spares(*job, std::move(decision.spares[job->row.id]), reason);
    if (take_new) prepare_spares(*job);
  }
}

void Engine::Impl::keep_spares(Job& job, std::vector<PlacedShare> shares,
                               const std::string& lacks) {
  Tx tx;
  set_spares(tx, job, std::move(shares), lacks);
  if (tx.job || !tx.changes.events.empty()) commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::set_spares(Tx& tx, Job& job, std::vector<PlacedShare> shares,
                              const std::string& lacks) {
  const auto say = [&](const std::string& what) {
    if (job.spares_noted++ < kNotedSpares) note(tx, job, EventLevel::info, what);
  };
  std::vector<Spare> now;
  for (PlacedShare& share : shares) {
    const auto old = std::find_if(job.spares.begin(), job.spares.end(), [&](const Spare& spare) {
      return spare.share.node == share.node;
    });
    if (old != job.spares.end()) {
      now.push_back(std::move(*old));
      job.spares.erase(old);
    } else {
      say(share.node.str() + " is kept as a spare");
      job.spared.insert(share.node);
      now.emplace_back();
    }
    now.back().share = std::move(share);
  }
  for (const Spare& gone : job.spares) {
    const Attempt* attempt = job.live_attempt();
    if (attempt != nullptr && attempt->share(gone.share.node) != nullptr)
      continue;  // it is one of its own now
    if (gone.number > 0) nodes_out.unstage(gone.share.node, job.row.id, gone.number);
    if (!job.ended()) say(gone.share.node.str() + " is no spare any more");
  }
  job.spares = std::move(now);
  if (job.lacks != lacks) {
    job.lacks = lacks;
    if (!lacks.empty()) say(lacks);
  }
  std::vector<std::string> names;
  for (const Spare& spare : job.spares) names.push_back(spare.share.node.str());
  tx.job = tx.job || names != job.row.spares;
  job.row.spares = std::move(names);
}

// While its ranks run, so that its own start waits for nothing: content as for the next attempt,
// then whether it and the job's nodes reach each other.
void Engine::Impl::prepare_spares(Job& job) {
  const Attempt* attempt = job.live_attempt();
  if (attempt == nullptr || attempt->row.state != AttemptState::running) return;
  const int number = next_attempt(job);
  bool pairs_wait = false;
  for (Spare& spare : job.spares) {
    const NodeId& id = spare.share.node;
    if (spare.number != number) {
      if (spare.number > 0) nodes_out.unstage(id, job.row.id, spare.number);
      spare = {std::move(spare.share), number};
    }
    const Node& node = nodes.at(id);
    if (spare.ready || !takes_ranks(node)) continue;
    if (job.spec.content && !spare.staged) {
      if (!std::exchange(spare.stage_sent, true)) {
        nodes_out.stage(id, {job.row.id, number, *job.spec.content});
      }
      continue;
    }
    if (!spare.pairs_passed && !pairs_wait && !spare.pairs_again) {
      const auto members = pairs_with(*attempt, spare);
      if (members.empty()) {
        spare.pairs_passed = true;
      } else {
        // One after the other: a second question takes the place of the first.
        pairs_wait = true;
        if (!std::exchange(spare.pairs_asked, true)) {
          nodes_out.check_pairs(job.row.id, number, members);
        }
      }
    }
    if (!spare.pairs_passed) continue;
    spare.ready = true;
    Tx tx;
    if (job.spares_noted++ < kNotedSpares) {
      note(tx, job, EventLevel::info, id.str() + " is ready as a spare");
      commit(job, std::move(tx), Urgency::soon);
    }
  }
}

// The spare first, which then is tried with each of the others, both ways. None: there is nothing
// to try.
std::vector<Nodes::PairMember> Engine::Impl::pairs_with(const Attempt& attempt,
                                                        const Spare& spare) const {
  Attempt both;
  Share& it = both.shares.emplace_back();
  it.row.node = spare.share.node;
  it.row.address = nodes.at(spare.share.node).row.address;
  it.row.machine = nodes.at(spare.share.node).row.machine;
  for (const Share& share : attempt.shares) both.shares.emplace_back().row = share.row;
  if (!many_machines(both)) return {};
  choose_addresses(both);
  std::vector<Nodes::PairMember> members;
  std::set<std::string> machines;
  for (const Share& share : both.shares) {
    if (!nodes.at(share.row.node).features.contains("pairs")) return {};
    if (!machines.insert(share.row.machine).second) continue;
    members.push_back({share.row.node, share.row.address});
  }
  return members;
}

bool Engine::Impl::is_spare(const Job& job, const NodeId& node, int number) {
  return std::any_of(job.spares.begin(), job.spares.end(), [&](const Spare& spare) {
    return spare.share.node == node && spare.number == number;
  });
}

bool Engine::Impl::spare_staged(const NodeId& node, const wire::Staging& news) {
  Job* job = find(news.job);
  Spare* spare = find_spare(job, node, news.attempt);
  if (spare == nullptr) return false;
  if (news.ready) {
    spare->staged = true;
    prepare_spares(*job);
  }
  return true;
}

bool Engine::Impl::spare_failed(const NodeId& node, const JobId& id, int number,
                                const std::string& why) {
  Job* job = find(id);
  if (job == nullptr || !is_spare(*job, node, number)) return false;
  Tx tx;
  job->unfit[node] = why;
  if (job->spares_noted++ < kNotedSpares) {
    note(tx, *job, EventLevel::warning, node.str() + " cannot be a spare: " + why);
    commit(*job, std::move(tx), Urgency::soon);
  }
  schedule();
  return true;
}

bool Engine::Impl::spare_pairs_checked(const JobId& id, int number,
                                       const std::vector<Nodes::BrokenPair>& broken) {
  Job* job = find(id);
  if (job == nullptr) return false;
  for (Spare& spare : job->spares) {
    if (spare.number != number || !spare.pairs_asked || spare.pairs_passed) continue;
    spare.pairs_asked = false;
    // What is wrong with a node beside the spare too is no fault of the spare's.
    std::set<NodeId> others;
    for (const Nodes::BrokenPair& each : broken) {
      if (!each.between.contains(spare.share.node)) others.merge(std::set(each.between));
    }
    std::vector<std::string> all;
    std::vector<std::string> its;
    for (const Nodes::BrokenPair& each : broken) {
      all.push_back(each.words);
      const bool is_its = each.between.contains(spare.share.node) &&
                          std::none_of(each.between.begin(), each.between.end(),
                                       [&](const NodeId& node) { return others.contains(node); });
      if (is_its) its.push_back(each.words);
    }
    if (!its.empty()) {
      return spare_failed(spare.share.node, id, number, join_some(its, kNamedNodes, "; "));
    }
    spare.pairs_passed = broken.empty();
    if (!broken.empty()) {
      spare.pairs_again = clock.now() + kPairsAgain;
      rearm();
      if (job->spares_noted++ < kNotedSpares) {
        Tx tx;
        note(tx, *job, EventLevel::warning,
             spare.share.node.str() + " could not be tried as a spare, and will be again in " +
                 human_duration(kPairsAgain) + ": " + join_some(all, kNamedNodes, "; "));
        commit(*job, std::move(tx), Urgency::soon);
      }
    }
    prepare_spares(*job);
    return true;
  }
  return false;
}

// Pair tests of which it was part are over without a result; what it had been asked is not known.
void Engine::Impl::spare_gone(const NodeId& id) {
  for (const auto& [name, job] : live) {
    for (Spare& spare : job->spares) {
      spare.pairs_asked = false;
      if (spare.share.node == id) spare.stage_sent = false;
    }
  }
}

std::map<NodeId, JobId> Engine::Impl::spares() const {
  std::map<NodeId, JobId> all;
  for (const auto& [id, job] : live) {
    for (const Spare& spare : job->spares) all[spare.share.node] = id;
  }
  return all;
}

}  // namespace dtrain::head
