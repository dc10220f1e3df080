#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"

// What an attempt needs before its ranks start, where its nodes are several machines: addresses by
// which they reach one another, tried; the same storage, or the checkpoint brought to each.
namespace dtrain::head {
namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

bool Engine::Impl::remote(const Share& share) const {
  return !options.machine.empty() && share.row.machine != options.machine;
}

bool Engine::Impl::many_machines(const Attempt& attempt) const {
  return std::any_of(attempt.shares.begin(), attempt.shares.end(), [&](const Share& share) {
    return share.row.machine != attempt.shares.front().row.machine;
  });
}

std::string Engine::Impl::storage_of(const Job& job, const Share& share) const {
  if (remote(share) && job.spec.storage_path.empty()) {
    return paths::NodeRoot{share.row.root}.storage(job.row.id).string();
  }
  return storage(job).string();
}

std::optional<std::string> Engine::Impl::checkpoint_of(const Job& job, const Attempt& attempt,
                                                       const Share& share) const {
  if (!attempt.row.checkpoint || !remote(share) || !job.spec.storage_path.empty()) {
    return attempt.row.checkpoint;
  }
  const std::optional<int> number = checkpoint_number(job, *attempt.row.checkpoint);
  if (!number) return std::nullopt;
  return paths::NodeRoot{share.row.root}.checkpoint(job.row.id, *number).string();
}

// The node beside the head dials it by loopback, which says nothing to other machines: they reach
// it where they reach the head.
void Engine::Impl::choose_addresses(Attempt& attempt) const {
  if (!many_machines(attempt)) return;
  std::string head_address;
  for (const Share& share : attempt.shares) {
    const Node& node = nodes.at(share.row.node);
    if (remote(share) && head_address.empty()) head_address = node.head_address;
  }
  if (head_address.empty() || is_loopback(head_address)) return;
  for (Share& share : attempt.shares) {
    if (!remote(share) && is_loopback(share.row.address)) share.row.address = head_address;
  }
}

// True when there is nothing to ask for, or it is there.
bool Engine::Impl::prepare_share(Job& job, Attempt& attempt, Share& share) {
  if (share.prepared || share.start_sent) return true;
  const bool own_storage = remote(share) && job.spec.storage_path.empty();
  const bool look = remote(share) && !attempt.token_file.empty();
  if ((!own_storage || !attempt.row.checkpoint) && !look) return true;
  if (share.prepare_sent) return false;
  const Node& node = nodes.at(share.row.node);
  // An agent from before this cannot be asked; its supervisor will say what is missing.
  if (!node.features.contains("prepare")) return share.prepared = true;
  wire::PrepareAttempt what;
  what.job = job.row.id;
  what.attempt = attempt.row.attempt;
  if (own_storage && attempt.row.checkpoint) {
    what.checkpoint = checkpoint_number(job, *attempt.row.checkpoint);
  }
  if (look) {
    what.token_file = attempt.token_file;
    what.token = attempt.token;
  }
  share.prepare_sent = true;
  nodes_out.prepare(share.row.node, what);
  return false;
}

bool Engine::Impl::ready_to_start(Job& job, Attempt& attempt) {
  bool ready = true;
  bool all_started = true;
  for (Share& share : attempt.shares) {
    if (!share.live()) continue;
    ready = prepare_share(job, attempt, share) && ready;
    all_started = all_started && share.start_sent;
  }
  if (all_started || attempt.pairs_passed || !many_machines(attempt)) return ready;
  if (attempt.pairs_asked) return false;
  // One of each machine: those on one machine reach each other.
  std::vector<Nodes::PairMember> members;
  std::set<std::string> machines;
  for (const Share& share : attempt.shares) {
    const Node& node = nodes.at(share.row.node);
    if (!node.features.contains("pairs")) {
      attempt.pairs_passed = true;
      return ready;
    }
    if (machines.insert(share.row.machine).second) {
      members.push_back({share.row.node, share.row.address});
    }
  }
  attempt.pairs_asked = true;
  nodes_out.check_pairs(job.row.id, attempt.row.attempt, std::move(members));
  return false;
}

void Engine::Impl::give_up_start(Job& job, Attempt& attempt, const std::string& reason) {
  Tx tx;
  fail_attempt(tx, job, attempt, reason, NodeId());
  commit(job, std::move(tx), Urgency::soon);
  check_end(job.row.id);
}

void Engine::Impl::attempt_prepared(const NodeId& node, const JobId& id, int number,
                                    const std::optional<Error>& error) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  if (attempt == nullptr || attempt->row.attempt != number) return;
  Share* share = attempt->share(node);
  if (share == nullptr || !share->live() || share->prepared || !share->prepare_sent) return;
  share->prepare_sent = false;
  if (error) {
    if (!attempt->ending()) {
      give_up_start(*job, *attempt,
                    "it could not be prepared on " + node.str() + ": " + error->what());
    }
    return;
  }
  share->prepared = true;
  advance(*job, *attempt);
}

void Engine::Impl::pairs_checked(const JobId& id, int number,
                                 const std::vector<Nodes::BrokenPair>& broken) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  if (attempt != nullptr && attempt->row.attempt != number) {
    spare_pairs_checked(id, number, broken);
    return;
  }
  if (attempt == nullptr || !attempt->pairs_asked || attempt->pairs_passed) {
    return;
  }
  if (broken.empty()) {
    attempt->pairs_passed = true;
    advance(*job, *attempt);
    return;
  }
  attempt->pairs_asked = false;
  std::vector<std::string> words;
  for (const Nodes::BrokenPair& each : broken) words.push_back(each.words);
  if (!attempt->ending()) {
    give_up_start(*job, *attempt,
                  "its nodes cannot talk to each other: " + join_some(words, kNamedNodes, "; "));
  }
}

std::string Engine::address_of(const NodeId& node) const {
  const auto found = impl_->nodes.find(node);
  if (found == impl_->nodes.end() || is_loopback(found->second.row.address)) return {};
  return found->second.row.address;
}

void Engine::attempt_prepared(const NodeId& node, const JobId& job, int attempt,
                              const std::optional<Error>& error) {
  impl_->attempt_prepared(node, job, attempt, error);
}

void Engine::pairs_checked(const JobId& job, int attempt,
                           const std::vector<Nodes::BrokenPair>& broken) {
  impl_->pairs_checked(job, attempt, broken);
}

}  // namespace dtrain::head
