#include <unistd.h>

#include <algorithm>

#include "agent/head/engine/descriptors.hpp"
#include "agent/head/engine/history.hpp"
#include "agent/head/engine/impl.hpp"
#include "agent/head/engine/retention.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/spec/values.hpp"
#include "launcher/wire/json.hpp"

// What the API shows: docs/api.md.
namespace dtrain::head {
namespace {

constexpr std::size_t kMostSearches = 20;  // of a status

nlohmann::json parsed(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

nlohmann::json checkpoint_json(const CheckpointRow& row) {
  return {{"number", row.number},
          {"path", row.path},
          {"step", row.step},
          {"attempt", row.attempt},
          {"metrics", parsed(row.metrics)},
          {"created", rfc3339(row.created)},
          {"size", row.size}};
}

// Where a rank is by its newest heartbeat, which came at `heard`.
nlohmann::json beat_json(const wire::RankBeat& beat, WallTime heard) {
  constexpr double kLatest = 253402300799;  // seconds since 1970, the end of 9999
  nlohmann::json collective;
  if (const auto& call = beat.collective) {
    const bool dated = call->entered && *call->entered >= 0 && *call->entered < kLatest;
    collective = {{"sequence", call->sequence},
                  {"name", call->name},
                  {"bytes", call->bytes ? nlohmann::json(*call->bytes) : nlohmann::json()},
                  {"entered", dated ? nlohmann::json(rfc3339(from_millis(
                                          static_cast<std::int64_t>(*call->entered * 1000))))
                                    : nlohmann::json()},
                  {"done", call->done ? nlohmann::json(*call->done) : nlohmann::json()}};
  }
  return {{"step", beat.step ? nlohmann::json(*beat.step) : nlohmann::json()},
          {"phase", beat.phase},
          {"collective", std::move(collective)},
          {"heard", rfc3339(heard)}};
}

nlohmann::json pace_json(const Pace& pace) {
  const auto known = [](const std::optional<double>& seconds) {
    return seconds ? nlohmann::json(*seconds) : nlohmann::json();
  };
  return {{"steps", pace.steps},
          {"step", pace.step},
          {"own", known(pace.own)},
          {"data", known(pace.data)},
          {"compute", known(pace.compute)},
          {"communication", known(pace.communication)},
          {"wait", known(pace.wait)},
          {"p50", pace.p50},
          {"p90", pace.p90},
          {"max", pace.max},
          {"slow", pace.slow}};
}

nlohmann::json gpu_amount(int parts) {
  GpuAmount amount;
  amount.parts = parts;
  return to_json(amount);
}

nlohmann::json attempt_json(const Job& job, const Attempt& attempt, const Clock& clock) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Share& share : attempt.shares) {
    nlohmann::json ranks = nlohmann::json::array();
    for (int i = 0; i < share.row.nproc; ++i) ranks.push_back(share.row.first_rank + i);
    nodes.push_back({{"node", share.row.node.str()},
                     {"address", share.row.address},
                     {"ranks", ranks},
                     {"gpus", share.row.gpus},
                     {"gpu_part", gpu_amount(placed(job, share).gpu_part)}});
  }
  nlohmann::json ranks = nlohmann::json::array();
  for (const auto& [number, rank] : attempt.ranks) {
    ranks.push_back({{"rank", number},
                     {"node", rank.node.str()},
                     {"state", to_string(rank.state)},
                     {"pid", rank.pid}});
    const auto place = attempt.advance.ranks().find(number);
    if (place == attempt.advance.ranks().end() || !place->second.heard) continue;
    const auto age = clock.now() - *place->second.heard;
    ranks.back()["heartbeat"] = beat_json(
        place->second.beat, clock.wall() - std::chrono::duration_cast<WallTime::duration>(age));
    if (const auto pace = attempt.stragglers.pace(number)) {
      ranks.back()["step_times"] = pace_json(*pace);
    }
  }
  return {{"attempt", attempt.row.attempt},
          {"state", to_string(attempt.row.state)},
          {"reason", attempt.row.reason},
          {"failure", attempt.row.fault.kind == FaultKind::none
                          ? nlohmann::json()
                          : nlohmann::json(to_string(attempt.row.fault.kind))},
          {"causes", parsed(attempt.row.causes)},
          {"step", attempt.row.step ? nlohmann::json(*attempt.row.step) : nlohmann::json()},
          {"counted", attempt.row.counted},
          {"world_size", attempt.row.world_size},
          {"created", rfc3339(attempt.row.created)},
          {"started", time_json(attempt.row.started)},
          {"ended", time_json(attempt.row.ended)},
          {"checkpoint",
           attempt.row.checkpoint ? nlohmann::json(*attempt.row.checkpoint) : nlohmann::json()},
          {"nodes", nodes},
          {"ranks", ranks}};
}

}  // namespace

nlohmann::json time_json(const std::optional<WallTime>& time) {
  return time ? nlohmann::json(rfc3339(*time)) : nlohmann::json();
}

nlohmann::json Engine::Impl::status(std::optional<std::size_t> most_jobs, bool trials) const {
  nlohmann::json node_list = nlohmann::json::array();
  std::vector<const Node*> order;
  for (const auto& [id, node] : nodes) order.push_back(&node);
  std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) {
    return natural_less(a->row.node.str(), b->row.node.str());
  });
  // One that has left by itself is shown until another has taken its place: the last ones.
  std::vector<const Node*> left;
  std::copy_if(order.begin(), order.end(), std::back_inserter(left),
               [](const Node* node) { return node->row.state == NodeState::left; });
  std::stable_sort(left.begin(), left.end(),
                   [](const Node* a, const Node* b) { return a->left > b->left; });
  left.resize(std::min(left.size(), static_cast<std::size_t>(missing_nodes())));
  const std::set<const Node*> still(left.begin(), left.end());
  std::erase_if(
      order, [&](const Node* node) { return !counts(node->row.state) && !still.contains(node); });
  std::map<NodeId, std::vector<std::string>> here;
  std::map<NodeId, NodeCapacity> used;
  for (const auto& [id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt == nullptr) continue;
    for (const Share& share : attempt->shares) {
      if (!share.live()) continue;
      here[share.row.node].push_back(id.str());
      if (!share.row.gpus.empty()) use(used[share.row.node], placed(*job, share));
    }
  }
  const std::map<NodeId, JobId> kept = spares();
  for (const Node* node : order) {
    const NodeRow& row = node->row;
    const auto spare = kept.find(row.node);
    nlohmann::json interfaces = nlohmann::json::array();
    for (const wire::Interface& each : node->interfaces) {
      interfaces.push_back({{"name", each.name}, {"address", each.address}});
    }
    nlohmann::json gpus_used = nlohmann::json::object();
    for (const auto& [gpu, parts] : used[row.node].gpus_used) {
      gpus_used[std::to_string(gpu)] = gpu_amount(parts);
    }
    const bool leaves =
        !node->leaves.empty() && (row.state == NodeState::ready || row.state == NodeState::joining);
    const bool waits = node->unprepared && row.state == NodeState::ready && !leaves;
    std::string reason = leaves ? "about to leave: " + node->leaves : row.reason;
    if (reason.empty()) reason = node->preparing;
    if (const JobId* unread_job = unread_on(*node); reason.empty() && unread_job != nullptr) {
      reason = "it runs " + unread_job->str() + ", which this head cannot read";
    } else if (reason.empty() && !node->leftovers.empty()) {
      reason = "an old attempt of " + node->leftovers.begin()->first.str() + " is being stopped";
    }
    node_list.push_back({{"node", row.node.str()},
                         {"state", shown(leaves  ? NodeState::draining
                                         : waits ? NodeState::joining
                                                 : row.state)},
                         {"address", row.address},
                         {"interfaces", std::move(interfaces)},
                         {"reason", reason},
                         {"joined", row.joined},
                         {"type", row.type},
                         {"cpus", row.cpus},
                         {"gpus", row.gpus},
                         {"gpus_used", std::move(gpus_used)},
                         {"memory", row.memory},
                         {"version", row.version},
                         {"root", row.root},
                         {"log", row.log},
                         {"jobs", std::move(here[row.node])},
                         {"spare_of", spare == kept.end() ? nlohmann::json()
                                                          : nlohmann::json(spare->second.str())}});
  }
  nlohmann::json job_list = nlohmann::json::array();
  std::vector<const Job*> newest;
  for (const auto& [id, job] : jobs) {
    if (job.durable && (trials || !job.spec.is_leg())) newest.push_back(&job);
  }
  std::sort(newest.begin(), newest.end(),
            [](const Job* a, const Job* b) { return a->order > b->order; });
  std::map<std::string, std::size_t> counts;
  for (const Job* job : newest) ++counts[to_string(job->shown.state)];
  if (most_jobs && newest.size() > *most_jobs) {
    const auto ended = std::stable_partition(
        newest.begin(), newest.end(), [](const Job* job) { return !is_final(job->shown.state); });
    std::stable_partition(newest.begin(), ended,
                          [](const Job* job) { return job->shown.state != JobState::queued; });
    newest.resize(*most_jobs);
  }
  for (const Job* job : newest) job_list.push_back(summary(*job));
  std::map<std::string, std::size_t> search_counts;
  for (const auto& [id, search] : searches) {
    if (search.durable) ++search_counts[to_string(search.row.state)];
  }
  return {{"cluster",
           {{"name", options.cluster_name},
            {"id", options.cluster.str()},
            {"provider", options.provider},
            {"version", DTRAIN_VERSION},
            {"started", rfc3339(started)},
            {"expected_nodes", options.expected_nodes},
            {"trouble", store->trouble()},
            {"store", store_view()},
            {"warnings", warnings()},
            {"forgotten", forgotten_lately()},
            {"disk", {{"total", disk.total}, {"free", disk.free}, {"ended_jobs", disk.ended_jobs}}},
            {"head",
             {{"pid", ::getpid()},
              {"root", options.root.root.string()},
              {"log", options.root.log().string()}}}}},
          {"nodes", std::move(node_list)},
          {"jobs", std::move(job_list)},
          {"job_counts", counts},
          {"searches", search_list(kMostSearches)},
          {"search_counts", search_counts}};
}

nlohmann::json Engine::Impl::state_json(const Job& job) const {
  const std::optional<int>& code = job.shown.exit_code;
  return {{"state", to_string(job.shown.state)},
          {"reason", reason_of(job)},
          {"exit_code", code ? nlohmann::json(*code) : nlohmann::json()}};
}

nlohmann::json Engine::Impl::summary(const Job& job) const {
  const Job::Shown& shown = job.shown;
  nlohmann::json node_names = nlohmann::json::array();
  nlohmann::json world_size;
  if (!job.attempts.empty() && shown.state != JobState::queued &&
      shown.state != JobState::restarting) {
    world_size = job.attempts.back().row.world_size;
    for (const Share& share : job.attempts.back().shares) {
      node_names.push_back(share.row.node.str());
    }
  } else if (job.spec.nproc_per_node.kind == ProcsKind::number &&
             job.spec.nnodes.min == job.spec.nnodes.max) {
    world_size = job.spec.nnodes.min * job.spec.nproc_per_node.number;
  }
  nlohmann::json spare_list = nlohmann::json::array();
  for (const Spare& spare : job.spares) {
    spare_list.push_back({{"node", spare.share.node.str()}, {"ready", spare.ready}});
  }
  const bool is_leg = job.spec.is_leg();
  return {{"job", job.row.id.str()},
          {"name", job.spec.name},
          {"state", to_string(shown.state)},
          {"reason", reason_of(job)},
          {"exit_code", shown.exit_code ? nlohmann::json(*shown.exit_code) : nlohmann::json()},
          {"attempt", job.row.attempt},
          {"world_size", world_size},
          {"nodes", node_names},
          {"spares", std::move(spare_list)},
          {"spare_reason", job.lacks},
          {"priority", job.spec.priority},
          {"created", rfc3339(job.row.created)},
          {"started", time_json(job.row.started)},
          {"ended", time_json(shown.ended)},
          {"progress", job.progress},
          {"search", is_leg ? nlohmann::json(job.spec.trial->search) : nlohmann::json()},
          {"trial", is_leg ? nlohmann::json(job.spec.trial->number) : nlohmann::json()}};
}

nlohmann::json Engine::Impl::details(const Job& job) const {
  nlohmann::json all = summary(job);
  all["spec"] = to_json(job.spec);
  all["attempts"] = nlohmann::json::array();
  for (const Attempt& attempt : job.attempts) {
    if (attempt.durable) all["attempts"].push_back(attempt_json(job, attempt, clock));
  }
  all["metrics"] = nlohmann::json::object();
  for (const auto& [name, last] : job.metrics.items()) all["metrics"][name] = last.at("value");
  all["step"] = job.row.step ? nlohmann::json(*job.row.step) : nlohmann::json();
  all["checkpoints"] = nlohmann::json::array();
  for (const CheckpointRow& row : job.checkpoints) {
    all["checkpoints"].push_back(checkpoint_json(row));
  }
  const auto best = best_checkpoint(job.checkpoints, job.spec.checkpoint);
  all["best_checkpoint"] = best ? checkpoint_json(*best) : nlohmann::json();
  all["error"] = parsed(job.shown.error);
  all["storage_path"] = storage(job).string();
  all["restarts"] = job.row.restarts;
  all["resumed_from"] =
      job.spec.resumes.empty() ? nlohmann::json() : nlohmann::json(job.spec.resumes);
  all["resumed_by"] = nlohmann::json::array();
  for (const auto& [id, other] : jobs) {
    if (other.durable && other.spec.resumes == job.row.id.str()) {
      all["resumed_by"].push_back(id.str());
    }
  }
  all["started_from"] = job.spec.start ? nlohmann::json(job.spec.start->str()) : nlohmann::json();
  return all;
}

nlohmann::json Engine::Impl::plan(const JobSpec& spec) const {
  const Demand demand = demand_of(spec);
  const JobId asked("this job");
  const std::vector<NodeCapacity> now = capacities();
  const Placement whole = place(emptied(now), demand);
  std::vector<WaitingJob> queue = waiting();
  queue.push_back({asked, spec.priority, last_order + 1, demand, "", std::nullopt});
  if (spec.timeout) queue.back().longest = *spec.timeout + spec.stop_grace;
  const QueueDecision decision = decide_queue(free_now(), queue, nodes_to_come(), running());
  const bool grows = !to_come.types.empty();
  const bool fits = whole.shares || (grows && never_fits(now, demand, to_come).empty());
  nlohmann::json result = {
      {"fits", fits}, {"now", false}, {"reason", ""}, {"placement", nlohmann::json::array()}};
  std::optional<std::vector<PlacedShare>> shares = whole.shares;
  for (const QueueDecision::Start& start : decision.starts) {
    if (start.job != asked) continue;
    result["now"] = true;
    shares = start.shares;
  }
  if (const auto reason = decision.reasons.find(asked); reason != decision.reasons.end()) {
    const Growth with_it = grown(queue);
    const auto coming = with_it.reasons.find(asked);
    result["reason"] = coming == with_it.reasons.end() ? reason->second : coming->second;
  }
  for (const auto& [id, job] : live) {
    const Job& other = *job;
    if (std::find(spec.after.begin(), spec.after.end(), other.row.id.str()) != spec.after.end()) {
      result["now"] = false;
      result["reason"] = "waits for " + id.str() + " to succeed";
    }
  }
  if (shares) {
    for (const PlacedShare& share : *shares) {
      nlohmann::json ranks = nlohmann::json::array();
      for (int i = 0; i < share.nproc; ++i) ranks.push_back(share.first_rank + i);
      result["placement"].push_back({{"node", share.node.str()}, {"ranks", ranks}});
    }
  }
  return result;
}

nlohmann::json Engine::Impl::jobs_meant(const std::string& reference) const {
  std::vector<const Job*> newest;
  const Job* trial = nullptr;
  const auto named = jobs.find(JobId(reference));
  if (named != jobs.end() && named->second.durable) {
    newest.push_back(&named->second);
  } else {
    for (const auto& [id, job] : jobs) {
      if (!job.durable) continue;
      if (reference.empty() && job.spec.is_leg()) {
        trial = &job;
      } else if (job.spec.name == reference || id.str().starts_with(reference)) {
        newest.push_back(&job);
      }
    }
  }
  if (newest.empty() && trial != nullptr) newest.push_back(trial);
  std::sort(newest.begin(), newest.end(),
            [](const Job* a, const Job* b) { return a->order > b->order; });
  nlohmann::json list = nlohmann::json::array();
  std::size_t ended = 0;
  std::size_t others = 0;
  for (const Job* job : newest) {
    std::size_t& count = is_final(job->shown.state) ? ended : others;
    if (++count <= kMostMeant) list.push_back(summary(*job));
  }
  return list;
}

std::vector<std::string> Engine::Impl::warnings() const {
  std::vector<std::string> all = disk_warnings(disk);
  std::string few = too_few_descriptors(most_open_files(), options.expected_nodes);
  if (!few.empty()) all.push_back(std::move(few));
  return all;
}

std::vector<std::string> Engine::warnings() const {
  return impl_->warnings();
}

nlohmann::json Engine::status(std::optional<std::size_t> most_jobs, bool trials) const {
  return impl_->status(most_jobs, trials);
}

nlohmann::json Engine::plan(const JobSpec& spec) const {
  const std::vector<Error> problems = validate(spec);
  if (!problems.empty()) throw problems.front();
  impl_->check_launcher(spec);
  impl_->check_glibc(spec);
  impl_->check_origin(spec);
  return impl_->plan(spec);
}

nlohmann::json Engine::jobs() const {
  return {{"jobs", impl_->status(std::nullopt, true).at("jobs")}};
}

nlohmann::json Engine::jobs_meant(const std::string& reference) const {
  return {{"jobs", impl_->jobs_meant(reference)}};
}

nlohmann::json Engine::job(const JobId& id) const {
  return impl_->details(impl_->known(id));
}

nlohmann::json Engine::job_state(const JobId& id) const {
  return impl_->state_json(impl_->known(id));
}

void Engine::job_metrics(const JobId& id, const MetricsQuery& query, Answer done) const {
  impl_->known(id);
  impl_->work<nlohmann::json>(
      impl_->history,
      [store = impl_->store.get(), id, query]() -> nlohmann::json {
        try {
          return metrics_text(thinned(store->metrics(id), query));
        } catch (const std::exception& error) {
          return wire::error_to_json(as_error(error));
        }
      },
      std::move(done));
}

void Engine::job_events(const JobId& id, Answer done) const {
  const std::int64_t last = impl_->known(id).shown.event;
  impl_->work<nlohmann::json>(
      impl_->history,
      [store = impl_->store.get(), id, last]() -> nlohmann::json {
        static constexpr const char* kLevels[] = {"info", "warning", "error"};
        try {
          nlohmann::json list = nlohmann::json::array();
          for (const EventRow& row : store->events(id)) {
            // Later ones are still on their way to the followers.
            if (row.kind != EventKind::message || row.id > last) continue;
            list.push_back({{"event", row.id},
                            {"time", rfc3339(row.time)},
                            {"level", kLevels[static_cast<std::size_t>(row.level)]},
                            {"message", row.message}});
          }
          nlohmann::json answer;
          answer["events"] = std::move(list);
          return answer;
        } catch (const std::exception& error) {
          return wire::error_to_json(as_error(error));
        }
      },
      std::move(done));
}

void Engine::check_fits(const JobSpec& spec) const {
  impl_->check_launcher(spec);
  const Demand demand = demand_of(spec);
  const std::vector<NodeCapacity> empty = emptied(impl_->capacities());
  std::string why;
  if (!impl_->to_come.types.empty()) {
    why = never_fits(empty, demand, impl_->to_come);
  } else {
    Demand known = demand;  // of what is to come nobody knows
    known.nnodes.min -= impl_->nodes_to_come();
    if (known.nnodes.min <= 0 || place(empty, known).shares) return;
    why = place(empty, demand).reason;
  }
  if (why.empty()) return;
  throw Error(ErrorCode::conflict,
              "it can never run on this cluster, even when nothing else does: it " + why)
      .with_hint("--wait queues it all the same, for nodes that are still to come");
}

std::vector<Engine::LogSource> Engine::logs(const JobId& id, std::optional<int> attempt) const {
  Job& job = impl_->known(id);
  const Attempt* found = attempt ? job.find_attempt(*attempt)
                                 : (job.attempts.empty() ? nullptr : &job.attempts.back());
  std::vector<LogSource> sources;
  if (found == nullptr || !found->durable) return sources;
  for (const Share& share : found->shares) {
    LogSource source;
    source.attempt = found->row.attempt;
    source.node = share.row.node;
    source.folder = impl_->log_folder(share);
    source.copied = impl_->remote(share);
    source.lost = share.row.state == ShareState::lost;
    for (int i = 0; i < share.row.nproc; ++i) {
      source.rank = share.row.first_rank + i;
      sources.push_back(source);
    }
  }
  return sources;
}

// After a reboot the head's machine has another name: what is not among the copies is looked for
// where it was written.
fs::path Engine::Impl::log_folder(const Share& share) const {
  fs::path copy = options.root.mirror(share.row.job, share.row.attempt, share.row.node);
  fs::path here = paths::attempt({share.row.root}, share.row.job, share.row.attempt).ranks();
  std::error_code none;
  if (!remote(share) || (!fs::exists(copy, none) && fs::exists(here, none))) return here;
  return copy;
}

std::vector<std::pair<std::string, fs::path>> Engine::other_logs(const JobId& id,
                                                                 int attempt) const {
  const Attempt* found = impl_->known(id).find_attempt(attempt);
  std::vector<std::pair<std::string, fs::path>> logs;
  if (found == nullptr || !found->durable) return logs;
  for (const Share& share : found->shares) {
    const fs::path ranks = impl_->log_folder(share);
    const fs::path folder = ranks.filename() == "ranks" ? ranks.parent_path() : ranks;
    for (const char* name : wire::kAttemptLogs) {
      logs.emplace_back(share.row.node.str() + "/" + name, folder / name);
    }
  }
  return logs;
}

bool Engine::knows_share(const NodeId& node, const JobId& id, int attempt) const {
  if (impl_->unread.contains(id)) return true;
  Job* job = impl_->find(id);
  Attempt* found = job == nullptr ? nullptr : job->find_attempt(attempt);
  return found != nullptr && found->share(node) != nullptr;
}

bool Engine::may_write(const JobId& id) const {
  return !is_final(impl_->known(id).shown.state);
}

int Engine::newest_attempt(const JobId& id) const {
  const Job& job = impl_->known(id);
  int newest = 0;
  for (const Attempt& attempt : job.attempts) {
    if (attempt.durable) newest = attempt.row.attempt;
  }
  return newest;
}

std::vector<std::pair<fs::path, nlohmann::json>> Engine::checkpoints(const JobId& id) const {
  std::vector<std::pair<fs::path, nlohmann::json>> list;
  for (const CheckpointRow& row : impl_->known(id).checkpoints) {
    constexpr std::size_t kManifestLimit = std::size_t{64} << 20;
    const fs::path folder = row.path;
    try {
      const auto text = read_file_if_there(folder / "manifest.json", kManifestLimit);
      if (!text) continue;
      list.emplace_back(folder, wire::parse_json(*text, "manifest.json", kManifestLimit));
    } catch (const Error&) {
      // Not whole any more: it is passed over, as at a resume, which also tells.
    }
  }
  return list;
}

}  // namespace dtrain::head
