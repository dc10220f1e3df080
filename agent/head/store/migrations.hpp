#pragma once

#include <vector>

#include "agent/head/store/sqlite.hpp"

// How a database of an older dtrain becomes one of today. Each step is one transaction, forward
// only; before the first, the database is copied beside itself.
//
// To change the schema from version N to N + 1:
//   1. change kTables, Writer and read_all in schema.cpp; new columns go at the end of their table;
//   2. append a step to migrations() that makes the same change to a database of version N;
//   3. `DTRAIN_ACCEPT=1 test_head -tc="golden database*"` writes tests/golden/database/v(N+1).db,
//      with sample_changes() in every table; it is committed, and never written again.
// A new value of a state or of another enum that a row holds is such a change too, with a step that
// does nothing: an older dtrain would take a row with it for damage, and restore a copy.
namespace dtrain::head {

// Runs within a transaction; throws SqliteError.
using Migration = void (*)(Database&);

// Step i brings a database of version i + 1 to version i + 2.
const std::vector<Migration>& migrations();

// SQLite's user_version of a database after `steps`.
inline int version_after(const std::vector<Migration>& steps) {
  return 1 + static_cast<int>(steps.size());
}

// Where the copy of a database of that version is kept: head.db.v1.bak. It is in the way of
// nothing; a newer copy of the same version replaces it.
fs::path backup_of(const fs::path& database, int version);

// Brings an opened database, which has tables, up to date. Throws Error(invalid) for one of a newer
// dtrain, Error(failed) when a step fails: the database is then as the last good step left it.
void migrate(Database& database, const fs::path& file, const std::vector<Migration>& steps);

// The same steps without a copy, for a file that nobody needs afterwards. Throws what a step
// throws.
void migrate_scratch(Database& scratch, const std::vector<Migration>& steps);

// Who wrote it, to be told to who cannot read it. Within the transaction that makes the tables.
void set_version(Database& database, int version);

}  // namespace dtrain::head
