#include "agent/head/store/store.hpp"

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "agent/head/store/copies.hpp"
#include "agent/head/store/journal.hpp"
#include "agent/head/store/schema.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"

namespace dtrain::head {
namespace {

constexpr std::chrono::milliseconds kRetryAfter{1000};
constexpr std::int64_t kEventsUnwritten = 20000;  // more than are told within options.soon
// Bytes of a database that is checked though it was closed in order. 50 MB, of 10,000 jobs, take
// 0.2 s; one that was not closed is checked whatever its size.
constexpr std::uintmax_t kCheckedBelow = std::uintmax_t{32} << 20;

struct Queued {
  Changes changes;
  Urgency urgency = Urgency::now;
  OnFailure on_failure = OnFailure::retry;
  std::function<void(std::exception_ptr)> done;
  std::chrono::steady_clock::time_point since;
};

class SqliteStore final : public Store {
 public:
  explicit SqliteStore(StoreOptions options) : options_(std::move(options)) {
    while_doing("opening " + options_.path.string(), [&] { open(); });
    thread_ = std::thread([this] { serve(); });
    copier_ = std::thread([this] { serve_copies(); });
  }

  ~SqliteStore() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    copy_wake_.notify_all();
    thread_.join();
    copier_.join();
    close();
  }

  Loaded load() override {
    {
      const std::lock_guard lock(mutex_);
      if (loaded_) return *std::exchange(loaded_, std::nullopt);
    }
    return reading([&] { return read_all(*reader_); });
  }

  void commit(Changes changes, Urgency urgency, OnFailure on_failure,
              std::function<void(std::exception_ptr)> done) override {
    {
      const std::lock_guard lock(mutex_);
      loaded_.reset();
      queue_.push_back({std::move(changes), urgency, on_failure, std::move(done),
                        std::chrono::steady_clock::now()});
      ++arrived_;
    }
    wake_.notify_all();
  }

  std::vector<EventRow> events(const JobId& job) override {
    return merged(read_events, job, &Changes::events, [](const EventRow& row) { return row.id; });
  }

  std::vector<MetricsRow> metrics(const JobId& job) override {
    return merged(read_metrics, job, &Changes::metrics,
                  [](const MetricsRow& row) { return std::tuple(row.attempt, row.rank, row.seq); });
  }

  std::vector<SearchRecord> search_records(const SearchId& search) override {
    std::map<std::int64_t, SearchRecord> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto* list : {&writing_, &queue_}) {
        for (const Queued& queued : *list) {
          for (const SearchRecord& record : queued.changes.search_records) {
            if (record.search == search) all.insert_or_assign(record.seq, record);
          }
        }
      }
    }
    std::vector<SearchRecord> written =
        reading([&] { return read_search_records(*reader_, search); });
    if (all.empty()) return written;
    for (SearchRecord& record : written) {
      const auto [at, is_new] = all.emplace(record.seq, record);
      // Of two with one number the later one is further.
      if (!is_new && record.iteration > at->second.iteration) at->second = std::move(record);
    }
    std::vector<SearchRecord> records;
    for (auto& [seq, record] : all) records.push_back(std::move(record));
    return records;
  }

  std::string trouble() const override {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }

  Copy copy() const override {
    const std::lock_guard lock(mutex_);
    Copy copy = copy_;
    copy.behind = copy.behind || copy_runs_;
    return copy;
  }

  void make_copy(std::function<void(std::exception_ptr)> done) override {
    {
      const std::lock_guard lock(mutex_);
      copy_asked_.push_back(std::move(done));
    }
    copy_wake_.notify_all();
  }

 private:
  void open() {
    std::string why = open_whole();
    if (why.empty()) return;
    close();
    restore(options_.path, why);
    why = open_whole();
    if (why.empty()) return;
    close();
    throw Error(ErrorCode::io, "the head's database is damaged again: " + why);
  }

  // Gives what is wrong with it, with the files as they were; empty: nothing is, and it is open.
  std::string open_whole() {
    const fs::path& path = options_.path;
    const bool was_there = has_copy(path) || fs::exists(journal_of(path));
    if (was_there && !fs::exists(path)) return "it is not there";
    if (was_there && fs::file_size(path) == 0) return "it is empty";
    part_from_journal(path);
    try {
      const Journal journal = read_journal(journal_of(path));
      database_ = std::make_shared<Database>(path);
      database_->keep_journal(true);
      // Before its first use, so that SQLite needs no memory beside the file.
      if (options_.shared) database_->run("PRAGMA locking_mode = EXCLUSIVE");
      database_->run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
      const bool has_tables = database_->integer("PRAGMA user_version") > 0;
      // One whose first head was killed before it had any, has none, and no copy.
      if (!has_tables && has_copy(path)) return "it holds nothing";
      const std::string open_in = has_tables ? open_since(*database_) : "";
      if (!open_in.empty()) {
        if (!journal.begins) {
          return "its log " + journal_of(path).filename().string() +
                 " is not there, or has lost its beginning";
        }
        // A power cut may have torn the last commit, of which nobody has been told.
        if (journal.behind > (open_in == boot_id() ? 0 : 1)) {
          return "its log is damaged, with " + std::to_string(journal.behind) +
                 " commits behind the damage";
        }
      }
      if (!open_in.empty() || fs::file_size(path) < kCheckedBelow) {
        std::string found = database_->text(open_in.empty() ? "PRAGMA quick_check(1)"
                                                            : "PRAGMA integrity_check(1)");
        if (found != "ok") return found;
      }
      prepare_schema(*database_, path);
      loaded_ = check_rows(*database_);
      if (note_if_copy(*database_)) loaded_ = read_all(*database_);
      if (!open_in.empty()) pass_unwritten_events();
      mark_open();
      if (options_.max_pages > 0) {
        database_->run(("PRAGMA max_page_count = " + std::to_string(options_.max_pages)).c_str());
      }
      writer_ = std::make_unique<Writer>(*database_);
      copy_.path = copy_of(path);
      copy_.time = time_of_copy(path);
      reader_ = database_;
      if (!options_.shared) {
        reader_ = std::make_shared<Database>(path);
        reader_->run("PRAGMA query_only = 1");
      }
      file_ = FileOf(path);
      journal_ = FileOf(journal_of(path));
      database_->keep_journal(false);
      is_open_ = true;
      return {};
    } catch (const SqliteError& error) {
      if (error.may_pass()) throw;
      return error.message();
    }
  }

  // Events of Urgency::soon are told before they are written: those of a head that was killed may
  // stand in no row, and who was told them goes by their numbers.
  void pass_unwritten_events() {
    loaded_->last_event += kEventsUnwritten;
    try {
      set_last_event(*database_, loaded_->last_event);
    } catch (const SqliteError& error) {
      if (!error.may_pass()) throw;
      log::warn("the number of the next event is not noted", {{"why", error.what()}});
    }
  }

  // From here on the log has a whole beginning until the database is closed, and in it no end of
  // a commit that failed: whoever opens it after this process was killed can tell one that is
  // damaged or missing. Without room it goes on unmarked.
  void mark_open() {
    try {
      set_open(*database_, "");
      database_->run("PRAGMA wal_checkpoint(RESTART)");
      set_open(*database_, boot_id());
      database_->run("PRAGMA wal_checkpoint(FULL)");  // the mark stands in the file itself
    } catch (const SqliteError& error) {
      if (!error.may_pass()) throw;
      log::warn("the database is not marked as open", {{"why", error.what()}});
    }
  }

  void close() {
    reader_.reset();
    writer_.reset();
    if (database_ && !damage_.empty()) database_->keep_journal(true);
    if (is_open_ && damage_.empty()) {
      try {
        set_open(*database_, "");
      } catch (const SqliteError& error) {
        log::warn("the database is not marked as closed", {{"why", error.what()}});
      }
    }
    database_.reset();
  }

  // Nothing more is written, and nobody is told anything.
  void damaged(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (!damage_.empty()) return;
      damage_ = trouble_ = why;
    }
    log::error("the database is damaged: the head ends, and begins with what can be restored",
               {{"why", why}});
    wake_.notify_all();
    copy_wake_.notify_all();
    if (options_.on_damage) options_.on_damage(why);
  }

  template <typename Read>
  std::invoke_result_t<Read> reading(Read read) {
    const std::lock_guard turn(only_one_);
    try {
      return read();
    } catch (const SqliteError& error) {
      if (error.is_damage()) damaged(error.message());
      throw;
    }
  }

  // Called by the reader. What is queued or being written is looked at before the
  // database is, so that nothing is missed; what is found twice is dropped.
  template <typename Row, typename Key>
  std::vector<Row> merged(std::vector<Row> (*read)(Database&, const JobId&), const JobId& job,
                          std::vector<Row> Changes::*member, Key key) {
    std::map<decltype(key(std::declval<Row>())), Row> pending;
    {
      const std::lock_guard lock(mutex_);
      for (const auto* list : {&writing_, &queue_}) {
        for (const Queued& queued : *list) {
          for (const Row& row : queued.changes.*member) {
            if (row.job == job) pending.emplace(key(row), row);
          }
        }
      }
    }
    std::vector<Row> rows = reading([&] { return read(*reader_, job); });
    for (const Row& row : rows) pending.erase(key(row));
    for (auto& [unused, row] : pending) rows.push_back(std::move(row));
    return rows;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wait(lock);
      if (!damage_.empty()) return;
      if (queue_.empty()) {
        if (ending_) return;
        continue;
      }
      std::swap(writing_, queue_);
      tried_ = arrived_;
      lock.unlock();
      std::vector<std::exception_ptr> outcomes;
      std::string trouble;
      const std::string damage = write(outcomes, trouble);
      if (!damage.empty()) {
        damaged(damage);
        return;
      }
      lock.lock();
      settle(lock, outcomes, trouble);
      if (ending_ && !trouble_.empty()) {
        log::error("the head ends with changes that could not be written", {{"why", trouble_}});
        return;
      }
    }
  }

  void wait(std::unique_lock<std::mutex>& lock) {
    while (!ending_ && damage_.empty()) {
      if (!trouble_.empty()) {
        wake_.wait_for(lock, kRetryAfter,
                       [&] { return ending_ || arrived_ != tried_ || !damage_.empty(); });
        return;
      }
      if (queue_.empty()) {
        wake_.wait(lock);
        continue;
      }
      for (const Queued& queued : queue_) {
        if (queued.urgency == Urgency::now) return;
      }
      const auto until = queue_.front().since + options_.soon;
      if (std::chrono::steady_clock::now() >= until) return;
      wake_.wait_until(lock, until);
    }
  }

  // Nobody else uses the connection meanwhile.
  struct Turn {
    explicit Turn(SqliteStore& store) : write_lock(store.writing_turn_) {
      if (store.reader_ == store.database_) read_lock = std::unique_lock(store.only_one_);
    }
    std::unique_lock<std::mutex> write_lock;
    std::unique_lock<std::mutex> read_lock;
  };

  // Writes `writing_` as one transaction. Gives the damage that is found, or nothing. `outcomes`
  // has for each commit its error; `trouble` is empty when all that is durable was made so, else
  // why it must be tried again.
  std::string write(std::vector<std::exception_ptr>& outcomes, std::string& trouble) {
    outcomes.assign(writing_.size(), nullptr);
    try {
      const Turn turn(*this);
      trouble = write_all(outcomes);
    } catch (const SqliteError& error) {
      return error.message();
    }
    for (const auto& [file, name] :
         {std::pair(file_, options_.path), std::pair(journal_, journal_of(options_.path))}) {
      if (!file.is_gone(name)) continue;
      save_what_is_open();
      return name.string() + " was removed, or another file was put in its place";
    }
    return {};
  }

  // The file has no name any more, and is whole: the next head begins with a copy of it.
  void save_what_is_open() {
    try {
      copy_now([] { return false; });
      // Beside a file that somebody has put there it would be taken for that one's log.
      if (!journal_.is_gone(journal_of(options_.path))) fs::remove(journal_of(options_.path));
    } catch (const std::exception& error) {
      log::error("what the database held cannot be saved", {{"why", error.what()}});
    }
  }

  // Throws what is_damage().
  std::string write_all(std::vector<std::exception_ptr>& outcomes) {
    try {
      database_->run("BEGIN IMMEDIATE");
      for (std::size_t i = 0; i < writing_.size(); ++i) {
        database_->run("SAVEPOINT one");
        try {
          writer_->write(writing_[i].changes);
          bound_metrics(writing_[i].changes);
        } catch (const SqliteError& error) {
          // A full disk may have rolled all of it back already.
          if (!database_->in_transaction() || error.is_damage()) throw;
          if (error.may_pass() && writing_[i].on_failure == OnFailure::retry) throw;
          if (!error.may_pass()) {
            log::error("a change was refused by the database", {{"why", error.what()}});
          }
          outcomes[i] = std::current_exception();
          metrics_.clear();
          database_->run("ROLLBACK TO one");
        }
        database_->run("RELEASE one");
      }
      failpoint("store.commit.before");
      database_->run("COMMIT");
      failpoint("store.commit.after");
      // What a commit that failed has left in the log is not to be taken for a lost one.
      if (std::exchange(failed_before_, false)) {
        database_->run("PRAGMA wal_checkpoint(RESTART)");
      }
      return {};
    } catch (const SqliteError& error) {
      metrics_.clear();
      outcomes.assign(writing_.size(), std::current_exception());
      failed_before_ = true;
      roll_back();
      if (error.is_damage()) throw;
      return error.message();
    }
  }

  void roll_back() {
    try {
      if (database_->in_transaction()) database_->run("ROLLBACK");
    } catch (const SqliteError& error) {
      log::warn("rolling back failed", {{"why", error.what()}});
    }
  }

  void bound_metrics(const Changes& changes) {
    for (const ForgottenRow& row : changes.jobs_forgotten) metrics_.erase(row.job);
    std::map<JobId, std::size_t> added;
    for (const MetricsRow& row : changes.metrics) ++added[row.job];
    for (const auto& [job, count] : added) {
      const auto found = metrics_.find(job);
      const std::size_t rows = found == metrics_.end()
                                   ? static_cast<std::size_t>(writer_->count_metrics(job))
                                   : found->second + count;
      metrics_[job] = rows;
      if (rows <= options_.metrics_limit) continue;
      writer_->thin_metrics(job);
      metrics_[job] = static_cast<std::size_t>(writer_->count_metrics(job));
    }
  }

  // Tells who waits, and puts back what must be tried again, in its order.
  void settle(std::unique_lock<std::mutex>& lock, const std::vector<std::exception_ptr>& outcomes,
              const std::string& trouble) {
    if (trouble != trouble_ && !trouble.empty()) {
      log::error("the database cannot be written; trying again", {{"why", trouble}});
    }
    trouble_ = trouble;
    std::deque<Queued> again;
    std::vector<std::pair<std::function<void(std::exception_ptr)>, std::exception_ptr>> told;
    for (std::size_t i = 0; i < writing_.size(); ++i) {
      if (!trouble.empty() && writing_[i].on_failure == OnFailure::retry) {
        again.push_back(std::move(writing_[i]));
      } else if (writing_[i].done) {
        told.emplace_back(std::move(writing_[i].done), outcomes[i]);
      }
    }
    writing_.clear();
    if (again.empty()) trouble_.clear();
    if (trouble.empty() && !copy_.behind) {
      copy_.behind = true;
      copy_due_ = std::max(copy_due_, std::chrono::steady_clock::now() + options_.copy_after);
      copy_wake_.notify_all();
    }
    queue_.insert(queue_.begin(), std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
    lock.unlock();
    for (const auto& [done, outcome] : told) done(outcome);
    lock.lock();
  }

  // ---- Copies, on a thread of their own.

  void copy_now(const std::function<bool()>& stop) {
    const std::lock_guard one(copying_);
    const WithDatabase with = [this](const std::function<void(Database&)>& work) {
      const Turn turn(*this);
      work(*database_);
    };
    (void)head::make_copy(options_.path, with, stop);
  }

  void serve_copies() {
    std::unique_lock lock(mutex_);
    copy_.behind = true;  // of what was before, nobody knows
    if (copy_.time) copy_due_ = std::chrono::steady_clock::now() + options_.copy_after;
    while (true) {
      const auto over = [&] { return ending_ || !damage_.empty(); };
      while (!over() && copy_asked_.empty() &&
             (!copy_.behind || std::chrono::steady_clock::now() < copy_due_)) {
        copy_.behind ? void(copy_wake_.wait_until(lock, copy_due_)) : copy_wake_.wait(lock);
      }
      const auto asked = std::exchange(copy_asked_, {});
      std::exception_ptr failure;
      if (over()) {
        failure = std::make_exception_ptr(Error(ErrorCode::failed, "the store is closed"));
      } else {
        copy_.behind = false;  // what changes from here on may be in it, or not
        copy_runs_ = true;
        lock.unlock();
        failure = try_copy();
        lock.lock();
        copy_runs_ = false;
      }
      const bool ends = over();
      lock.unlock();
      for (const auto& done : asked) done(failure);
      if (ends) return;
      lock.lock();
    }
  }

  std::exception_ptr try_copy() {
    std::string trouble;
    std::exception_ptr failure;
    try {
      copy_now([this] {
        const std::lock_guard lock(mutex_);
        return ending_ || !damage_.empty();
      });
    } catch (const std::exception& error) {
      trouble = error.what();
      failure = std::current_exception();
      const auto* found = dynamic_cast<const SqliteError*>(&error);
      if (found != nullptr && found->is_damage()) look_for_damage();
    }
    const std::optional<WallTime> time = time_of_copy(options_.path);
    const std::lock_guard lock(mutex_);
    if (!trouble.empty() && trouble != copy_.trouble) {
      log::error("no copy of the database can be made", {{"why", trouble}});
    }
    copy_.time = time;
    copy_.trouble = trouble;
    copy_.behind = copy_.behind || !trouble.empty();
    copy_due_ = std::chrono::steady_clock::now() + options_.copy_after;
    return failure;
  }

  // A copy that is not whole is of a database that is not, or was not written as it was read.
  void look_for_damage() {
    try {
      reading([&] { return check_whole(*reader_); });
    } catch (const std::exception& error) {
      log::error("the database cannot be checked", {{"why", error.what()}});
    }
  }

  StoreOptions options_;
  bool is_open_ = false;
  std::optional<Loaded> loaded_;          // until it is asked for, or changed; under mutex_
  FileOf file_;                           // of the database, as it was opened
  FileOf journal_;                        // of its log
  std::shared_ptr<Database> database_;    // under writing_turn_, once the threads run
  std::unique_ptr<Writer> writer_;        // the same
  std::map<JobId, std::size_t> metrics_;  // rows per job, as far as counted; the same
  std::shared_ptr<Database> reader_;      // of load(), events() and metrics()
  std::mutex writing_turn_;               // uses database_
  std::mutex only_one_;                   // uses reader_; taken after writing_turn_
  std::mutex copying_;                    // makes a copy; taken before these

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_;
  std::deque<Queued> writing_;  // changed under the mutex; read by the store's thread without
  std::uint64_t arrived_ = 0;
  std::uint64_t tried_ = 0;
  std::string trouble_;
  std::string damage_;          // empty: none was found
  bool failed_before_ = false;  // the last write; the store's thread only
  bool ending_ = false;
  Copy copy_;
  bool copy_runs_ = false;
  std::chrono::steady_clock::time_point copy_due_;
  std::vector<std::function<void(std::exception_ptr)>> copy_asked_;
  std::condition_variable copy_wake_;
  std::thread thread_;
  std::thread copier_;
};

}  // namespace

std::string database_damage(const fs::path& path) {
  std::error_code none;
  if (fs::file_size(path, none) >= kCheckedBelow || none) return {};
  try {
    Database database(path, /*read_only=*/true);
    std::string found = database.text("PRAGMA quick_check(1)");
    return found == "ok" ? std::string() : found;
  } catch (const SqliteError& error) {
    return error.is_damage() ? error.message() : std::string();
  }
}

std::unique_ptr<Store> open_store(StoreOptions options) {
  return std::make_unique<SqliteStore>(std::move(options));
}

}  // namespace dtrain::head
