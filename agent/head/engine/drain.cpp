#include <algorithm>
#include <utility>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/preparation.hpp"

// Nodes that are to be left alone, or leave.
namespace dtrain::head {
namespace {

// What is answered of it as it is now.
std::function<void()> answer_of(const Node& node, Engine::Answer done) {
  return [done = std::move(done), answer = nlohmann::json{{"node", node.row.node.str()},
                                                          {"state", shown(node.row.state)}}] {
    done(answer);
  };
}

std::string removal_of(const NodeId& id, const std::string& why) {
  return id.str() + " was removed from the cluster" + (why.empty() ? "" : ": " + why);
}

}  // namespace

Node& Engine::Impl::known_node(const NodeId& id) {
  const auto found = nodes.find(id);
  if (found == nodes.end() || found->second.row.state == NodeState::gone) {
    throw Error(ErrorCode::not_found, "there is no node " + printable(id.str(), false))
        .with_hint("dtrain status lists the nodes");
  }
  return found->second;
}

std::map<NodeId, std::string> Engine::Impl::nodes_in_use() const {
  std::map<NodeId, std::string> in_use;
  for (const auto& [job_id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt == nullptr) continue;
    for (const Share& share : attempt->shares) {
      // A finished one may still hold the only copy of a checkpoint that it has reported.
      if (share.live()) {
        in_use[share.row.node].clear();
      } else if (!share.open_checkpoints.empty()) {
        in_use.try_emplace(share.row.node, "a checkpoint of " + job_id.str() + " is fetched");
      }
    }
  }
  for (const auto& [id, node] : nodes) {
    const bool is_here = counts(node.row.state) && node.row.state != NodeState::lost;
    if (is_here && unread_on(node) != nullptr) in_use[id].clear();
  }
  return in_use;
}

// Those that were to be drained and have nothing left.
void Engine::Impl::settle_drains() {
  std::optional<std::map<NodeId, std::string>> in_use;
  for (auto& [id, node] : nodes) {
    if (node.row.state != NodeState::draining) continue;
    if (!in_use) in_use = nodes_in_use();
    if (in_use->contains(id)) continue;
    Tx tx;
    set_node(tx, node, NodeEvent::drained, "it gets no new ranks");
    commit_node(std::move(tx));
  }
}

void Engine::Impl::drain(const NodeId& id, bool undo, Answer done) {
  Node& node = known_node(id);
  const bool has_left = node.row.state == NodeState::left;
  if (undo && (has_left || !node.leaves.empty())) {
    throw Error(ErrorCode::conflict, id.str() + (has_left ? " has left: " + node.row.reason
                                                          : " is about to leave: " + node.leaves));
  }
  Tx tx;
  if (undo) {
    const bool was_drained = drains(node);
    if (was_drained) set_node(tx, node, NodeEvent::resume, "");
    if (was_drained && !node.connected)
      set_node(tx, node, NodeEvent::disconnect, "it is not connected");
    if (!node.row.drain.empty()) {  // it is lost
      node.row.drain.clear();
      tx.changes.nodes.push_back(node.row);
    }
  } else if (!has_left) {  // which gets no ranks as it is
    if (!next(node.row.state, NodeEvent::drain)) {
      throw Error(ErrorCode::conflict,
                  id.str() + " is " + to_string(node.row.state) + " and cannot be drained")
          .with_hint("a lost node can be removed");
    }
    set_node(tx, node, NodeEvent::drain, "it gets no new ranks, and is drained when none run");
  }
  tx.when_durable.push_back(answer_of(node, std::move(done)));
  commit_node(std::move(tx));
  schedule();
  rearm();
}

void Engine::Impl::remove_node(const NodeId& id, bool force, Answer done, const std::string& why) {
  Node& node = known_node(id);
  if (node.being_removed) throw Error(ErrorCode::conflict, id.str() + " is being removed");
  const auto in_use = nodes_in_use();
  if (const auto use = in_use.find(id); !force && use != in_use.end()) {
    const bool runs = use->second.empty();
    throw Error(ErrorCode::conflict,
                id.str() + (runs ? " has ranks running" : " is in use: " + use->second))
        .with_hint("drain it first, or remove it with force: " +
                   std::string(runs ? "its attempts fail" : "the checkpoint is lost") + " then");
  }
  // Before it is written that it left: what left must not come back.
  node.being_removed = true;
  // One whose place another has taken is counted no more, one that joined by itself never was.
  const bool counted =
      !node.row.joined && (node.row.state != NodeState::left || missing_nodes() > 0);
  // Its ranks may be heard to have ended before that is written; the others end with them.
  fail_attempts_on(id, removal_of(id, why), [&](const JobId& job, int attempt, bool sent) {
    find(job)->find_attempt(attempt)->lose(id, clock.now());
    if (sent) stop_leftover(id, job, attempt);
  });
  nodes_out.revoke(id, counted,
                   [this, id, counted, why, done = std::move(done),
                    guard = std::weak_ptr<int>(alive)](const std::optional<Error>& failed) {
                     if (!guard.lock()) return;
                     nodes.at(id).being_removed = false;
                     if (!failed) return removed(id, counted, why, done);
                     schedule();
                     done(wire::error_to_json(*failed));
                   });
}

void Engine::Impl::fail_attempts_on(
    const NodeId& id, const std::string& reason,
    const std::function<void(const JobId& job, int attempt, bool sent)>& failed) {
  for (const JobId& job_id : jobs_on(id)) {
    Job* job = find(job_id);
    // One that is being prepared looks at its nodes once more before it begins.
    Attempt* attempt = job == nullptr || job->preparing ? nullptr : job->live_attempt();
    const Share* share = attempt == nullptr ? nullptr : attempt->share(id);
    if (share == nullptr || !share->live()) continue;
    const bool sent = share->start_sent;
    const int number = attempt->row.attempt;
    Tx tx;
    fail_attempt(tx, *job, *attempt, reason, id);
    commit(*job, std::move(tx), Urgency::now);
    failed(job_id, number, sent);
    check_end(job_id);
  }
}

void Engine::Impl::removed(const NodeId& id, bool counted, const std::string& why, Answer done) {
  Node& node = nodes.at(id);
  lose_shares(node, removal_of(id, why));
  node.connected = false;
  node.leftovers.clear();
  Tx tx;
  set_node(tx, node, NodeEvent::remove, "it was removed from the cluster");
  tx.when_durable.push_back(answer_of(node, std::move(done)));
  commit_node(std::move(tx));
  nodes_out.give_up(id);
  if (counted) options.expected_nodes = std::max(1, options.expected_nodes - 1);
  schedule();
  rearm();
}

// A head that died between a node's being let in no more and the writing of it: it has left now. It
// is counted no more either, which was written first.
void Engine::Impl::finish_removals() {
  std::vector<NodeId> shut_out;
  for (const auto& [id, node] : nodes) {
    try {
      if (counts(node.row.state) && !nodes_out.is_let_in(id)) shut_out.push_back(id);
    } catch (const Error& error) {
      log::warn("it is not known whether a node is let in",
                {{"node", id.str()}, {"why", error.what()}});
    }
  }
  for (const NodeId& id : shut_out) removed(id, false, "", [](const nlohmann::json&) {});
}

void Engine::Impl::leaving(const NodeId& id, const std::string& told, bool over,
                           std::function<void()> left) {
  const auto found = nodes.find(id);
  if (found == nodes.end() || !found->second.connected) return;
  Node& node = found->second;
  const std::string reason = printable(told, false);
  if (node.leaves.empty()) {
    log::warn("a node is about to leave", {{"node", id.str()}, {"reason", reason}});
  }
  node.leaves = reason;
  const std::string failure = id.str() + " leaves the cluster: " + reason;
  fail_attempts_on(id, failure, [&](const JobId& job, int attempt, bool) {
    Attempt& failed = *find(job)->find_attempt(attempt);
    failed.left = failed.left || failed.failure == failure;
    found->second.ended.insert({job, attempt});
    // Its own ranks the node ends itself.
    if (over) share_broken(id, job, attempt, failure, Broken::supervisor_gone, {});
  });
  if (over) {
    node.leftovers.clear();
    node.connected = false;
    node.left = ++last_left;
    Tx tx;
    set_node(tx, node, NodeEvent::leave, reason);
    if (left) tx.when_durable.push_back(std::move(left));
    commit_node(std::move(tx));
    nodes_out.give_up(id);
  }
  schedule();
  rearm();
}

// To a reason that is the node's, and has not got it yet.
void Engine::Impl::add_word(const NodeId& id, std::string& reason) const {
  const std::string& word = nodes.at(id).word;
  const bool is_its = !word.empty() && reason.starts_with(id.str() + " ");
  if (is_its && reason.find(word) == std::string::npos) reason += "; " + word;
}

void Engine::Impl::explain(const NodeId& id, const std::string& told, bool taken_back) {
  const auto node = nodes.find(id);
  if (node == nodes.end()) return;
  node->second.word = printable(told, false);
  node->second.taken_back = taken_back;
  for (const auto& [job_id, number] : node->second.ended) {
    Job* job = find(job_id);
    Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
    if (attempt == nullptr) continue;
    Tx tx;
    bool is_cause = false;  // or something else has ended it before
    const auto add = [&](std::string& reason) {
      const std::size_t before = reason.size();
      add_word(id, reason);
      is_cause = is_cause || reason.size() > before;
      return reason.size() > before;
    };
    add(attempt->failure);
    bool changed = add(attempt->row.reason);
    Share* share = attempt->share(id);
    if (share != nullptr && add(share->row.reason)) tx.changes.shares.push_back(share->row);
    const bool is_lost = share != nullptr && share->row.state == ShareState::lost;
    Fault& fault = attempt->row.fault;
    if (taken_back && fault.kind == FaultKind::node_lost && fault.node == id) {
      fault.kind = FaultKind::preempted;
      changed = true;
    }
    const auto& count = job->spec.restart.count;
    const bool counts = std::find(count.begin(), count.end(), "preempted") != count.end();
    if (taken_back && is_lost && !job->ended() && !counts &&
        std::exchange(attempt->row.counted, false)) {
      --job->row.restarts;
      tx.job = true;
      changed = true;
      note(tx, *job, EventLevel::info,
           "the end of attempt " + std::to_string(number) +
               " does not count among max_restarts: " + id.str() + " was taken back");
    }
    if (changed) tx.changes.attempts.push_back(attempt->row);
    if (!is_cause && !changed) continue;
    note(tx, *job, EventLevel::warning, id.str() + ": " + node->second.word);
    commit(*job, std::move(tx), Urgency::soon);
  }
}

void Engine::drain(const NodeId& node, bool undo, Answer done) {
  impl_->drain(node, undo, std::move(done));
}

void Engine::remove_node(const NodeId& node, bool force, Answer done, const std::string& why) {
  impl_->remove_node(node, force, std::move(done), why);
}

void Engine::leaving(const NodeId& node, const std::string& reason, bool over,
                     std::function<void()> left) {
  impl_->leaving(node, reason, over, std::move(left));
}

void Engine::explain(const NodeId& node, const std::string& why, bool taken_back) {
  impl_->explain(node, why, taken_back);
}

void Engine::expect_nodes(int count) {
  impl_->options.expected_nodes = count;
  impl_->schedule();
}

std::optional<NodeCapacity> Engine::capacity(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  if (found == impl_->nodes.end()) return std::nullopt;
  return impl_->empty_capacity(found->second);
}

Engine::Presence Engine::presence(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  if (found == impl_->nodes.end()) return Presence::unseen;
  const Node& node = found->second;
  if (!counts(node.row.state) || node.row.state == NodeState::lost) return Presence::lost;
  return node.connected ? Presence::here : Presence::away;
}

std::map<NodeId, std::string> Engine::nodes_in_use() const {
  auto in_use = impl_->nodes_in_use();
  for (const auto& [node, job] : impl_->spares()) {
    in_use.try_emplace(node, "it is kept as a spare of " + job.str());
  }
  return in_use;
}

std::string Engine::broken(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  if (found == impl_->nodes.end() || !found->second.unprepared) return {};
  const std::string& what = found->second.preparing;
  return what.starts_with(wire::kCannotBePrepared) ? what : "";
}

bool Engine::is_prepared(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  return found != impl_->nodes.end() && !found->second.unprepared;
}

bool Engine::leaves(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  return found != impl_->nodes.end() && !found->second.leaves.empty();
}

bool Engine::is_drained(const NodeId& id) const {
  const auto found = impl_->nodes.find(id);
  return found != impl_->nodes.end() && drains(found->second);
}

}  // namespace dtrain::head
