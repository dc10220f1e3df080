#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "agent/head/store/rows.hpp"
#include "launcher/core/files.hpp"

// Where the head keeps what it knows. A thread of the store's own writes and fsyncs; the engine's
// thread never waits for a disk, but for load() and events().
namespace dtrain::head {

enum class Urgency : std::uint8_t {
  now,
  soon,  // with the next urgent one, at the latest after StoreOptions::soon
};
enum class OnFailure : std::uint8_t {
  refuse,  // no space, say: `done` gets the error, and nothing of it was written
  retry,   // what happened has happened: tried again until it is on disk
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Loaded load() = 0;

  // In order: what was committed earlier is durable earlier or together, unless it was refused.
  // `done` is called on the store's thread once the changes are durable, with the Error if they
  // are refused. Never throws for the disk's sake.
  virtual void commit(Changes changes, Urgency urgency, OnFailure on_failure,
                      std::function<void(std::exception_ptr)> done) = 0;

  // What was committed so far, durable or not, oldest first; it may be long. One thread at a time,
  // which need not be that of load().
  virtual std::vector<EventRow> events(const JobId& job) = 0;
  virtual std::vector<MetricsRow> metrics(const JobId& job) = 0;
  virtual std::vector<SearchRecord> search_records(const SearchId& search) = 0;

  // Why the last write failed, while it is tried again; empty when all is well.
  virtual std::string trouble() const = 0;

  // The copy from which the database is restored if it is damaged (copies.hpp).
  struct Copy {
    fs::path path;
    std::optional<WallTime> time;  // of when it is; absent: there is none
    bool behind = false;           // something has changed since
    std::string trouble;           // why there is no newer one; empty: all is well
  };
  virtual Copy copy() const = 0;
  // Makes one now, or waits for one that is under way and makes another. `done` is called on a
  // thread of the store's, with the Error if there is none.
  virtual void make_copy(std::function<void(std::exception_ptr)> done) = 0;
};

struct StoreOptions {
  fs::path path;
  std::chrono::milliseconds soon{200};
  // Rows of metrics kept per job. Beyond it some are dropped (thinning.hpp): old history gets
  // coarser, the newest stays as fine as it came.
  std::size_t metrics_limit = 100000;
  int max_pages = 0;  // of the database file; 0: SQLite's limit
  // A copy is made so long after the first change that the last one does not have; at once where
  // there is none, and again so long after one that could not be made.
  std::chrono::milliseconds copy_after{std::chrono::minutes(5)};
  // The database is damaged, or its file is no longer there: nothing more is written and nobody is
  // told anything, since what was told might not be found again. The process is to end; the next
  // one that opens the store restores it. Called once, on a thread of the store's.
  std::function<void(const std::string& why)> on_damage = {};
  // On storage that other machines have too: nothing of it is in memory that processes share, which
  // has no meaning there, and it is locked while it is open; another's lock is waited for shortly.
  bool shared = false;
};

// SQLite in WAL mode with synchronous=FULL: what was committed is in the log on the disk, or at the
// server of a network's file system, and whoever opens it next, from wherever, finds it.
// Neighbouring commits become one transaction, so one fsync. Opens or makes the file; one that is
// damaged, or is not there though there is a copy of it, is restored from that (Loaded::restored).
// Throws Error: invalid for one of a newer dtrain, io for one that is damaged when no copy is
// whole, each with what to do.
std::unique_ptr<Store> open_store(StoreOptions options);

// What SQLite finds wrong with a database while another has it open, by a quick look at all of it.
// Empty: nothing, or it is so large that this would take long, or cannot be looked at now.
std::string database_damage(const fs::path& path);

}  // namespace dtrain::head
