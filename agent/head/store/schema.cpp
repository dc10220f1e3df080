#include "agent/head/store/schema.hpp"

#include <nlohmann/json.hpp>

#include "agent/head/store/migrations.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

// Of today's version: what the last of migrations() makes of an older one.
constexpr const char* kTables = R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  job TEXT PRIMARY KEY, submission_id TEXT UNIQUE, spec TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL, exit_code INTEGER, attempt INTEGER NOT NULL, restarts INTEGER NOT NULL,
  port_retries INTEGER NOT NULL, stop_cause INTEGER NOT NULL, stop_grace_s INTEGER,
  created INTEGER NOT NULL, started INTEGER, ended INTEGER, error TEXT NOT NULL,
  metrics TEXT NOT NULL, step INTEGER);
CREATE TABLE attempts (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  token TEXT NOT NULL, world_size INTEGER NOT NULL, master_port INTEGER NOT NULL, checkpoint TEXT,
  created INTEGER NOT NULL, started INTEGER, ended INTEGER,
  PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE TABLE shares (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, node_rank INTEGER NOT NULL, node TEXT NOT NULL,
  first_rank INTEGER NOT NULL, nproc INTEGER NOT NULL, cpus REAL NOT NULL, memory INTEGER NOT NULL,
  gpus TEXT NOT NULL, gpus_assigned INTEGER NOT NULL, address TEXT NOT NULL, machine TEXT NOT NULL,
  root TEXT NOT NULL, state INTEGER NOT NULL, ranks_started INTEGER NOT NULL, outcome TEXT NOT NULL,
  reason TEXT NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (job, attempt, node_rank)) WITHOUT ROWID;
CREATE TABLE ranks (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, node TEXT NOT NULL,
  state TEXT NOT NULL, pid INTEGER NOT NULL, code INTEGER NOT NULL, signal INTEGER NOT NULL,
  ended INTEGER, stopped INTEGER NOT NULL, error_message TEXT NOT NULL, error_time REAL NOT NULL,
  last_lines TEXT NOT NULL, address_in_use INTEGER NOT NULL, cause TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, attempt, rank)) WITHOUT ROWID;
CREATE TABLE nodes (
  node TEXT PRIMARY KEY, address TEXT NOT NULL, boot_id TEXT NOT NULL, machine TEXT NOT NULL,
  version TEXT NOT NULL, root TEXT NOT NULL, log TEXT NOT NULL, cpus INTEGER NOT NULL,
  gpus INTEGER NOT NULL, memory INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  joined INTEGER NOT NULL DEFAULT 0, type TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE TABLE events (
  event INTEGER PRIMARY KEY, job TEXT NOT NULL, attempt INTEGER NOT NULL, time INTEGER NOT NULL,
  kind INTEGER NOT NULL, level INTEGER NOT NULL, message TEXT NOT NULL);
CREATE INDEX events_of_job ON events (job, event);
CREATE TABLE metrics (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL,
  step INTEGER NOT NULL, time INTEGER NOT NULL, metrics TEXT NOT NULL,
  PRIMARY KEY (job, attempt, rank, seq)) WITHOUT ROWID;
CREATE TABLE checkpoints (
  job TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
  path TEXT NOT NULL, metrics TEXT NOT NULL, created INTEGER NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (job, number)) WITHOUT ROWID;
CREATE TABLE forgotten (
  job TEXT PRIMARY KEY, time INTEGER NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;
)sql";

std::optional<std::int64_t> millis(const std::optional<WallTime>& time) {
  if (!time) return std::nullopt;
  return to_millis(*time);
}

std::optional<WallTime> time_from(const std::optional<std::int64_t>& time) {
  if (!time) return std::nullopt;
  return from_millis(*time);
}

std::optional<std::string> unless_empty(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return text;
}

template <typename Enum>
Enum enum_from(std::int64_t number, Enum last) {
  if (number < 0 || number > static_cast<std::int64_t>(last)) {
    throw Error(ErrorCode::invalid,
                "the database holds " + std::to_string(number) + " where it cannot be");
  }
  return static_cast<Enum>(number);
}

}  // namespace

void prepare_schema(Database& database, const fs::path& file) {
  if (database.integer("PRAGMA user_version") > 0) {
    migrate(database, file, migrations());
    return;
  }
  if (database.integer("SELECT count(*) FROM sqlite_master") != 0) {
    throw Error(ErrorCode::invalid, "the database is not one of dtrain's")
        .with_hint("move it away to start with an empty one");
  }
  database.run("BEGIN IMMEDIATE");
  database.run(kTables);
  set_version(database, version_after(migrations()));
  database.run("COMMIT");
}

struct Writer::Statements {
  explicit Statements(sqlite3* db)
      : job(db,
            "INSERT INTO jobs VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17) "
            "ON CONFLICT (job) DO UPDATE SET state=?4, reason=?5, exit_code=?6, attempt=?7, "
            "restarts=?8, port_retries=?9, stop_cause=?10, stop_grace_s=?11, started=?13, "
            "ended=?14, error=?15, metrics=?16, step=?17"),
        attempt(db, "INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?,?,?,?,?)"),
        share(db, "INSERT OR REPLACE INTO shares VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        rank(db, "INSERT OR REPLACE INTO ranks VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        node(db, "INSERT OR REPLACE INTO nodes VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        event(db, "INSERT INTO events VALUES (?,?,?,?,?,?,?)"),
        metrics(db, "INSERT OR IGNORE INTO metrics VALUES (?,?,?,?,?,?,?)"),
        inherit(db,
                "INSERT OR IGNORE INTO metrics SELECT ?2, attempt - ?3, rank, seq, step, time, "
                "metrics FROM metrics WHERE job = ?1"),
        checkpoint(db, "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?,?,?,?,?,?)"),
        forgotten(db, "INSERT OR REPLACE INTO forgotten VALUES (?,?,?)"),
        drop_checkpoint(db, "DELETE FROM checkpoints WHERE job = ? AND number = ?"),
        drop_job(db, "DELETE FROM jobs WHERE job = ?"),
        drop_attempts(db, "DELETE FROM attempts WHERE job = ?"),
        drop_shares(db, "DELETE FROM shares WHERE job = ?"),
        drop_ranks(db, "DELETE FROM ranks WHERE job = ?"),
        drop_events(db, "DELETE FROM events WHERE job = ?"),
        drop_metrics(db, "DELETE FROM metrics WHERE job = ?"),
        drop_checkpoints(db, "DELETE FROM checkpoints WHERE job = ?"),
        count_metrics(db, "SELECT count(*) FROM metrics WHERE job = ?"),
        thin_metrics(db,
                     "DELETE FROM metrics WHERE job = ?1 AND (attempt, rank, seq) IN (SELECT "
                     "attempt, rank, seq FROM (SELECT attempt, rank, seq, row_number() OVER "
                     "(PARTITION BY rank ORDER BY attempt DESC, seq DESC) AS age FROM metrics "
                     "WHERE job = ?1) WHERE age % 2 = 0)") {}

  Statement job, attempt, share, rank, node, event, metrics, inherit, checkpoint, forgotten,
      drop_checkpoint;
  Statement drop_job, drop_attempts, drop_shares, drop_ranks, drop_events, drop_metrics,
      drop_checkpoints;
  Statement count_metrics, thin_metrics;
};

Writer::Writer(Database& database) : statements_(std::make_unique<Statements>(database.handle())) {}
Writer::~Writer() = default;

void Writer::write(const Changes& changes) {
  Statements& s = *statements_;
  for (const JobRow& r : changes.jobs) {
    s.job.run(r.id.str(), unless_empty(r.submission_id), r.spec, to_string(r.state), r.reason,
              r.exit_code, r.attempt, r.restarts, r.port_retries, static_cast<int>(r.stop_cause),
              r.stop_grace_s, to_millis(r.created), millis(r.started), millis(r.ended), r.error,
              r.metrics, r.step);
  }
  for (const AttemptRow& r : changes.attempts) {
    s.attempt.run(r.job.str(), r.attempt, to_string(r.state), r.reason, r.token, r.world_size,
                  r.master_port, r.checkpoint, to_millis(r.created), millis(r.started),
                  millis(r.ended));
  }
  for (const ShareRow& r : changes.shares) {
    s.share.run(r.job.str(), r.attempt, r.node_rank, r.node.str(), r.first_rank, r.nproc, r.cpus,
                r.memory, nlohmann::json(r.gpus).dump(), r.gpus_assigned, r.address, r.machine,
                r.root, static_cast<int>(r.state), r.ranks_started, r.outcome, r.reason, r.seq);
  }
  for (const RankRow& r : changes.ranks) {
    s.rank.run(r.job.str(), r.attempt, r.rank, r.node.str(), to_string(r.state), r.pid, r.code,
               r.signal, millis(r.ended), r.stopped, r.error_message, r.error_time,
               wire::dump(r.last_lines), r.address_in_use, r.cause);
  }
  for (const NodeRow& r : changes.nodes) {
    s.node.run(r.node.str(), r.address, r.boot_id, r.machine, r.version, r.root, r.log, r.cpus,
               r.gpus, r.memory, to_string(r.state), r.reason, r.joined, r.type);
  }
  for (const EventRow& r : changes.events) {
    s.event.run(r.id, r.job.str(), r.attempt, to_millis(r.time), static_cast<int>(r.kind),
                static_cast<int>(r.level), r.message);
  }
  for (const MetricsInherited& r : changes.metrics_inherited) {
    s.inherit.run(r.from.str(), r.to.str(), r.attempts);
  }
  for (const MetricsRow& r : changes.metrics) {
    s.metrics.run(r.job.str(), r.attempt, r.rank, r.seq, r.step, to_millis(r.time), r.metrics);
  }
  for (const CheckpointRow& r : changes.checkpoints) {
    s.checkpoint.run(r.job.str(), r.number, r.attempt, r.step, r.path, r.metrics,
                     to_millis(r.created), r.size);
  }
  for (const auto& [job, number] : changes.checkpoints_deleted) {
    s.drop_checkpoint.run(job.str(), number);
  }
  for (const ForgottenRow& r : changes.jobs_forgotten) {
    s.forgotten.run(r.job.str(), to_millis(r.time), r.reason);
    for (Statement* drop : {&s.drop_job, &s.drop_attempts, &s.drop_shares, &s.drop_ranks,
                            &s.drop_events, &s.drop_metrics, &s.drop_checkpoints}) {
      drop->run(r.job.str());
    }
  }
}

std::int64_t Writer::count_metrics(const JobId& job) {
  Statement& rows = statements_->count_metrics.query(job.str());
  std::int64_t count = 0;
  while (rows.step()) count = rows.integer(0);
  return count;
}

void Writer::thin_metrics(const JobId& job) {
  statements_->thin_metrics.run(job.str());
}

Loaded read_all(Database& database) {
  sqlite3* db = database.handle();
  Loaded all;
  Statement jobs(db, "SELECT * FROM jobs ORDER BY created, rowid");
  while (jobs.step()) {
    JobRow r;
    r.id = JobId(jobs.text(0));
    r.submission_id = jobs.text(1);
    r.spec = jobs.text(2);
    r.state = job_state_from(jobs.text(3));
    r.reason = jobs.text(4);
    if (!jobs.null(5)) r.exit_code = static_cast<int>(jobs.integer(5));
    r.attempt = static_cast<int>(jobs.integer(6));
    r.restarts = static_cast<int>(jobs.integer(7));
    r.port_retries = static_cast<int>(jobs.integer(8));
    r.stop_cause = enum_from(jobs.integer(9), StopCause::timeout);
    r.stop_grace_s = jobs.optional_integer(10);
    r.created = from_millis(jobs.integer(11));
    r.started = time_from(jobs.optional_integer(12));
    r.ended = time_from(jobs.optional_integer(13));
    r.error = jobs.text(14);
    r.metrics = jobs.text(15);
    r.step = jobs.optional_integer(16);
    all.jobs.push_back(std::move(r));
  }
  Statement attempts(db, "SELECT * FROM attempts ORDER BY job, attempt");
  while (attempts.step()) {
    AttemptRow r;
    r.job = JobId(attempts.text(0));
    r.attempt = static_cast<int>(attempts.integer(1));
    r.state = attempt_state_from(attempts.text(2));
    r.reason = attempts.text(3);
    r.token = attempts.text(4);
    r.world_size = static_cast<int>(attempts.integer(5));
    r.master_port = static_cast<int>(attempts.integer(6));
    if (!attempts.null(7)) r.checkpoint = attempts.text(7);
    r.created = from_millis(attempts.integer(8));
    r.started = time_from(attempts.optional_integer(9));
    r.ended = time_from(attempts.optional_integer(10));
    all.attempts.push_back(std::move(r));
  }
  Statement shares(db, "SELECT * FROM shares ORDER BY job, attempt, node_rank");
  while (shares.step()) {
    ShareRow r;
    r.job = JobId(shares.text(0));
    r.attempt = static_cast<int>(shares.integer(1));
    r.node_rank = static_cast<int>(shares.integer(2));
    r.node = NodeId(shares.text(3));
    r.first_rank = static_cast<int>(shares.integer(4));
    r.nproc = static_cast<int>(shares.integer(5));
    r.cpus = shares.real(6);
    r.memory = static_cast<std::uint64_t>(shares.integer(7));
    r.gpus = wire::parse_json(shares.text(8), "gpus").get<std::vector<int>>();
    r.gpus_assigned = shares.integer(9) != 0;
    r.address = shares.text(10);
    r.machine = shares.text(11);
    r.root = shares.text(12);
    r.state = enum_from(shares.integer(13), ShareState::lost);
    r.ranks_started = shares.integer(14) != 0;
    r.outcome = shares.text(15);
    r.reason = shares.text(16);
    r.seq = static_cast<std::uint64_t>(shares.integer(17));
    all.shares.push_back(std::move(r));
  }
  Statement ranks(db,
                  "SELECT r.* FROM ranks r JOIN attempts a ON a.job = r.job AND a.attempt = "
                  "r.attempt WHERE a.ended IS NULL ORDER BY r.job, r.attempt, r.rank");
  while (ranks.step()) {
    RankRow r;
    r.job = JobId(ranks.text(0));
    r.attempt = static_cast<int>(ranks.integer(1));
    r.rank = static_cast<int>(ranks.integer(2));
    r.node = NodeId(ranks.text(3));
    r.state = rank_state_from(ranks.text(4));
    r.pid = static_cast<int>(ranks.integer(5));
    r.code = static_cast<int>(ranks.integer(6));
    r.signal = static_cast<int>(ranks.integer(7));
    r.ended = time_from(ranks.optional_integer(8));
    r.stopped = ranks.integer(9) != 0;
    r.error_message = ranks.text(10);
    r.error_time = ranks.real(11);
    r.last_lines = wire::parse_json(ranks.text(12), "last_lines").get<std::vector<std::string>>();
    r.address_in_use = ranks.integer(13) != 0;
    r.cause = ranks.text(14);
    all.ranks.push_back(std::move(r));
  }
  Statement nodes(db, "SELECT * FROM nodes ORDER BY node");
  while (nodes.step()) {
    NodeRow r;
    r.node = NodeId(nodes.text(0));
    r.address = nodes.text(1);
    r.boot_id = nodes.text(2);
    r.machine = nodes.text(3);
    r.version = nodes.text(4);
    r.root = nodes.text(5);
    r.log = nodes.text(6);
    r.cpus = static_cast<int>(nodes.integer(7));
    r.gpus = static_cast<int>(nodes.integer(8));
    r.memory = static_cast<std::uint64_t>(nodes.integer(9));
    r.state = node_state_from(nodes.text(10));
    r.reason = nodes.text(11);
    r.joined = nodes.integer(12) != 0;
    r.type = nodes.text(13);
    all.nodes.push_back(std::move(r));
  }
  Statement checkpoints(db, "SELECT * FROM checkpoints ORDER BY job, number");
  while (checkpoints.step()) {
    CheckpointRow r;
    r.job = JobId(checkpoints.text(0));
    r.number = static_cast<int>(checkpoints.integer(1));
    r.attempt = static_cast<int>(checkpoints.integer(2));
    r.step = checkpoints.integer(3);
    r.path = checkpoints.text(4);
    r.metrics = checkpoints.text(5);
    r.created = from_millis(checkpoints.integer(6));
    r.size = static_cast<std::uint64_t>(checkpoints.integer(7));
    all.checkpoints.push_back(std::move(r));
  }
  Statement forgotten(db, "SELECT * FROM forgotten ORDER BY time, job");
  while (forgotten.step()) {
    all.forgotten.push_back(
        {JobId(forgotten.text(0)), from_millis(forgotten.integer(1)), forgotten.text(2)});
  }
  all.last_event = database.integer("SELECT max(event) FROM events");
  return all;
}

std::vector<EventRow> read_events(Database& database, const JobId& job) {
  Statement rows(database.handle(), "SELECT * FROM events WHERE job = ? ORDER BY event");
  std::vector<EventRow> events;
  rows.query(job.str());
  while (rows.step()) {
    EventRow r;
    r.id = rows.integer(0);
    r.job = JobId(rows.text(1));
    r.attempt = static_cast<int>(rows.integer(2));
    r.time = from_millis(rows.integer(3));
    r.kind = enum_from(rows.integer(4), EventKind::state);
    r.level = enum_from(rows.integer(5), EventLevel::error);
    r.message = rows.text(6);
    events.push_back(std::move(r));
  }
  return events;
}

std::vector<MetricsRow> read_metrics(Database& database, const JobId& job) {
  Statement rows(database.handle(),
                 "SELECT * FROM metrics WHERE job = ? ORDER BY attempt, time, rank, seq");
  std::vector<MetricsRow> metrics;
  rows.query(job.str());
  while (rows.step()) {
    MetricsRow r;
    r.job = JobId(rows.text(0));
    r.attempt = static_cast<int>(rows.integer(1));
    r.rank = static_cast<int>(rows.integer(2));
    r.seq = static_cast<std::uint64_t>(rows.integer(3));
    r.step = rows.integer(4);
    r.time = from_millis(rows.integer(5));
    r.metrics = rows.text(6);
    metrics.push_back(std::move(r));
  }
  return metrics;
}

}  // namespace dtrain::head
