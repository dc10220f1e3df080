#include "agent/head/store/store.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "agent/head/store/schema.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::head {
namespace {

constexpr std::chrono::milliseconds kRetryAfter{1000};
constexpr std::uintmax_t kCheckWholeBelow = std::uintmax_t{32} << 20;  // bytes of the database

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
  }

  ~SqliteStore() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Loaded load() override {
    const std::lock_guard turn(only_one_);
    return read_all(*reader_);
  }

  void commit(Changes changes, Urgency urgency, OnFailure on_failure,
              std::function<void(std::exception_ptr)> done) override {
    {
      const std::lock_guard lock(mutex_);
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

  std::string trouble() const override {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }

 private:
  void open() {
    try {
      database_ = std::make_shared<Database>(options_.path);
      // Before its first use, so that SQLite needs no memory beside the file.
      if (options_.shared) database_->run("PRAGMA locking_mode = EXCLUSIVE");
      database_->run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
      if (fs::file_size(options_.path) < kCheckWholeBelow) {
        const std::string found = database_->text("PRAGMA quick_check(1)");
        if (found != "ok") throw SqliteError(11 /* SQLITE_CORRUPT */, found);
      }
      prepare_schema(*database_, options_.path);
      if (options_.max_pages > 0) {
        database_->run(("PRAGMA max_page_count = " + std::to_string(options_.max_pages)).c_str());
      }
      writer_ = std::make_unique<Writer>(*database_);
      if (options_.shared) {
        reader_ = database_;
        return;
      }
      reader_ = std::make_shared<Database>(options_.path);
      reader_->run("PRAGMA query_only = 1");
    } catch (SqliteError& error) {
      if (error.may_pass()) throw;
      throw Error(ErrorCode::io, "the head's database is damaged: " + error.message())
          .with_hint("move " + options_.path.string() +
                     " away to start with an empty one; checkpoints and logs stay where they are");
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
    std::vector<Row> rows;
    {
      const std::lock_guard turn(only_one_);
      rows = read(*reader_, job);
    }
    for (const Row& row : rows) pending.erase(key(row));
    for (auto& [unused, row] : pending) rows.push_back(std::move(row));
    return rows;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wait(lock);
      if (queue_.empty()) {
        if (ending_) return;
        continue;
      }
      std::swap(writing_, queue_);
      tried_ = arrived_;
      lock.unlock();
      std::vector<std::exception_ptr> outcomes;
      const std::string trouble = write(outcomes);
      lock.lock();
      settle(lock, outcomes, trouble);
      if (ending_ && !trouble_.empty()) {
        log::error("the head ends with changes that could not be written", {{"why", trouble_}});
        return;
      }
    }
  }

  void wait(std::unique_lock<std::mutex>& lock) {
    while (!ending_) {
      if (!trouble_.empty()) {
        wake_.wait_for(lock, kRetryAfter, [&] { return ending_ || arrived_ != tried_; });
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

  // Writes `writing_` as one transaction. Gives for each commit its error; the text is empty when
  // all that is durable was made so, else why it must be tried again.
  std::string write(std::vector<std::exception_ptr>& outcomes) {
    outcomes.assign(writing_.size(), nullptr);
    std::unique_lock turn(only_one_, std::defer_lock);
    if (reader_ == database_) turn.lock();
    try {
      database_->run("BEGIN IMMEDIATE");
      for (std::size_t i = 0; i < writing_.size(); ++i) {
        database_->run("SAVEPOINT one");
        try {
          writer_->write(writing_[i].changes);
          bound_metrics(writing_[i].changes);
        } catch (const SqliteError& error) {
          // A full disk may have rolled all of it back already.
          if (!database_->in_transaction()) throw;
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
      database_->run("COMMIT");
      return {};
    } catch (const SqliteError& error) {
      metrics_.clear();
      outcomes.assign(writing_.size(), std::current_exception());
      roll_back();
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
    queue_.insert(queue_.begin(), std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
    lock.unlock();
    for (const auto& [done, outcome] : told) done(outcome);
    lock.lock();
  }

  StoreOptions options_;
  std::shared_ptr<Database> database_;    // the store's thread only, once it runs
  std::unique_ptr<Writer> writer_;        // the same
  std::map<JobId, std::size_t> metrics_;  // rows per job, as far as counted; the same
  std::shared_ptr<Database> reader_;      // of load(), events() and metrics()
  std::mutex only_one_;                   // uses the database, where both are the same

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_;
  std::deque<Queued> writing_;  // changed under the mutex; read by the store's thread without
  std::uint64_t arrived_ = 0;
  std::uint64_t tried_ = 0;
  std::string trouble_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Store> open_store(StoreOptions options) {
  return std::make_unique<SqliteStore>(std::move(options));
}

}  // namespace dtrain::head
