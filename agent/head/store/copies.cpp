#include "agent/head/store/copies.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "agent/head/store/journal.hpp"
#include "agent/head/store/migrations.hpp"
#include "agent/head/store/schema.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

constexpr int kStepPages = 64;                       // a quarter of a MiB
constexpr std::chrono::milliseconds kStepPause{1};   // in which a commit gets its turn
constexpr std::chrono::milliseconds kLockPause{20};  // another holds a lock on the database
constexpr const char* kCopied = "copied";            // in meta: of when a copy is, in ms

fs::path with_suffix(const fs::path& database, const char* suffix) {
  return database.string() + suffix;
}

void sync_file(const fs::path& file) {
  const UniqueFd fd = open_file(file, O_RDWR);
  if (::fsync(fd.get()) != 0) throw errno_error("cannot write " + file.string(), errno);
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  throw errno_error("cannot rename " + from.string() + " to " + to.string(), errno);
}

// A copy is no reason to fill the disk: as much again is left free.
void require_room(const fs::path& folder, std::uint64_t size) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return;
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= 2 * size) return;
  throw Error(ErrorCode::exhausted, "the disk has " + human_bytes(free) + " free, and a copy of " +
                                        human_bytes(size) + " leaves as much again");
}

// Removes the file unless it has been put in its place.
class Unfinished {
 public:
  explicit Unfinished(fs::path file) : file_(std::move(file)) { remove(); }
  ~Unfinished() {
    try {
      remove();
    } catch (const Error& error) {
      log::warn("a file stays", {{"why", error.what()}});
    }
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  const fs::path& file() const { return file_; }

 private:
  void remove() const {
    remove_tree(file_);
    remove_tree(journal_of(file_));
    remove_tree(with_suffix(file_, "-shm"));
  }
  fs::path file_;
};

[[noreturn]] void throw_damage(const std::string& what) {
  throw SqliteError(SQLITE_CORRUPT, what);
}

void require_object(const std::string& text, const std::string& whose) {
  if (!nlohmann::json::parse(text, nullptr, false).is_object()) {
    throw_damage(whose + " is no JSON object");
  }
}

// A copy that is under way; given up when it is not taken to its end.
class Copying {
 public:
  Copying(Database& to, const WithDatabase& with) : with_(with) {
    with_([&](Database& from) {
      backup_ = sqlite3_backup_init(to.handle(), "main", from.handle(), "main");
    });
    if (backup_ == nullptr) {
      throw SqliteError(sqlite3_extended_errcode(to.handle()), sqlite3_errmsg(to.handle()));
    }
  }
  ~Copying() {
    with_([&](Database&) { sqlite3_backup_finish(backup_); });
  }
  Copying(const Copying&) = delete;
  Copying& operator=(const Copying&) = delete;

  // True once all is copied.
  bool step() {
    int code = SQLITE_OK;
    with_([&](Database&) { code = sqlite3_backup_step(backup_, kStepPages); });
    if (code == SQLITE_DONE) return true;
    const bool locked = code == SQLITE_BUSY || code == SQLITE_LOCKED;
    if (code != SQLITE_OK && !locked) throw SqliteError(code, sqlite3_errstr(code));
    std::this_thread::sleep_for(locked ? kLockPause : kStepPause);
    return false;
  }

 private:
  const WithDatabase& with_;
  sqlite3_backup* backup_ = nullptr;
};

std::int64_t millis_now() {
  return to_millis(
      std::chrono::time_point_cast<WallTime::duration>(std::chrono::system_clock::now()));
}

// From here on it is the head's own database, and says of when it is.
void note_restored(Database& database, RestoredRow row) {
  Statement open(database.handle(), "SELECT job FROM jobs WHERE ended IS NULL");
  while (open.step()) row.open.insert(JobId(open.text(0)));
  row.first_event = last_event(database) + RestoredRow::kEventsUnknown;
  row.time = from_millis(millis_now());
  Changes changes;
  changes.restored = std::move(row);
  database.run("BEGIN IMMEDIATE");
  Writer(database).write(changes);
  Statement(database.handle(), "DELETE FROM meta WHERE key = ?").run(std::string(kCopied));
  database.run("COMMIT");
}

std::optional<WallTime> copied(Database& database) {
  Statement row(database.handle(), "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?");
  if (!row.query(std::string(kCopied)).step()) return std::nullopt;
  return from_millis(row.integer(0));
}

// Grows with what happens to a job: an event goes with each change of its state, a number of its
// shares with all that its ranks say.
std::pair<std::int64_t, std::uint64_t> age(const Changes& job) {
  std::uint64_t said = 0;
  for (const ShareRow& share : job.shares) said += share.seq;
  return {job.events.empty() ? 0 : job.events.back().id, said};
}

// Grows with what is recorded of a search.
std::pair<std::size_t, std::int64_t> search_age(const Changes& search) {
  std::int64_t reports = 0;
  for (const SearchRecord& record : search.search_records) reports += record.iteration;
  return {search.search_records.size(), reports};
}

// Runs `take` for the job or search (`kind`) that is named `id`, whole or not at all; gives whether
// it did.
bool take_over(Database& into, const std::string& id, const char* kind,
               const std::function<bool()>& take) {
  try {
    Statement removed(into.handle(), "SELECT count(*) FROM forgotten WHERE job = ?");
    Statement& found = removed.query(id);
    if (found.step() && found.integer(0) > 0) return false;
    return take();
  } catch (const std::exception& error) {
    if (into.in_transaction()) into.run("ROLLBACK");
    const auto* failed = dynamic_cast<const Error*>(&error);
    if (failed != nullptr && failed->code() == ErrorCode::exhausted) throw;
    log::warn(std::string("a ") + kind + " cannot be read from the damaged database",
              {{kind, id}, {"why", error.what()}});
    return false;
  }
}

void copy_whole(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::copy_file(from, to, failed);
  if (failed) throw errno_error("cannot copy " + from.string(), failed.value());
}

// A damaged database of an older dtrain as it would be today, made of a copy of its files.
std::unique_ptr<Database> brought_forward(const fs::path& damaged, const fs::path& scratch) {
  const fs::path journal = journal_of(damaged);
  const bool has_journal = fs::exists(journal);
  require_room(scratch.parent_path(),
               fs::file_size(damaged) + (has_journal ? fs::file_size(journal) : 0));
  copy_whole(damaged, scratch);
  if (has_journal) copy_whole(journal, journal_of(scratch));
  auto database = std::make_unique<Database>(scratch);
  database->run("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF");
  migrate_scratch(*database, migrations());
  return database;
}

// A damaged database, which stays as it is. What cannot be brought up to date is given as it is.
std::unique_ptr<Database> open_damaged(const fs::path& damaged, const fs::path& scratch) {
  auto database = std::make_unique<Database>(damaged, true);
  database->keep_journal(true);
  const std::int64_t version = database->integer("PRAGMA user_version");
  if (version < 1 || version >= version_after(migrations())) return database;
  try {
    return brought_forward(damaged, scratch);
  } catch (const std::exception& error) {
    log::warn("the damaged database is of an older dtrain, and cannot be brought up to date",
              {{"why", error.what()}});
    return database;
  }
}

// Takes over what a damaged database has whole of jobs, and of searches, where that is newer. Each
// is taken with all of its rows or not at all. Which jobs were removed is not: their files would go
// for a page that holds something else. Gives how many jobs it took.
int salvage(const fs::path& damaged, Database& into) {
  int taken = 0;
  const Unfinished scratch(with_suffix(damaged, ".salvaging"));
  try {
    const std::unique_ptr<Database> opened = open_damaged(damaged, scratch.file());
    Database& from = *opened;
    if (from.integer("PRAGMA user_version") != into.integer("PRAGMA user_version")) return 0;
    Writer writer(into);
    for (const JobId& id : readable_jobs(from)) {
      const bool took = take_over(into, id.str(), "job", [&] {
        const Changes job = read_job(from, id);
        check_job(job);
        if (age(job) <= age(read_job(into, id))) return false;
        into.run("BEGIN IMMEDIATE");
        writer.replace_job(id, job);
        into.run("COMMIT");
        return true;
      });
      taken += took ? 1 : 0;
    }
    for (const SearchId& id : readable_searches(from)) {
      (void)take_over(into, id.str(), "search", [&] {
        const Changes search = read_search(from, id);
        check_search(search);
        if (search_age(search) <= search_age(read_search(into, id))) return false;
        into.run("BEGIN IMMEDIATE");
        writer.replace_search(id, search);
        into.run("COMMIT");
        return true;
      });
    }
  } catch (const std::exception& error) {
    const auto* failed = dynamic_cast<const Error*>(&error);
    if (failed != nullptr && failed->code() == ErrorCode::exhausted) throw;
    log::warn("the damaged database cannot be read any further", {{"why", error.what()}});
  }
  return taken;
}

// Makes what takes the place of the damaged database. Throws a SqliteError that is_damage() when
// the copy is not whole, Error(invalid) when it is of a newer dtrain.
void prepare(const fs::path& copy, const fs::path& database, const fs::path& made,
             RestoredRow& row) {
  copy_whole(copy, made);
  {
    Database next(made);
    next.run("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF");  // it is synced as a whole
    if (next.integer("PRAGMA user_version") == 0) throw_damage("it is empty");
    prepare_schema(next, database);
    (void)check_whole(next);
    row.copied = copied(next).value_or(WallTime());
    row.salvaged = fs::exists(database) ? salvage(database, next) : 0;
    (void)check_whole(next);
    note_restored(next, row);
  }
  sync_file(made);
}

// The log goes first: beside another database it would be taken for that one's.
void set_aside(const fs::path& database, const fs::path& as) {
  if (fs::exists(journal_of(database))) rename_file(journal_of(database), journal_of(as));
  if (fs::exists(database)) rename_file(database, as);
  remove_tree(with_suffix(database, "-shm"));
  fsync_folder(database.parent_path());
}

fs::path free_name(const fs::path& database) {
  std::string time = rfc3339(from_millis(millis_now()));
  std::erase_if(time, [](char c) { return c == ':' || c == '-' || c == '.'; });
  const fs::path name = with_suffix(database, (".damaged-" + time).c_str());
  fs::path free = name;
  for (int i = 2; fs::exists(free) || fs::exists(journal_of(free)); ++i) {
    free = name.string() + "-" + std::to_string(i);
  }
  return free;
}

}  // namespace

fs::path copy_of(const fs::path& database) {
  return with_suffix(database, ".backup");
}

fs::path older_copy_of(const fs::path& database) {
  return with_suffix(database, ".backup.1");
}

bool has_copy(const fs::path& database) {
  return fs::exists(copy_of(database)) || fs::exists(older_copy_of(database));
}

std::optional<WallTime> time_of_copy(const fs::path& database) {
  try {
    if (!fs::exists(copy_of(database))) return std::nullopt;
    Database copy(copy_of(database), true);
    return copied(copy);
  } catch (const Error& error) {
    log::warn("the copy of the database cannot be read", {{"why", error.what()}});
    return std::nullopt;
  }
}

Loaded check_rows(Database& database) {
  try {
    Loaded rows = read_all(database);
    for (const JobRow& row : rows.jobs) {
      require_object(row.spec, "the spec of " + row.id.str());
      require_object(row.metrics, "what is kept of the metrics of " + row.id.str());
    }
    for (const SearchRow& row : rows.searches) {
      require_object(row.spec, "the spec of " + row.id.str());
    }
    const Writer fits(database);  // what is written to it, to its tables
    return rows;
  } catch (const std::exception& error) {
    const auto* refused = dynamic_cast<const SqliteError*>(&error);
    if (refused != nullptr && refused->may_pass()) throw;
    throw_damage(error.what());
  }
}

Loaded check_whole(Database& database) {
  const std::string found = database.text("PRAGMA integrity_check(1)");
  if (found != "ok") throw_damage(found);
  return check_rows(database);
}

bool make_copy(const fs::path& database, const WithDatabase& with,
               const std::function<bool()>& stop) {
  std::int64_t bytes = 0;  // the file itself may have no name any more
  with([&](Database& open) {
    bytes = open.integer("PRAGMA page_count") * open.integer("PRAGMA page_size");
  });
  require_room(database.parent_path(), static_cast<std::uint64_t>(bytes));
  const Unfinished unfinished(with_suffix(database, ".backup.tmp"));
  const fs::path& made = unfinished.file();
  {
    Database copy(made);
    copy.run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF");
    std::int64_t time = 0;
    {
      Copying copying(copy, with);
      do {
        if (stop()) return false;
        time = millis_now();  // what was changed before this step is in it, if it is the last
      } while (!copying.step());
    }
    copy.run("PRAGMA journal_mode = DELETE");  // beside it lies no log
    (void)check_whole(copy);
    note_copied(copy, from_millis(time));
  }
  failpoint("copy.fsync.before");
  sync_file(made);
  failpoint("copy.rename.before");
  if (fs::exists(copy_of(database))) rename_file(copy_of(database), older_copy_of(database));
  rename_file(made, copy_of(database));
  failpoint("copy.rename.after");
  fsync_folder(database.parent_path());
  return true;
}

void restore(const fs::path& database, const std::string& why) {
  std::string problems;
  for (const fs::path& copy : {copy_of(database), older_copy_of(database)}) {
    if (!fs::exists(copy)) continue;
    const Unfinished unfinished(with_suffix(database, ".restoring"));
    const fs::path& made = unfinished.file();
    RestoredRow row;
    row.why = why;
    const bool there = fs::exists(database) || fs::exists(journal_of(database));
    const fs::path aside = free_name(database);
    if (there) row.damaged = aside.string();
    try {
      while_doing("restoring " + database.string() + " from " + copy.string(),
                  [&] { prepare(copy, database, made, row); });
    } catch (const SqliteError& error) {
      if (!error.is_damage()) throw;
      problems += "; " + copy.filename().string() + " is damaged too: " + error.message();
      continue;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid) throw;
      problems += "; " + copy.filename().string() + " is of no use: " + error.message();
      continue;
    }
    failpoint("restore.aside.before");
    set_aside(database, aside);
    failpoint("restore.rename.before");
    rename_file(made, database);
    failpoint("restore.rename.after");
    fsync_folder(database.parent_path());
    log::error("the database was damaged, and is restored from a copy",
               {{"why", why},
                {"copy", copy.string()},
                {"of", rfc3339(row.copied)},
                {"jobs_saved", std::to_string(row.salvaged)},
                {"damaged", row.damaged}});
    return;
  }
  if (problems.empty()) problems = "; there is no copy of it";
  throw Error(ErrorCode::io, "the head's database is damaged: " + why + problems)
      .with_hint("put a whole copy of it in the place of " + database.string() + " and remove " +
                 journal_of(database).filename().string() + "; or move " + database.string() +
                 "* away to start with an empty one: checkpoints and logs stay where they are");
}

void part_from_journal(const fs::path& database) {
  // https://www.sqlite.org/fileformat2.html: 2 where there is a write-ahead log, as in all that a
  // head has opened, 1 in what make_copy() leaves.
  constexpr std::size_t kFormat = 18;
  if (!fs::exists(journal_of(database)) || !fs::exists(database)) return;
  char format = 0;
  const UniqueFd fd = open_file(database, O_RDONLY);
  if (::pread(fd.get(), &format, 1, kFormat) != 1 || format != 1) return;
  const fs::path aside = journal_of(free_name(database));
  rename_file(journal_of(database), aside);
  remove_tree(with_suffix(database, "-shm"));
  fsync_folder(database.parent_path());
  log::warn("the database's log is that of another, and is set aside", {{"as", aside.string()}});
}

void note_copied(Database& copy, WallTime time) {
  Statement(copy.handle(), "INSERT OR IGNORE INTO meta VALUES (?, ?)")
      .run(std::string(kCopied), std::to_string(to_millis(time)));
  set_open(copy, "");
}

bool note_if_copy(Database& database) {
  const auto time = copied(database);
  if (!time) return false;
  RestoredRow row;
  row.why = "a copy was put in its place";
  row.copied = *time;
  note_restored(database, row);
  log::warn("the database is a copy that was put in its place", {{"of", rfc3339(*time)}});
  return true;
}

}  // namespace dtrain::head
