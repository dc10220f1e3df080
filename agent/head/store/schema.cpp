#include "agent/head/store/schema.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/store/migrations.hpp"
#include "agent/head/store/thinning.hpp"
#include "launcher/wire/fields.hpp"

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
  metrics TEXT NOT NULL, step INTEGER, spares TEXT NOT NULL DEFAULT '[]');
CREATE TABLE attempts (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  token TEXT NOT NULL, world_size INTEGER NOT NULL, master_port INTEGER NOT NULL, checkpoint TEXT,
  created INTEGER NOT NULL, started INTEGER, ended INTEGER, fault TEXT NOT NULL DEFAULT 'none',
  code INTEGER NOT NULL DEFAULT 0, signal INTEGER NOT NULL DEFAULT 0,
  fault_node TEXT NOT NULL DEFAULT '', words TEXT NOT NULL DEFAULT '', step INTEGER,
  counted INTEGER NOT NULL DEFAULT 0, causes TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, attempt)) WITHOUT ROWID;
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
  at INTEGER, loose INTEGER NOT NULL DEFAULT 0, clock_by INTEGER,
  clock_uncertain INTEGER NOT NULL DEFAULT 0, heard INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (job, attempt, rank)) WITHOUT ROWID;
CREATE TABLE nodes (
  node TEXT PRIMARY KEY, address TEXT NOT NULL, boot_id TEXT NOT NULL, machine TEXT NOT NULL,
  version TEXT NOT NULL, root TEXT NOT NULL, log TEXT NOT NULL, cpus INTEGER NOT NULL,
  gpus INTEGER NOT NULL, memory INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  joined INTEGER NOT NULL DEFAULT 0, type TEXT NOT NULL DEFAULT '',
  drain TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
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
  removing INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job, number)) WITHOUT ROWID;
CREATE TABLE forgotten (
  job TEXT PRIMARY KEY, time INTEGER NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE searches (
  search TEXT PRIMARY KEY, submission_id TEXT UNIQUE, spec TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL, created INTEGER NOT NULL, since INTEGER NOT NULL, ended INTEGER,
  summary TEXT NOT NULL);
CREATE TABLE search_records (
  search TEXT NOT NULL, seq INTEGER NOT NULL, kind INTEGER NOT NULL, trial INTEGER NOT NULL,
  number INTEGER NOT NULL, iteration INTEGER NOT NULL, step INTEGER, time REAL, value REAL,
  best REAL, job TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (search, seq)) WITHOUT ROWID;
)sql";

// ---- How a row's fields stand in its table.

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// Of an enum that stands as text: how that is read.
template <typename Enum>
inline constexpr std::nullptr_t kFromText{};
template <>
inline constexpr auto kFromText<JobState> = job_state_from;
template <>
inline constexpr auto kFromText<AttemptState> = attempt_state_from;
template <>
inline constexpr auto kFromText<FaultKind> = fault_kind_from;
template <>
inline constexpr auto kFromText<RankState> = rank_state_from;
template <>
inline constexpr auto kFromText<NodeState> = node_state_from;
template <>
inline constexpr auto kFromText<SearchState> = search_state_from;
// Of one that stands as a number: the largest.
template <typename Enum>
inline constexpr Enum kLast{};
template <>
inline constexpr StopCause kLast<StopCause> = StopCause::timeout;
template <>
inline constexpr ShareState kLast<ShareState> = ShareState::lost;
template <>
inline constexpr EventKind kLast<EventKind> = EventKind::state;
template <>
inline constexpr EventLevel kLast<EventLevel> = EventLevel::error;
template <>
inline constexpr SearchRecord::Kind kLast<SearchRecord::Kind> = SearchRecord::Kind::ended;

template <typename T>
concept TextEnum =
    std::is_enum_v<T> && !std::is_same_v<decltype(kFromText<T>), const std::nullptr_t>;

// Text that is NULL where it is empty, so that it can be unique.
template <typename Text>
struct NullIfEmpty {
  explicit NullIfEmpty(Text& of) : text(of) {}
  Text& text;
};
template <typename T>
inline constexpr bool kIsNullIfEmpty = false;
template <typename T>
inline constexpr bool kIsNullIfEmpty<NullIfEmpty<T>> = true;

template <typename T>
auto to_column(const T& value) {
  if constexpr (kIsNullIfEmpty<T>) {
    return value.text.empty() ? std::nullopt : std::optional<std::string>(value.text);
  } else if constexpr (kIsOptional<T>) {
    return value ? std::optional(to_column(*value)) : std::nullopt;
  } else if constexpr (std::is_same_v<T, JobId> || std::is_same_v<T, NodeId> ||
                       std::is_same_v<T, SearchId>) {
    return value.str();
  } else if constexpr (std::is_same_v<T, WallTime>) {
    return to_millis(value);
  } else if constexpr (TextEnum<T>) {
    return std::string(to_string(value));
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {  // a list
    return wire::dump(value);
  }
}

template <typename T>
T from_column(Statement& row, int column) {
  if constexpr (kIsOptional<T>) {
    if (row.null(column)) return std::nullopt;
    return from_column<typename T::value_type>(row, column);
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, JobId> ||
                       std::is_same_v<T, NodeId> || std::is_same_v<T, SearchId>) {
    return T(row.text(column));
  } else if constexpr (std::is_same_v<T, WallTime>) {
    return from_millis(row.integer(column));
  } else if constexpr (TextEnum<T>) {
    return kFromText<T>(row.text(column));
  } else if constexpr (std::is_enum_v<T>) {
    const std::int64_t number = row.integer(column);
    if (number < 0 || number > static_cast<std::int64_t>(kLast<T>)) {
      throw Error(ErrorCode::invalid,
                  "the database holds " + std::to_string(number) + " where it cannot be");
    }
    return static_cast<T>(number);
  } else if constexpr (std::is_same_v<T, bool>) {
    return row.integer(column) != 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    return row.real(column);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(row.integer(column));
  } else {
    return wire::parse_json(row.text(column), "a list").get<T>();
  }
}

// ---- The columns of each table, in its order.

void columns(wire::Is<JobRow> auto& r, auto&& f) {
  f(r.id, NullIfEmpty{r.submission_id}, r.spec, r.state, r.reason, r.exit_code, r.attempt,
    r.restarts, r.port_retries, r.stop_cause, r.stop_grace_s, r.created, r.started, r.ended,
    r.error, r.metrics, r.step, r.spares);
}
void columns(wire::Is<AttemptRow> auto& r, auto&& f) {
  f(r.job, r.attempt, r.state, r.reason, r.token, r.world_size, r.master_port, r.checkpoint,
    r.created, r.started, r.ended, r.fault.kind, r.fault.code, r.fault.signal, r.fault.node,
    r.fault.words, r.step, r.counted, r.causes);
}
void columns(wire::Is<ShareRow> auto& r, auto&& f) {
  f(r.job, r.attempt, r.node_rank, r.node, r.first_rank, r.nproc, r.cpus, r.memory, r.gpus,
    r.gpus_assigned, r.address, r.machine, r.root, r.state, r.ranks_started, r.outcome, r.reason,
    r.seq);
}
void columns(wire::Is<RankRow> auto& r, auto&& f) {
  f(r.job, r.attempt, r.rank, r.node, r.state, r.pid, r.code, r.signal, r.ended, r.stopped,
    r.error_message, r.error_time, r.last_lines, r.address_in_use, r.cause, r.at, r.loose,
    r.clock_by, r.clock_uncertain, r.heard);
}
void columns(wire::Is<NodeRow> auto& r, auto&& f) {
  f(r.node, r.address, r.boot_id, r.machine, r.version, r.root, r.log, r.cpus, r.gpus, r.memory,
    r.state, r.reason, r.joined, r.type, r.drain);
}
void columns(wire::Is<EventRow> auto& r, auto&& f) {
  f(r.id, r.job, r.attempt, r.time, r.kind, r.level, r.message);
}
void columns(wire::Is<MetricsRow> auto& r, auto&& f) {
  f(r.job, r.attempt, r.rank, r.seq, r.step, r.time, r.metrics);
}
void columns(wire::Is<CheckpointRow> auto& r, auto&& f) {
  f(r.job, r.number, r.attempt, r.step, r.path, r.metrics, r.created, r.size, r.removing);
}
void columns(wire::Is<ForgottenRow> auto& r, auto&& f) {
  f(r.job, r.time, r.reason);
}
void columns(wire::Is<SearchRow> auto& r, auto&& f) {
  f(r.id, NullIfEmpty{r.submission_id}, r.spec, r.state, r.reason, r.created, r.since, r.ended,
    r.summary);
}
void columns(wire::Is<SearchRecord> auto& r, auto&& f) {
  f(r.search, r.seq, r.kind, r.trial, r.number, r.iteration, r.step, r.time, r.value, r.best, r.job,
    r.text);
}

// ---- What stands in meta, beside who wrote it.

constexpr const char* kOpen = "open";
constexpr const char* kRestored = "restored";
constexpr const char* kEvents = "events";

std::string restored_text(const RestoredRow& row) {
  nlohmann::json open = nlohmann::json::array();
  for (const JobId& id : row.open) open.push_back(id.str());
  return wire::dump({{"time", to_millis(row.time)},
                     {"copied", to_millis(row.copied)},
                     {"why", row.why},
                     {"damaged", row.damaged},
                     {"salvaged", row.salvaged},
                     {"first_event", row.first_event},
                     {"open", std::move(open)},
                     {"told", row.told},
                     {"settled", row.settled}});
}

RestoredRow restored_from(const std::string& text) {
  const nlohmann::json json = wire::parse_json(text, "when it was restored");
  RestoredRow row;
  row.time = from_millis(wire::get_int(json, "time", INT64_MIN, INT64_MAX));
  row.copied = from_millis(wire::get_int(json, "copied", INT64_MIN, INT64_MAX));
  row.why = wire::get_string(json, "why");
  row.damaged = wire::get_string(json, "damaged");
  row.salvaged = static_cast<int>(wire::get_int(json, "salvaged", 0, INT32_MAX));
  row.first_event = wire::get_int(json, "first_event", 0, INT64_MAX);
  for (const std::string& id : wire::get_strings(json, "open")) row.open.insert(JobId(id));
  row.told = wire::get_bool(json, "told", false);
  row.settled = wire::get_bool(json, "settled", false);
  return row;
}

std::string meta(Database& database, const char* key) {
  Statement row(database.handle(), "SELECT value FROM meta WHERE key = ?");
  return row.query(std::string(key)).step() ? row.text(0) : std::string();
}

template <typename Row>
void write_rows(Statement& statement, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    columns(row, [&](const auto&... each) { statement.run(to_column(each)...); });
  }
}

// Of a statement that selects all columns of the table.
template <typename Row>
std::vector<Row> read_rows(Statement& statement) {
  std::vector<Row> rows;
  while (statement.step()) {
    int column = 0;
    const auto take = [&]<typename T>(T&& field) {
      using Field = std::remove_cvref_t<T>;
      if constexpr (kIsNullIfEmpty<Field>) {
        field.text = statement.text(column++);
      } else {
        field = from_column<Field>(statement, column++);
      }
    };
    columns(rows.emplace_back(), [&](auto&&... each) { (take(each), ...); });
  }
  return rows;
}

template <typename Row>
std::vector<Row> read_rows(sqlite3* db, const char* select) {
  Statement statement(db, select);
  return read_rows<Row>(statement);
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
            "INSERT INTO jobs VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,"
            "?18) "
            "ON CONFLICT (job) DO UPDATE SET state=?4, reason=?5, exit_code=?6, attempt=?7, "
            "restarts=?8, port_retries=?9, stop_cause=?10, stop_grace_s=?11, started=?13, "
            "ended=?14, error=?15, metrics=?16, step=?17, spares=?18"),
        attempt(db,
                "INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        share(db, "INSERT OR REPLACE INTO shares VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        rank(db, "INSERT OR REPLACE INTO ranks VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        node(db, "INSERT OR REPLACE INTO nodes VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"),
        event(db, "INSERT INTO events VALUES (?,?,?,?,?,?,?)"),
        metrics(db, "INSERT OR IGNORE INTO metrics VALUES (?,?,?,?,?,?,?)"),
        inherit(db,
                "INSERT OR IGNORE INTO metrics SELECT ?2, attempt - ?3, rank, seq, step, time, "
                "metrics FROM metrics WHERE job = ?1"),
        checkpoint(db, "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?,?,?,?,?,?,?)"),
        forgotten(db, "INSERT OR REPLACE INTO forgotten VALUES (?,?,?)"),
        search(db,
               "INSERT INTO searches VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT (search) DO "
               "UPDATE SET state=?4, reason=?5, since=?7, ended=?8, summary=?9"),
        search_record(db, "INSERT OR REPLACE INTO search_records VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"),
        drop_search(db, "DELETE FROM searches WHERE search = ?"),
        drop_search_records(db, "DELETE FROM search_records WHERE search = ?"),
        meta(db, "INSERT OR REPLACE INTO meta VALUES (?,?)"),
        drop_checkpoint(db, "DELETE FROM checkpoints WHERE job = ? AND number = ?"),
        drop_job(db, "DELETE FROM jobs WHERE job = ?"),
        drop_attempts(db, "DELETE FROM attempts WHERE job = ?"),
        drop_shares(db, "DELETE FROM shares WHERE job = ?"),
        drop_ranks(db, "DELETE FROM ranks WHERE job = ?"),
        drop_events(db, "DELETE FROM events WHERE job = ?"),
        drop_metrics(db, "DELETE FROM metrics WHERE job = ?"),
        drop_checkpoints(db, "DELETE FROM checkpoints WHERE job = ?"),
        count_metrics(db, "SELECT count(*) FROM metrics WHERE job = ?"),
        all_metrics(db,
                    "SELECT attempt, rank, seq, metrics FROM metrics WHERE job = ? ORDER BY "
                    "attempt, rank, seq"),
        drop_metrics_row(
            db, "DELETE FROM metrics WHERE job = ? AND attempt = ? AND rank = ? AND seq = ?") {}

  Statement job, attempt, share, rank, node, event, metrics, inherit, checkpoint, forgotten, search,
      search_record, drop_search, drop_search_records, meta, drop_checkpoint;
  Statement drop_job, drop_attempts, drop_shares, drop_ranks, drop_events, drop_metrics,
      drop_checkpoints;
  Statement count_metrics, all_metrics, drop_metrics_row;

  void drop_parts(const JobId& id) {
    for (Statement* drop : {&drop_attempts, &drop_shares, &drop_ranks, &drop_events, &drop_metrics,
                            &drop_checkpoints}) {
      drop->run(id.str());
    }
  }
};

Writer::Writer(Database& database) : statements_(std::make_unique<Statements>(database.handle())) {}
Writer::~Writer() = default;

void Writer::write(const Changes& changes) {
  Statements& s = *statements_;
  write_rows(s.job, changes.jobs);
  write_rows(s.attempt, changes.attempts);
  write_rows(s.share, changes.shares);
  write_rows(s.rank, changes.ranks);
  write_rows(s.node, changes.nodes);
  write_rows(s.event, changes.events);
  for (const MetricsInherited& r : changes.metrics_inherited) {
    s.inherit.run(r.from.str(), r.to.str(), r.attempts);
  }
  write_rows(s.metrics, changes.metrics);
  write_rows(s.checkpoint, changes.checkpoints);
  for (const auto& [job, number] : changes.checkpoints_deleted) {
    s.drop_checkpoint.run(job.str(), number);
  }
  write_rows(s.forgotten, changes.jobs_forgotten);
  for (const ForgottenRow& r : changes.jobs_forgotten) {
    s.drop_job.run(r.job.str());
    s.drop_parts(r.job);
  }
  write_rows(s.search, changes.searches);
  write_rows(s.search_record, changes.search_records);
  for (const SearchId& id : changes.searches_forgotten) {
    s.drop_search.run(id.str());
    s.drop_search_records.run(id.str());
  }
  if (changes.restored) s.meta.run(std::string(kRestored), restored_text(*changes.restored));
}

void Writer::replace_job(const JobId& id, const Changes& rows) {
  statements_->drop_parts(id);
  write(rows);
}

void Writer::replace_search(const SearchId& id, const Changes& rows) {
  statements_->drop_search_records.run(id.str());
  write(rows);
}

std::int64_t Writer::count_metrics(const JobId& job) {
  Statement& rows = statements_->count_metrics.query(job.str());
  std::int64_t count = 0;
  while (rows.step()) count = rows.integer(0);
  return count;
}

void Writer::thin_metrics(const JobId& job) {
  Thinning thinning;
  Statement& rows = statements_->all_metrics.query(job.str());
  while (rows.step()) {
    thinning.add({static_cast<int>(rows.integer(0)), static_cast<int>(rows.integer(1)),
                  static_cast<std::uint64_t>(rows.integer(2))},
                 rows.text(3));
  }
  for (const Thinning::Key& key : thinning.dropped()) {
    statements_->drop_metrics_row.run(job.str(), key.attempt, key.rank, key.seq);
  }
}

Loaded read_all(Database& database) {
  sqlite3* db = database.handle();
  Loaded all;
  // As they came, whatever the clock was set to between: a row that is changed stays in its place.
  all.jobs = read_rows<JobRow>(db, "SELECT * FROM jobs ORDER BY rowid");
  all.attempts = read_rows<AttemptRow>(db, "SELECT * FROM attempts ORDER BY job, attempt");
  all.shares = read_rows<ShareRow>(db, "SELECT * FROM shares ORDER BY job, attempt, node_rank");
  all.ranks =
      read_rows<RankRow>(db,
                         "SELECT r.* FROM ranks r JOIN attempts a ON a.job = r.job AND a.attempt = "
                         "r.attempt WHERE a.ended IS NULL ORDER BY r.job, r.attempt, r.rank");
  all.nodes = read_rows<NodeRow>(db, "SELECT * FROM nodes ORDER BY node");
  all.checkpoints = read_rows<CheckpointRow>(db, "SELECT * FROM checkpoints ORDER BY job, number");
  all.forgotten = read_rows<ForgottenRow>(db, "SELECT * FROM forgotten ORDER BY time, job");
  all.searches = read_rows<SearchRow>(db, "SELECT * FROM searches ORDER BY rowid");
  all.last_event = last_event(database);
  if (const std::string text = meta(database, kRestored); !text.empty()) {
    all.restored = restored_from(text);
    all.last_event = std::max(all.last_event, all.restored->first_event - 1);
  }
  return all;
}

std::int64_t last_event(Database& database) {
  const std::int64_t written = database.integer("SELECT max(event) FROM events");
  Statement told(database.handle(), "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?");
  return told.query(std::string(kEvents)).step() ? std::max(written, told.integer(0)) : written;
}

void set_last_event(Database& database, std::int64_t event) {
  Statement(database.handle(), "INSERT OR REPLACE INTO meta VALUES (?, ?)")
      .run(std::string(kEvents), std::to_string(event));
}

std::vector<EventRow> read_events(Database& database, const JobId& job) {
  Statement rows(database.handle(), "SELECT * FROM events WHERE job = ? ORDER BY event");
  return read_rows<EventRow>(rows.query(job.str()));
}

std::vector<MetricsRow> read_metrics(Database& database, const JobId& job) {
  Statement rows(database.handle(),
                 "SELECT * FROM metrics WHERE job = ? ORDER BY attempt, time, rank, seq");
  return read_rows<MetricsRow>(rows.query(job.str()));
}

std::vector<SearchRecord> read_search_records(Database& database, const SearchId& search) {
  Statement rows(database.handle(), "SELECT * FROM search_records WHERE search = ? ORDER BY seq");
  return read_rows<SearchRecord>(rows.query(search.str()));
}

void set_open(Database& database, const std::string& boot) {
  if (boot.empty()) {
    Statement(database.handle(), "DELETE FROM meta WHERE key = ?").run(std::string(kOpen));
  } else {
    Statement(database.handle(), "INSERT OR REPLACE INTO meta VALUES (?, ?)")
        .run(std::string(kOpen), boot);
  }
}

std::string open_since(Database& database) {
  // What a newer dtrain made of that table is its own.
  if (database.integer("SELECT count(*) FROM sqlite_master WHERE name = 'meta'") == 0) return {};
  return meta(database, kOpen);
}

// ---- Out of a damaged database.

namespace {

// From either end of the table; in its order.
template <typename Id>
std::vector<Id> readable_ids(Database& database, const std::string& select) {
  std::set<Id> found;
  const auto read = [&](const char* order) {
    std::vector<Id> ids;
    try {
      Statement rows(database.handle(), (select + order).c_str());
      while (rows.step()) {
        if (Id id(rows.text(0)); found.insert(id).second) ids.push_back(std::move(id));
      }
    } catch (const SqliteError& error) {
      if (!error.is_damage()) throw;
    }
    return ids;
  };
  std::vector<Id> all = read(" ORDER BY rowid");
  const std::vector<Id> from_end = read(" ORDER BY rowid DESC");
  all.insert(all.end(), from_end.rbegin(), from_end.rend());
  return all;
}

}  // namespace

std::vector<JobId> readable_jobs(Database& database) {
  return readable_ids<JobId>(database, "SELECT job FROM jobs");
}

std::vector<SearchId> readable_searches(Database& database) {
  return readable_ids<SearchId>(database, "SELECT search FROM searches");
}

Changes read_search(Database& database, const SearchId& id) {
  Changes rows;
  Statement row(database.handle(), "SELECT * FROM searches WHERE search = ?");
  rows.searches = read_rows<SearchRow>(row.query(id.str()));
  rows.search_records = read_search_records(database, id);
  return rows;
}

void check_search(const Changes& rows) {
  const auto& records = rows.search_records;
  const bool is_whole =
      rows.searches.size() == 1 &&
      nlohmann::json::parse(rows.searches.front().spec, nullptr, false).is_object() &&
      (records.empty() || records.back().seq == static_cast<std::int64_t>(records.size()));
  if (!is_whole) throw Error(ErrorCode::invalid, "its rows do not fit");
}

Changes read_job(Database& database, const JobId& id) {
  const auto rows_of = [&]<typename Row>(std::vector<Row>& into, const char* select) {
    Statement rows(database.handle(), select);
    into = read_rows<Row>(rows.query(id.str()));
  };
  Changes rows;
  rows_of(rows.jobs, "SELECT * FROM jobs WHERE job = ?");
  rows_of(rows.attempts, "SELECT * FROM attempts WHERE job = ? ORDER BY attempt");
  rows_of(rows.shares, "SELECT * FROM shares WHERE job = ?");
  rows_of(rows.ranks, "SELECT * FROM ranks WHERE job = ?");
  rows_of(rows.checkpoints, "SELECT * FROM checkpoints WHERE job = ?");
  rows.events = read_events(database, id);
  rows.metrics = read_metrics(database, id);
  return rows;
}

void check_job(const Changes& rows) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw Error(ErrorCode::invalid, std::string("its rows do not fit: ") + what);
  };
  require(rows.jobs.size() == 1, "it is not there by its name");
  const JobRow& job = rows.jobs.front();
  const auto is_object = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, false).is_object();
  };
  require(is_object(job.spec) && is_object(job.metrics), "its spec or its metrics are no JSON");
  require(is_final(job.state) == job.ended.has_value(), "its state and its end");
  require((rows.attempts.empty() ? 0 : rows.attempts.back().attempt) == job.attempt,
          "its newest attempt");
  for (const AttemptRow& attempt : rows.attempts) {
    int ranks = 0;
    for (const ShareRow& share : rows.shares) {
      if (share.attempt == attempt.attempt) ranks += share.nproc;
    }
    require(ranks == attempt.world_size, "an attempt and its nodes");
  }
}

}  // namespace dtrain::head
