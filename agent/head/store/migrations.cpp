#include "agent/head/store/migrations.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "agent/head/store/copies.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::head {
namespace {

std::string version_text(int version) {
  return "version " + std::to_string(version);
}

// "dtrain 0.2.0", as set_version() wrote it. What a newer dtrain made of that table is its own.
std::string written_by(Database& database) {
  try {
    std::string name = database.text("SELECT value FROM meta WHERE key = 'written_by'");
    if (!name.empty()) return name;
  } catch (const SqliteError& error) {
    log::warn("the database does not say who wrote it", {{"why", error.what()}});
  }
  return "a newer dtrain";
}

[[noreturn]] void refuse_newer(Database& database, const fs::path& file, int version, int known) {
  const std::string writer = written_by(database);
  Error error(ErrorCode::invalid,
              "the database was written by " + writer + " (schema " + version_text(version) +
                  "); this is dtrain " DTRAIN_VERSION ", which knows up to " + version_text(known));
  std::string hint = "use " + writer + " or later";
  for (int older = known; older >= 1; --older) {
    const fs::path backup = backup_of(file, older);
    if (!fs::exists(backup)) continue;
    hint += ", or put " + backup.string() +
            " in its place: jobs since that copy was made are then unknown";
    break;
  }
  throw error.with_hint(hint);
}

// Whole or not at all, and on disk: from here on it is what is left of the old version. A person
// may put it in place.
void back_up(Database& database, const fs::path& file, int version) {
  const fs::path backup = backup_of(file, version);
  const fs::path temporary = backup.string() + ".tmp";
  while_doing("copying the database to " + backup.string() + " before it is changed", [&] {
    remove_tree(temporary);  // of a copy that was cut off
    const UniqueFd made = open_file(temporary, O_RDWR | O_CREAT | O_EXCL, 0600);
    Statement(database.handle(), "VACUUM INTO ?").run(temporary.string());
    {
      Database copy(temporary);
      copy.run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF");
      note_copied(copy, std::chrono::system_clock::now());
    }
    if (::fsync(made.get()) != 0) throw errno_error("cannot write " + temporary.string(), errno);
    if (std::rename(temporary.c_str(), backup.c_str()) != 0) {
      throw errno_error("cannot write " + backup.string(), errno);
    }
    fsync_folder(backup.parent_path());
  });
  log::info("the database was copied before it is changed", {{"to", backup.string()}});
}

void step(Database& database, int from, Migration migration) {
  try {
    database.run("BEGIN IMMEDIATE");
    migration(database);
    set_version(database, from + 1);
    database.run("COMMIT");
  } catch (const std::exception&) {
    if (database.in_transaction()) database.run("ROLLBACK");
    throw;
  }
}

}  // namespace

const std::vector<Migration>& migrations() {
  static const std::vector<Migration> steps{
      [](Database& database) {
        database.run(
            "CREATE TABLE forgotten (job TEXT PRIMARY KEY, time INTEGER NOT NULL, "
            "reason TEXT NOT NULL) WITHOUT ROWID");
      },
      [](Database& database) {
        database.run("ALTER TABLE ranks ADD COLUMN cause TEXT NOT NULL DEFAULT ''");
      },
      [](Database& database) {
        database.run("ALTER TABLE nodes ADD COLUMN joined INTEGER NOT NULL DEFAULT 0");
        database.run("ALTER TABLE nodes ADD COLUMN type TEXT NOT NULL DEFAULT ''");
      },
      [](Database& database) {
        for (const char* column :
             {"fault TEXT NOT NULL DEFAULT 'none'", "code INTEGER NOT NULL DEFAULT 0",
              "signal INTEGER NOT NULL DEFAULT 0", "fault_node TEXT NOT NULL DEFAULT ''",
              "words TEXT NOT NULL DEFAULT ''", "step INTEGER",
              "counted INTEGER NOT NULL DEFAULT 0"}) {
          database.run((std::string("ALTER TABLE attempts ADD COLUMN ") + column).c_str());
        }
      },
      [](Database& database) {
        database.run("ALTER TABLE attempts ADD COLUMN causes TEXT NOT NULL DEFAULT ''");
        for (const char* column :
             {"at INTEGER", "loose INTEGER NOT NULL DEFAULT 0", "clock_by INTEGER",
              "clock_uncertain INTEGER NOT NULL DEFAULT 0", "heard INTEGER NOT NULL DEFAULT 0"}) {
          database.run((std::string("ALTER TABLE ranks ADD COLUMN ") + column).c_str());
        }
      },
      [](Database& database) {
        database.run("ALTER TABLE jobs ADD COLUMN spares TEXT NOT NULL DEFAULT '[]'");
      },
      [](Database& database) {
        database.run("ALTER TABLE checkpoints ADD COLUMN removing INTEGER NOT NULL DEFAULT 0");
      },
      [](Database& database) {
        database.run(
            "CREATE TABLE searches (search TEXT PRIMARY KEY, submission_id TEXT UNIQUE, "
            "spec TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, "
            "created INTEGER NOT NULL, since INTEGER NOT NULL, ended INTEGER, "
            "summary TEXT NOT NULL)");
        database.run(
            "CREATE TABLE search_records (search TEXT NOT NULL, seq INTEGER NOT NULL, "
            "kind INTEGER NOT NULL, trial INTEGER NOT NULL, number INTEGER NOT NULL, "
            "iteration INTEGER NOT NULL, step INTEGER, time REAL, value REAL, best REAL, "
            "job TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (search, seq)) WITHOUT ROWID");
      },
      [](Database& database) {
        database.run("ALTER TABLE nodes ADD COLUMN drain TEXT NOT NULL DEFAULT ''");
        database.run(
            "UPDATE nodes SET drain = CASE reason WHEN '' THEN 'it gets no new ranks' "
            "ELSE reason END WHERE state IN ('draining', 'drained')");
      },
  };
  return steps;
}

fs::path backup_of(const fs::path& database, int version) {
  return database.string() + ".v" + std::to_string(version) + ".bak";
}

void migrate(Database& database, const fs::path& file, const std::vector<Migration>& steps) {
  const int found = static_cast<int>(database.integer("PRAGMA user_version"));
  const int known = version_after(steps);
  if (found > known) refuse_newer(database, file, found, known);
  if (found == known) return;
  back_up(database, file, found);
  for (int version = found; version < known; ++version) {
    try {
      step(database, version, steps[static_cast<std::size_t>(version - 1)]);
    } catch (const std::exception& error) {
      const auto* refused = dynamic_cast<const SqliteError*>(&error);
      if (refused != nullptr && (refused->may_pass() || refused->is_damage())) throw;
      throw Error(ErrorCode::failed, "the database of " + version_text(version) +
                                         " could not be brought to " + version_text(version + 1) +
                                         ": " + error.what())
          .with_hint("nothing of that step was kept, and the copy from before is " +
                     backup_of(file, found).string() + "; go on with " + written_by(database));
    }
  }
  log::info("the database was brought up to date",
            {{"from", std::to_string(found)}, {"to", std::to_string(known)}});
}

void migrate_scratch(Database& scratch, const std::vector<Migration>& steps) {
  const int known = version_after(steps);
  for (auto version = static_cast<int>(scratch.integer("PRAGMA user_version")); version < known;
       ++version) {
    step(scratch, version, steps.at(static_cast<std::size_t>(version - 1)));
  }
}

void set_version(Database& database, int version) {
  database.run("INSERT OR REPLACE INTO meta VALUES ('written_by', 'dtrain " DTRAIN_VERSION "')");
  database.run(("PRAGMA user_version = " + std::to_string(version)).c_str());
}

}  // namespace dtrain::head
