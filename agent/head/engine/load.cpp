#include "agent/head/engine/impl.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

// What the store held when the head started.
namespace dtrain::head {
namespace {

// A job is worth more than its last values, of which the history has all.
nlohmann::json last_values(const JobRow& row) {
  try {
    return wire::parse_json(row.metrics, "its metrics");
  } catch (const Error& error) {
    log::warn("the last values of a job's metrics are not read from the database",
              {{"job", row.id.str()}, {"why", error.what()}});
    return nlohmann::json::object();
  }
}

}  // namespace

void Engine::Impl::load() {
  Loaded all = store->load();
  see_clock();
  last_event = all.last_event;
  restored = std::move(all.restored);
  for (JobRow& row : all.jobs) {
    const JobId id = row.id;
    Job& job = jobs[id];
    job.row = std::move(row);
    try {
      job.spec = job_spec_from_json(wire::parse_json(job.row.spec, "its spec"));
      job.metrics = last_values(job.row);
    } catch (const std::exception& error) {  // one job is no reason to be without all others
      log::error("a job cannot be read from the database",
                 {{"job", id.str()}, {"why", error.what()}});
      unread[id] = !job.row.ended;
      jobs.erase(id);
      unknown[id].insert("database");
      continue;
    }
    job.durable = true;
    job.order = ++last_order;
    job.created_at = moments.of(job.row.created, clock.now());
    if (job.row.started) job.started_at = moments.of(*job.row.started, clock.now());
    job.shown = {job.row.state, job.row.reason, job.row.exit_code,
                 job.row.ended, job.row.error,  last_event};
    if (!job.row.submission_id.empty()) submissions[job.row.submission_id] = id;
    if (!job.ended()) live.emplace(id, &job);
    for (const std::string& node : job.row.spares) {
      job.spares.emplace_back().share.node = NodeId(node);
      job.spared.insert(NodeId(node));
    }
  }
  for (AttemptRow& row : all.attempts) {
    Job* job = find(row.job);
    if (job == nullptr) continue;
    Attempt& attempt = job->attempts.emplace_back();
    attempt.row = std::move(row);
    attempt.durable = true;
    attempt.from_store = true;
    attempt.failure = attempt.row.reason;
    attempt.advance.start(clock.now());
  }
  for (ShareRow& row : all.shares) {
    Job* job = find(row.job);
    Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(row.attempt);
    if (attempt == nullptr) continue;
    Share& share = attempt->shares.emplace_back();
    share.row = std::move(row);
    share.seen = share.row.seq;
    // Whether a start was sent is not known; the node says what it has when it joins.
    share.start_sent = true;
  }
  for (RankRow& row : all.ranks) {
    Job* job = find(row.job);
    Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(row.attempt);
    if (attempt == nullptr) continue;
    if (!attempt->row.ended) {
      attempt->advance.started(row.rank, row.node);
      if (is_final(row.state)) attempt->advance.ended(row.rank, clock.now());
    }
    attempt->ranks[row.rank] = std::move(row);
  }
  for (CheckpointRow& row : all.checkpoints) {
    Job* job = find(row.job);
    if (job == nullptr) continue;
    job->least_number = row.number + 1;
    if (row.removing) {
      job->removing.insert(row.number);
    } else {
      job->checkpoints.push_back(std::move(row));
    }
  }
  for (NodeRow& row : all.nodes) {
    Node& node = nodes[row.node];
    node.row = std::move(row);
    node.heard = clock.now();
    if (node.row.state == NodeState::ready) {
      node.row.state = NodeState::joining;
      node.row.reason = "the head was started anew and waits for it";
    }
  }
  // A restored database may know a job and not its nodes: they are awaited like any other.
  for (const auto& [id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt == nullptr) continue;
    for (const Share& share : attempt->shares) {
      if (!share.live() || nodes.contains(share.row.node)) continue;
      Node& node = nodes[share.row.node];
      node.row.node = share.row.node;
      node.row.address = share.row.address;
      node.row.machine = share.row.machine;
      node.row.root = share.row.root;
      node.row.reason = "the head was started anew and waits for it";
      node.heard = clock.now();
    }
  }
  // Whose provider's word may still come, which it has for an hour: explain().
  constexpr std::chrono::hours kTold{1};
  for (const auto& [id, job] : jobs) {
    for (const Attempt& attempt : job.attempts) {
      if (attempt.row.ended && clock.wall() - *attempt.row.ended > kTold) continue;
      for (const Share& share : attempt.shares) {
        const auto node = nodes.find(share.row.node);
        const bool is_its = attempt.row.reason.starts_with(share.row.node.str() + " ");
        if (!is_its || node == nodes.end()) continue;
        const NodeState state = node->second.row.state;  // or it has come back since
        if (!counts(state) || state == NodeState::lost)
          node->second.ended.insert({id, attempt.row.attempt});
      }
    }
  }
  for (const auto& [id, each] : live) {
    Job& job = *each;
    if (job.row.state != JobState::restarting) continue;
    const PastAttempts past = past_of(job);
    if (past.empty()) continue;
    job.suspect = suspect(past);
    wait_before(job, backoff(job.spec.restart, past), *past.back()->ended);
  }
  // Old epochs on nodes that were given up. When their leases end is not known any more, but no
  // later than a lease from now.
  for (const auto& [id, each] : live) {
    Job& job = *each;
    for (Attempt& attempt : job.attempts) {
      for (const Share& share : attempt.shares) {
        const auto node = nodes.find(share.row.node);
        if (share.row.state != ShareState::lost || node == nodes.end()) continue;
        attempt.lose(share.row.node, clock.now());  // or before, which nobody knows any more
        node->second.leftovers.insert({id, attempt.row.attempt});
        if (&attempt == &job.attempts.back()) job.not_before = clock.now() + options.lease;
      }
    }
  }
  for (ForgottenRow& row : all.forgotten) forgotten[row.job] = std::move(row);
  load_searches(std::move(all.searches));
  take_restored();
  finish_deletions();
  for (const auto& [id, job] : jobs) {
    remove_marked(id, {job.removing.begin(), job.removing.end()}, storage(job));
  }
  look_for_unknown();
  clear_old_secrets();
  // Attempts whose last event, or the loss of a node, was kept, but not what followed from it.
  post([this] {
    const std::map<JobId, Job*> now = live;
    for (const auto& [id, job] : now) {
      if (Attempt* attempt = job->live_attempt()) lose_shares_on_lost(*job, *attempt);
      check_end(id);
    }
    finish_removals();
    schedule();
    tick();
  });
}

void Engine::Impl::clear_old_secrets() {
  std::error_code none;
  const fs::path folder = options.root.secrets(JobId("x")).parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const JobId id(entry.path().stem().string());
    const SearchOf* search = find_search(SearchId(id.str()));
    if (search != nullptr && (search->state || search->is_unread)) continue;
    if (unread.contains(id)) continue;
    const bool is_known = jobs.contains(id) || forgotten.contains(id);
    if (live.contains(id) || (!is_known && restored_lately())) continue;
    std::error_code failed;
    fs::remove(entry.path(), failed);
    if (failed) log::warn("old secrets stay", {{"path", entry.path().string()}});
  }
}

}  // namespace dtrain::head
