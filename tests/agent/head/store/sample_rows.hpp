#pragma once

#include "agent/head/store/rows.hpp"

// Rows as a head writes them.
namespace dtrain::head::testing {

inline JobRow sample_job(const std::string& id) {
  JobRow row;
  row.id = JobId(id);
  row.submission_id = "sub-" + id;
  row.spec = "{}";
  row.metrics = "{}";
  row.state = JobState::running;
  row.reason = "because";
  row.attempt = 2;
  row.stop_cause = StopCause::timeout;
  row.stop_grace_s = 7;
  row.created = from_millis(1767323045123);
  row.started = from_millis(1767323046123);
  row.step = 12;
  row.spares = {"node-7"};
  return row;
}

// One row of each table.
inline Changes sample_changes() {
  Changes changes;
  changes.jobs.push_back(sample_job("a"));
  AttemptRow attempt{JobId("a"),
                     2,
                     AttemptState::running,
                     "r",
                     "token",
                     4,
                     29500,
                     "/cp",
                     from_millis(5),
                     from_millis(6),
                     std::nullopt};
  attempt.causes = R"({"count":1})";
  changes.attempts.push_back(attempt);
  ShareRow share;
  share.job = JobId("a");
  share.attempt = 2;
  share.node = NodeId("node-1");
  share.node_rank = 1;
  share.first_rank = 2;
  share.nproc = 2;
  share.cpus = 0.5;
  share.memory = std::uint64_t{1} << 40;
  share.gpus = {0, 3};
  share.gpus_assigned = true;
  share.address = "10.0.0.1";
  share.state = ShareState::running;
  share.ranks_started = true;
  share.outcome = "";
  share.seq = 9;
  changes.shares.push_back(share);
  RankRow rank;
  rank.job = JobId("a");
  rank.attempt = 2;
  rank.rank = 3;
  rank.node = NodeId("node-1");
  rank.state = RankState::killed;
  rank.signal = 9;
  rank.ended = from_millis(77);
  rank.error_message = "\xff not UTF-8";
  rank.last_lines = {"x", "y"};
  rank.cause = "killed for memory";
  rank.at = 86400000000001;
  rank.loose = 1000000;
  rank.clock_by = -5;
  rank.clock_uncertain = 250000;
  rank.heard = 1767323045123456789;
  changes.ranks.push_back(rank);
  NodeRow node{
      NodeId("node-1"),       "10.0.0.1",          "boot", "m",  "0.1", "/r",     "/l", 8, 2,
      std::uint64_t{1} << 36, NodeState::draining, "why",  true, "gpu", "because"};
  changes.nodes.push_back(node);
  CheckpointRow checkpoint{JobId("a"), 3, 2, 470, "/p", R"({"acc":1})", from_millis(8), 99, true};
  changes.checkpoints.push_back(checkpoint);
  changes.events.push_back(
      {41, JobId("a"), 2, from_millis(1), EventKind::message, EventLevel::warning, "hm"});
  changes.metrics.push_back({JobId("a"), 2, 0, 5, 10, from_millis(2), R"({"l":1})"});
  changes.jobs_forgotten.push_back({JobId("gone"), from_millis(3), "old"});
  SearchRow search;
  search.id = SearchId("wide-abcdef");
  search.submission_id = "sub-wide";
  search.spec = "{}";
  search.state = SearchState::stopped;
  search.reason = "stopped by a person";
  search.created = from_millis(9);
  search.since = from_millis(10);
  search.ended = from_millis(11);
  search.summary = R"({"trials":3})";
  changes.searches.push_back(search);
  SearchRecord record;
  record.search = search.id;
  record.seq = 4;
  record.kind = SearchRecord::Kind::reported;
  record.trial = 2;
  record.number = 3;
  record.iteration = 5;
  record.step = 50;
  record.time = 5.5;
  record.value = 0.25;
  record.job = "a";
  record.text = "why";
  changes.search_records.push_back(record);
  return changes;
}

}  // namespace dtrain::head::testing
