#include "agent/head/store/sqlite.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

namespace dtrain::head {
namespace {

ErrorCode kind_of(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return ErrorCode::exhausted;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return ErrorCode::denied;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
    case SQLITE_ERROR:
      return ErrorCode::internal;
    default:
      return ErrorCode::io;
  }
}

// By us, so that nobody else may read it; SQLite gives its -wal and -shm the same mode. One that is
// there is never opened here: whoever closes a descriptor of a file ends all POSIX locks that its
// process holds on it (fcntl(2)), those of its open connections too.
void make_if_missing(const fs::path& path) {
  const UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (made) return;
  if (errno == EEXIST && ::access(path.c_str(), R_OK | W_OK) == 0) return;
  throw errno_error("cannot open " + path.string(), errno);
}

}  // namespace

SqliteError::SqliteError(int code, const std::string& message)
    : Error(kind_of(code), message), code_(code) {}

bool SqliteError::may_pass() const noexcept {
  const int code = code_ & 0xff;
  return code == SQLITE_FULL || code == SQLITE_IOERR || code == SQLITE_BUSY ||
         code == SQLITE_LOCKED || code == SQLITE_NOMEM || code == SQLITE_CANTOPEN ||
         code == SQLITE_READONLY;
}

bool SqliteError::is_damage() const noexcept {
  const int code = code_ & 0xff;
  return code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

Statement::Statement(sqlite3* db, const char* sql) : db_(db) {
  check(sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement_, nullptr));
}

Statement::~Statement() {
  sqlite3_finalize(statement_);
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    const SqliteError error(code, std::string("the database refused: ") + sqlite3_errmsg(db_));
    reset();
    throw error;
  }
  reset();
  return false;
}

void Statement::run_bound() {
  while (step()) {
  }
}

std::int64_t Statement::integer(int column) {
  return sqlite3_column_int64(statement_, column);
}
double Statement::real(int column) {
  return sqlite3_column_double(statement_, column);
}
bool Statement::null(int column) {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}
std::string Statement::text(int column) {
  const unsigned char* text = sqlite3_column_text(statement_, column);
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(text),
          static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}
void Statement::bind(int index, double value) {
  check(sqlite3_bind_double(statement_, index, value));
}
void Statement::bind(int index, std::string_view value) {
  check(sqlite3_bind_text64(statement_, index, value.data() == nullptr ? "" : value.data(),
                            value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}
void Statement::bind_integer(int index, std::int64_t value) {
  check(sqlite3_bind_int64(statement_, index, value));
}
void Statement::bind_null(int index) {
  check(sqlite3_bind_null(statement_, index));
}

void Statement::reset() noexcept {
  sqlite3_reset(statement_);
}

void Statement::check(int code) const {
  if (code != SQLITE_OK) {
    throw SqliteError(code, std::string("the database refused: ") + sqlite3_errmsg(db_));
  }
}

Database::Database(const fs::path& path, bool read_only) {
  if (!read_only) make_if_missing(path);
  const int flags = (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) |
                    SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(path.c_str(), &db_, flags, nullptr);
  if (code != SQLITE_OK) {
    const SqliteError error(
        code, "cannot open the database: " +
                  std::string(db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code)));
    sqlite3_close(db_);
    throw error;
  }
  sqlite3_busy_timeout(db_, 2000);
}

Database::~Database() {
  sqlite3_close_v2(db_);
}

void Database::run(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) {
    throw SqliteError(code, std::string("the database refused: ") + sqlite3_errmsg(db_));
  }
}

std::int64_t Database::integer(const char* sql) {
  Statement statement(db_, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const char* sql) {
  Statement statement(db_, sql);
  return statement.step() ? statement.text(0) : std::string();
}

void Database::keep_journal(bool keep) {
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 1 : 0, nullptr);
}

bool Database::in_transaction() const {
  return sqlite3_get_autocommit(db_) == 0;
}

}  // namespace dtrain::head
