#pragma once

#include <functional>
#include <optional>

#include "agent/head/store/rows.hpp"
#include "agent/head/store/sqlite.hpp"

// Copies of the head's database, from which it is restored when it is damaged. head.db.backup is
// the last one that was found to be whole, head.db.backup.1 the one before: no more than these two.
namespace dtrain::head {

fs::path copy_of(const fs::path& database);
fs::path older_copy_of(const fs::path& database);
bool has_copy(const fs::path& database);

// Of when the newest is; absent: there is none, or it cannot be read.
std::optional<WallTime> time_of_copy(const fs::path& database);

// Reads all of it: SQLite's own check, and that each row can be a row. Gives what it holds. Throws
// SqliteError, which is_damage(). Of a database of today's version.
Loaded check_whole(Database& database);
// The rows alone, and that its tables are those that are written to.
Loaded check_rows(Database& database);

// Runs work with an open database, while nobody else uses it.
using WithDatabase = std::function<void(const std::function<void(Database&)>&)>;

// Copies an open database in steps, between which others may write to it by the same connection;
// the copy is as the database is at its end. Checked and on the disk before it takes the place of
// the last one, which then is the older one. False: `stop` said so, between two steps. Throws
// Error; a SqliteError that is_damage() when what was copied is not whole.
bool make_copy(const fs::path& database, const WithDatabase& with,
               const std::function<bool()>& stop);

// Puts the newest copy that is whole, and not of a newer dtrain, in the place of a database that is
// damaged, as `why` says, or missing; what was there stays as head.db.damaged-TIME, with its log.
// What the damaged one, of today's version or an older, still has of jobs, whole and newer than in
// the copy, is taken over. Throws Error(io), with what to do, when no copy is whole; then nothing
// was changed.
void restore(const fs::path& database, const std::string& why);

// A copy that somebody has put in place beside the log of what was there before, which SQLite would
// take for the copy's own: the log is set aside as restore() does. Before it is opened.
void part_from_journal(const fs::path& database);

// Notes in a copy of when it is, unless it is one of a copy, and that no head has it open. By that
// note_if_copy() knows it.
void note_copied(Database& copy, WallTime time);

// A copy that somebody has put in place, and that no head has opened since: notes that as restore()
// does. False: it is none.
bool note_if_copy(Database& database);

}  // namespace dtrain::head
