#pragma once

#include <memory>

#include "agent/head/store/rows.hpp"
#include "agent/head/store/sqlite.hpp"

// The tables of the head's database, and rows in and out of them. On the thread of the connection.
namespace dtrain::head {

// Makes the tables in an empty database, or brings an older one up to date (migrations.hpp, with
// what it throws). Error(invalid) for one that is not dtrain's.
void prepare_schema(Database& database, const fs::path& file);

// Writes rows of one connection, with prepared statements.
class Writer {
 public:
  explicit Writer(Database& database);
  ~Writer();
  void write(const Changes& changes);
  std::int64_t count_metrics(const JobId& job);
  // Drops rows, as thinning.hpp says.
  void thin_metrics(const JobId& job);
  // All rows of the job are these, and no others. It keeps its place among those that are there.
  void replace_job(const JobId& id, const Changes& rows);
  void replace_search(const SearchId& id, const Changes& rows);

 private:
  struct Statements;
  std::unique_ptr<Statements> statements_;
};

Loaded read_all(Database& database);
std::vector<EventRow> read_events(Database& database, const JobId& job);
std::vector<MetricsRow> read_metrics(Database& database, const JobId& job);
std::vector<SearchRecord> read_search_records(Database& database, const SearchId& search);

// No event after this one has been told to anybody: the newest that is written, or what was set.
std::int64_t last_event(Database& database);
void set_last_event(Database& database, std::int64_t event);

// Of the boot in which it was opened, while a head has it open; empty: it was closed in order.
void set_open(Database& database, const std::string& boot);
std::string open_since(Database& database);

// Out of a damaged database: the jobs that can be found, from either end of their table.
std::vector<JobId> readable_jobs(Database& database);
std::vector<SearchId> readable_searches(Database& database);
// All rows of a job, events in their order; none of one that is not there.
Changes read_job(Database& database, const JobId& id);
Changes read_search(Database& database, const SearchId& id);  // with its records
// Throws Error when these are not all rows of one job, as far as that can be seen.
void check_job(const Changes& rows);
void check_search(const Changes& rows);

}  // namespace dtrain::head
