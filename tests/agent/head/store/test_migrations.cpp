#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>

#include "agent/head/store/copies.hpp"
#include "agent/head/store/journal.hpp"
#include "agent/head/store/migrations.hpp"
#include "agent/head/store/schema.hpp"
#include "agent/head/store/store.hpp"
#include "tests/agent/head/store/sample_rows.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using dtrain::testing::TemporaryFolder;

namespace {

const fs::path kGolden = fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/database";

fs::path golden(int version) {
  return kGolden / ("v" + std::to_string(version) + ".db");
}

int today() {
  return version_after(migrations());
}

void write_sample(const fs::path& path) {
  const auto store = open_store({.path = path});
  std::promise<std::exception_ptr> written;
  store->commit(sample_changes(), Urgency::now, OnFailure::refuse,
                [&](std::exception_ptr failure) { written.set_value(failure); });
  REQUIRE(written.get_future().get() == nullptr);
}

// Name to definition. SQLite keeps the text that made a table, so blanks are made alike.
using Schema = std::map<std::string, std::string>;

std::string one_spaced(const std::string& sql) {
  std::string text;
  for (const char c : sql) {
    const bool blank = c == ' ' || c == '\n' || c == '\t';
    const bool after_sign =
        text.empty() || std::string("(), ").find(text.back()) != std::string::npos;
    if (blank && after_sign) continue;
    if (!blank && std::string("(),").find(c) != std::string::npos && text.ends_with(' ')) {
      text.pop_back();
    }
    text += blank ? ' ' : c;
  }
  return text;
}

Schema schema_of(const fs::path& path) {
  Database database(path);
  Statement rows(database.handle(), "SELECT type, name, tbl_name, sql FROM sqlite_master");
  Schema schema;
  while (rows.step()) {
    schema[rows.text(0) + " " + rows.text(1) + " of " + rows.text(2)] = one_spaced(rows.text(3));
  }
  return schema;
}

// Table to its rows, each as column to value in SQL's words. What a database says of its writer is
// not among them.
using Rows = std::map<std::string, std::vector<std::map<std::string, std::string>>>;

std::vector<std::string> texts(Database& database, const std::string& sql) {
  Statement rows(database.handle(), sql.c_str());
  std::vector<std::string> all;
  while (rows.step()) all.push_back(rows.text(0));
  return all;
}

Rows rows_of(const fs::path& path) {
  Database database(path);
  Rows all;
  for (const std::string& table :
       texts(database, "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'meta'")) {
    const auto columns = texts(database, "SELECT name FROM pragma_table_info('" + table + "')");
    std::string quoted;
    for (const std::string& column : columns) {
      quoted += (quoted.empty() ? "quote(" : ", quote(") + column + ")";
    }
    Statement rows(database.handle(), ("SELECT " + quoted + " FROM " + table).c_str());
    auto& found = all[table];
    while (rows.step()) {
      auto& row = found.emplace_back();
      for (std::size_t i = 0; i < columns.size(); ++i) {
        row[columns[i]] = rows.text(static_cast<int>(i));
      }
    }
    std::sort(found.begin(), found.end());
  }
  return all;
}

// Tables, columns and rows that came later may be there; all that was is as it was.
void check_kept(const Rows& before, const Rows& after) {
  for (const auto& each : before) {
    const auto& table = each.first;
    const auto& rows = each.second;
    CAPTURE(table);
    REQUIRE(after.contains(table));
    REQUIRE(after.at(table).size() == rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const auto& field : rows[i]) {
        const auto& column = field.first;
        const auto& value = field.second;
        CAPTURE(column);
        REQUIRE(after.at(table)[i].contains(column));
        CHECK(after.at(table)[i].at(column) == value);
      }
    }
  }
}

std::string refusal(const fs::path& path) {
  try {
    open_store({.path = path});
  } catch (const Error& error) {
    return error.message() + " | " + error.hint();
  }
  return "opened";
}

// What a later dtrain might do.
void add_column(Database& database) {
  database.run("ALTER TABLE jobs ADD COLUMN parent TEXT NOT NULL DEFAULT 'none'");
}
void add_table(Database& database) {
  database.run("CREATE TABLE searches (name TEXT PRIMARY KEY) WITHOUT ROWID");
  database.run("INSERT INTO searches SELECT job FROM jobs");
}
void fail(Database& database) {
  database.run("CREATE TABLE half (x)");
  database.run("UPDATE jobs SET reason = 'lost'");
  database.run("INSERT INTO nowhere VALUES (1)");
}

}  // namespace

TEST_CASE("golden databases of each version become one of today, and keep their rows") {
  const TemporaryFolder folder;
  const fs::path fresh = folder / "fresh.db";
  write_sample(fresh);
  if (std::getenv("DTRAIN_ACCEPT") != nullptr && !fs::exists(golden(today()))) {
    fs::copy_file(fresh, golden(today()));
  }
  for (int version = 1; version <= today(); ++version) {
    CAPTURE(version);
    REQUIRE_MESSAGE(fs::exists(golden(version)), "DTRAIN_ACCEPT=1 writes that of today's version");
    const fs::path path = folder / ("v" + std::to_string(version) + ".db");
    fs::copy_file(golden(version), path);
    const Rows before = rows_of(path);
    for (const auto& each : before) {
      CHECK_MESSAGE(!each.second.empty(), "no row in ", each.first);
    }
    CHECK(open_store({.path = path})->load().jobs.size() == 1);
    CHECK(schema_of(path) == schema_of(fresh));
    check_kept(before, rows_of(path));
    CHECK(fs::exists(backup_of(path, version)) == (version < today()));
  }
}

TEST_CASE("what an older database had drained stays so when its node is lost and comes back") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(golden(9), path);
  std::string reason;
  SUBCASE("with its reason") {
    reason = "why";
  }
  SUBCASE("which a head has forgotten") {
    Database(path).run("UPDATE nodes SET state = 'drained', reason = ''");
    reason = "it gets no new ranks";
  }
  SUBCASE("but not what was only ready") {
    Database(path).run("UPDATE nodes SET state = 'ready'");
  }
  CHECK(open_store({.path = path})->load().nodes.at(0).drain == reason);
}

TEST_CASE("an older database is copied, then brought forward step by step") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(golden(1), path);
  const Rows before = rows_of(path);
  {
    Database database(path);
    migrate(database, path, {add_column, add_table});
    CHECK(database.integer("PRAGMA user_version") == 3);
    CHECK(database.text("SELECT parent FROM jobs") == "none");
    CHECK(database.text("SELECT name FROM searches") == "a");
    CHECK(database.text("SELECT value FROM meta WHERE key = 'written_by'") ==
          "dtrain " DTRAIN_VERSION);
    migrate(database, path, {add_column, add_table});  // nothing is left to do
  }
  check_kept(before, rows_of(path));
  // One copy, of what was there before the first step, for this user alone.
  CHECK(backup_of(path, 1) == folder / "head.db.v1.bak");
  CHECK_FALSE(fs::exists(backup_of(path, 2)));
  CHECK(rows_of(backup_of(path, 1)) == before);
  CHECK(schema_of(backup_of(path, 1)) == schema_of(golden(1)));
  CHECK((fs::status(backup_of(path, 1)).permissions() & fs::perms::mask) ==
        (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("what a newer dtrain left of before, put in place, is known to be a copy") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  write_sample(path);
  bool was_killed = false;
  SUBCASE("of a head that was closed in order") {}
  SUBCASE("of one that was killed, beside the log and the copies of the newer one") {
    was_killed = true;
  }
  {
    Database database(path);
    database.keep_journal(was_killed);
    if (was_killed) set_open(database, "another boot");
    std::vector<Migration> newer = migrations();
    newer.push_back(add_column);
    migrate(database, path, newer);
    for (const fs::path& copy : {copy_of(path), older_copy_of(path)}) {
      remove_tree(copy);
      if (was_killed) database.run(("VACUUM INTO '" + copy.string() + "'").c_str());
    }
  }
  REQUIRE(fs::exists(journal_of(path)) == was_killed);
  fs::copy_file(backup_of(path, today()), path, fs::copy_options::overwrite_existing);
  const Loaded all = open_store({.path = path})->load();
  CHECK(all.jobs.size() == 1);
  REQUIRE(all.restored);
  CHECK(all.restored->open == std::set<JobId>{JobId("a")});
  CHECK(all.restored->copied > from_millis(1));
  CHECK(all.restored->damaged.empty());
  CHECK(open_store({.path = path})->load().restored == all.restored);
}

TEST_CASE("a copy stays of when it is, whatever is made of it") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(golden(1), path);
  {
    Database database(path);
    note_copied(database, from_millis(7));
  }
  const Loaded all = open_store({.path = path})->load();
  REQUIRE(all.restored);
  CHECK(all.restored->copied == from_millis(7));
  Database backup(backup_of(path, 1), true);
  CHECK(backup.text("SELECT value FROM meta WHERE key = 'copied'") == "7");
}

TEST_CASE("a step that fails keeps nothing, and the next try goes on from there") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(golden(1), path);
  const Rows before = rows_of(path);
  std::ofstream(backup_of(path, 1).string() + ".tmp") << "of a copy that was cut off";
  {
    Database database(path);
    CHECK_THROWS_WITH_AS(migrate(database, path, {add_column, fail}),
                         doctest::Contains("of version 2 could not be brought to version 3"),
                         Error);
    CHECK(database.integer("PRAGMA user_version") == 2);
    CHECK_FALSE(database.in_transaction());
    check_kept(before, rows_of(path));
    CHECK_FALSE(rows_of(path).contains("half"));
    migrate(database, path, {add_column, add_table});
    CHECK(database.integer("PRAGMA user_version") == 3);
  }
  check_kept(before, rows_of(path));
  CHECK(rows_of(backup_of(path, 1)) == before);
}

TEST_CASE("without a copy nothing is changed") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(golden(1), path);
  fs::create_directory(backup_of(path, 1));  // where the copy cannot be put
  std::ofstream(backup_of(path, 1) / "file") << "x";
  Database database(path);
  CHECK_THROWS_WITH_AS(migrate(database, path, {add_column}), doctest::Contains("while copying"),
                       Error);
  CHECK(database.integer("PRAGMA user_version") == 1);
  CHECK(schema_of(path) == schema_of(golden(1)));
}

TEST_CASE("a newer database is refused with who wrote it and what to do") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  write_sample(path);
  {
    Database database(path);
    database.run("PRAGMA user_version = 999");
    database.run("UPDATE meta SET value = 'dtrain 9.1.0' WHERE key = 'written_by'");
  }
  const Rows before = rows_of(path);
  std::string told = refusal(path);
  CAPTURE(told);
  CHECK(told.find("written by dtrain 9.1.0 (schema version 999)") != std::string::npos);
  CHECK(told.find("this is dtrain " DTRAIN_VERSION) != std::string::npos);
  CHECK(told.find("use dtrain 9.1.0 or later") != std::string::npos);
  CHECK(told.find(".bak") == std::string::npos);
  std::ofstream(backup_of(path, today())) << "a copy";
  told = refusal(path);
  CHECK(told.find(backup_of(path, today()).string() + " in its place") != std::string::npos);
  {
    Database database(path);
    database.run("DROP TABLE meta");
  }
  CHECK(refusal(path).find("written by a newer dtrain") != std::string::npos);
  CHECK(rows_of(path) == before);
}
