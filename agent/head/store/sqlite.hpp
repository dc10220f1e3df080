#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

struct sqlite3;
struct sqlite3_stmt;

// A thin, typed wrapper of SQLite. One thread at a time uses a connection. Everything throws
// SqliteError.
namespace dtrain::head {

class SqliteError : public Error {
 public:
  SqliteError(int code, const std::string& message);
  // The disk's fault, and may pass: no space, a failed write, a lock held by another.
  bool may_pass() const noexcept;
  // What is in the file cannot be, and will not pass.
  bool is_damage() const noexcept;

 private:
  int code_;
};

class Statement {
 public:
  Statement(sqlite3* db, const char* sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Binds all parameters in order, runs to the end and is ready to run again.
  template <typename... Values>
  void run(const Values&... values) {
    bind_all(values...);
    run_bound();
  }
  // Binds, then step() gives row after row.
  template <typename... Values>
  Statement& query(const Values&... values) {
    bind_all(values...);
    return *this;
  }
  bool step();  // false: no more rows, and the statement is reset

  std::int64_t integer(int column);
  double real(int column);
  std::string text(int column);
  bool null(int column);

 private:
  template <typename... Values>
  void bind_all(const Values&... values) {
    reset();
    int index = 0;
    (bind(++index, values), ...);
  }
  template <std::integral Integer>
  void bind(int index, Integer value) {
    bind_integer(index, static_cast<std::int64_t>(value));
  }
  void bind(int index, double value);
  void bind(int index, std::string_view value);
  template <typename Value>
  void bind(int index, const std::optional<Value>& value) {
    if (value) {
      bind(index, *value);
    } else {
      bind_null(index);
    }
  }
  void bind_integer(int index, std::int64_t value);
  void bind_null(int index);
  void reset() noexcept;
  void run_bound();
  void check(int code) const;

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

class Database {
 public:
  // Opens or makes the file, 0600.
  explicit Database(const fs::path& path, bool read_only = false);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void run(const char* sql);  // one or more statements, results dropped
  std::int64_t integer(const char* sql);
  std::string text(const char* sql);
  bool in_transaction() const;
  // While it is kept, closing the file neither writes the log back into it nor removes it.
  void keep_journal(bool keep);
  sqlite3* handle() const noexcept { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

}  // namespace dtrain::head
