#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>

#include "agent/head/store/sqlite.hpp"
#include "agent/head/store/store.hpp"
#include "tests/agent/head/store/sample_rows.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using dtrain::testing::TemporaryFolder;

namespace {

// Collects what a store says of its commits.
class Outcomes {
 public:
  std::function<void(std::exception_ptr)> next(const std::string& name) {
    return [this, name](std::exception_ptr failure) {
      const std::lock_guard lock(mutex_);
      told_.emplace_back(name, failure != nullptr);
      wake_.notify_all();
    };
  }
  std::vector<std::pair<std::string, bool>> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(
        wake_.wait_for(lock, dtrain::testing::kPatience, [&] { return told_.size() >= count; }));
    return told_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::pair<std::string, bool>> told_;
};

Changes one_job(const std::string& id) {
  Changes changes;
  changes.jobs.push_back(sample_job(id));
  return changes;
}

const std::string kLoss = R"({"loss":1.0})";
const std::string kAccuracy = R"({"accuracy":1.0})";

// What a store with room for 100 rows keeps of 1000 that come one after the other.
std::vector<MetricsRow> kept_of_1000(const std::function<void(MetricsRow&)>& fill) {
  const TemporaryFolder folder;
  const auto store = open_store({.path = folder / "head.db", .metrics_limit = 100});
  Outcomes outcomes;
  for (std::uint64_t i = 1; i <= 1000; i += 10) {
    Changes changes;
    for (std::uint64_t seq = i; seq < i + 10; ++seq) {
      MetricsRow& row = changes.metrics.emplace_back();
      row.job = JobId("a");
      row.seq = seq;
      row.step = static_cast<std::int64_t>(seq);
      row.time = from_millis(row.step);
      fill(row);
    }
    store->commit(changes, Urgency::now, OnFailure::retry, outcomes.next("m"));
  }
  outcomes.wait(100);
  return store->metrics(JobId("a"));
}

}  // namespace

TEST_CASE("every row comes back as it went") {
  const TemporaryFolder folder;
  const Changes changes = sample_changes();
  {
    const auto store = open_store({.path = folder / "head.db"});
    Outcomes outcomes;
    store->commit(changes, Urgency::now, OnFailure::retry, outcomes.next("1"));
    CHECK_FALSE(outcomes.wait(1)[0].second);
  }
  const auto store = open_store({.path = folder / "head.db"});
  const Loaded all = store->load();
  CHECK(all.jobs == changes.jobs);
  CHECK(all.attempts == changes.attempts);
  CHECK(all.shares == changes.shares);
  CHECK(all.ranks == changes.ranks);
  CHECK(all.nodes == changes.nodes);
  CHECK(all.checkpoints == changes.checkpoints);
  CHECK(all.searches == changes.searches);
  CHECK(store->search_records(changes.searches[0].id) == changes.search_records);
  CHECK(all.last_event == 41);
  CHECK(store->events(JobId("a")) == changes.events);
  CHECK(store->metrics(JobId("a")) == changes.metrics);
}

TEST_CASE("on shared storage: no memory beside the file, one at a time, and the next finds all") {
  const TemporaryFolder folder;
  const StoreOptions options{.path = folder / "head.db", .shared = true};
  const Changes changes = sample_changes();
  Outcomes outcomes;
  auto store = open_store(options);
  store->commit(changes, Urgency::now, OnFailure::retry, outcomes.next("1"));
  CHECK_FALSE(outcomes.wait(1)[0].second);
  CHECK(store->events(JobId("a")) == changes.events);
  CHECK(store->metrics(JobId("a")) == changes.metrics);
  CHECK_FALSE(fs::exists(folder / "head.db-shm"));
  CHECK_THROWS_WITH(open_store(options), doctest::Contains("locked"));
  // As another machine would find it after this one died: with a log that nobody has closed.
  const fs::path other = folder / "other";
  fs::create_directory(other);
  for (const char* name : {"head.db", "head.db-wal"}) fs::copy(folder / name, other / name);
  CHECK(open_store({.path = other / "head.db", .shared = true})->load().jobs == changes.jobs);
  store.reset();
  CHECK(open_store(options)->load().jobs == changes.jobs);
}

TEST_CASE("a lazy commit goes with the next urgent one, in order, and is seen before") {
  const TemporaryFolder folder;
  const auto store =
      open_store({.path = folder / "head.db", .soon = std::chrono::milliseconds(3600 * 1000)});
  Outcomes outcomes;
  Changes lazy;
  lazy.events.push_back(
      {1, JobId("a"), 1, from_millis(1), EventKind::message, EventLevel::info, "one"});
  store->commit(lazy, Urgency::soon, OnFailure::retry, outcomes.next("lazy"));
  CHECK(store->events(JobId("a")) == lazy.events);
  store->commit(one_job("a"), Urgency::now, OnFailure::retry, outcomes.next("now"));
  const auto told = outcomes.wait(2);
  CHECK(told[0].first == "lazy");
  CHECK(told[1].first == "now");
  CHECK(store->events(JobId("a")) == lazy.events);
}

TEST_CASE("a search's records are kept by number, seen before they are written, and go with it") {
  const TemporaryFolder folder;
  const auto store =
      open_store({.path = folder / "head.db", .soon = std::chrono::milliseconds(3600 * 1000)});
  const SearchId id("wide-abcdef");
  const auto record = [&](std::int64_t seq, std::int64_t iteration) {
    SearchRecord made;
    made.search = id;
    made.seq = seq;
    made.kind = SearchRecord::Kind::reported;
    made.iteration = iteration;
    return made;
  };
  Outcomes outcomes;
  Changes changes = sample_changes();
  changes.search_records = {record(1, 1), record(2, 0), record(1, 2)};
  store->commit(changes, Urgency::now, OnFailure::retry, outcomes.next("1"));
  outcomes.wait(1);
  CHECK(store->search_records(id) == std::vector{record(1, 2), record(2, 0)});
  Changes later;
  later.search_records = {record(3, 0), record(1, 5)};
  store->commit(later, Urgency::soon, OnFailure::retry, outcomes.next("2"));
  CHECK(store->search_records(id) == std::vector{record(1, 5), record(2, 0), record(3, 0)});
  CHECK(store->search_records(SearchId("other-abcdef")).empty());
  Changes gone;
  gone.searches_forgotten.push_back(id);
  store->commit(gone, Urgency::now, OnFailure::retry, outcomes.next("3"));
  outcomes.wait(3);
  CHECK(store->search_records(id).empty());
  CHECK(store->load().searches.empty());
}

TEST_CASE("a lazy commit is not left lying") {
  const TemporaryFolder folder;
  const auto store = open_store({.path = folder / "head.db", .soon = std::chrono::milliseconds(5)});
  Outcomes outcomes;
  store->commit(one_job("a"), Urgency::soon, OnFailure::retry, outcomes.next("lazy"));
  outcomes.wait(1);
}

TEST_CASE("one refused commit does not take its neighbours along") {
  const TemporaryFolder folder;
  const auto store = open_store({.path = folder / "head.db"});
  Outcomes outcomes;
  Changes twice = one_job("b");
  twice.jobs[0].submission_id = "sub-a";  // which is another job's
  store->commit(one_job("a"), Urgency::soon, OnFailure::refuse, outcomes.next("a"));
  store->commit(twice, Urgency::soon, OnFailure::refuse, outcomes.next("b"));
  store->commit(one_job("c"), Urgency::now, OnFailure::refuse, outcomes.next("c"));
  const auto told = outcomes.wait(3);
  CHECK_FALSE(told[0].second);
  CHECK(told[1].second);
  CHECK_FALSE(told[2].second);
  CHECK(store->load().jobs.size() == 2);
}

TEST_CASE("a full disk refuses what may be refused, and the store goes on") {
  const TemporaryFolder folder;
  Outcomes outcomes;
  const auto store = open_store({.path = folder / "head.db", .max_pages = 60});
  Changes large = one_job("large");
  large.jobs[0].spec = std::string(std::size_t{2} << 20, 'x');
  store->commit(large, Urgency::now, OnFailure::refuse, outcomes.next("large"));
  CHECK(outcomes.wait(1)[0].second);
  store->commit(one_job("small"), Urgency::now, OnFailure::refuse, outcomes.next("small"));
  CHECK_FALSE(outcomes.wait(2)[1].second);
  CHECK(store->trouble().empty());
  CHECK(store->load().jobs.size() == 1);
  // What has happened is tried again until there is space, and says why it waits.
  store->commit(large, Urgency::now, OnFailure::retry, outcomes.next("must"));
  store->commit(one_job("later"), Urgency::now, OnFailure::refuse, outcomes.next("later"));
  const auto told = outcomes.wait(3);
  CHECK(told[2].first == "later");
  CHECK_FALSE(store->trouble().empty());
}

TEST_CASE("metrics are thinned out, the newest kept") {
  const auto steps = [](const std::vector<MetricsRow>& rows) {
    REQUIRE(rows.size() <= 100);
    REQUIRE(rows.size() >= 50);
    CHECK(rows.back().step == 1000);
    CHECK(rows.front().step < 300);
  };
  SUBCASE("of one curve") {
    steps(kept_of_1000([](MetricsRow& row) { row.metrics = "{}"; }));
  }
  SUBCASE("of two that take turns") {
    const auto rows =
        kept_of_1000([](MetricsRow& row) { row.metrics = row.seq % 2 == 0 ? kAccuracy : kLoss; });
    steps(rows);
    CHECK(std::ranges::count(rows, kAccuracy, &MetricsRow::metrics) >= 25);
    CHECK(std::ranges::count(rows, kLoss, &MetricsRow::metrics) >= 25);
  }
  SUBCASE("one of few points stays whole") {
    const auto rows =
        kept_of_1000([](MetricsRow& row) { row.metrics = row.seq % 100 == 0 ? kAccuracy : kLoss; });
    steps(rows);
    CHECK(std::ranges::count(rows, kAccuracy, &MetricsRow::metrics) == 10);
  }
  SUBCASE("each row of other names") {
    steps(kept_of_1000(
        [](MetricsRow& row) { row.metrics = "{\"m" + std::to_string(row.seq) + "\":1}"; }));
  }
  SUBCASE("rank 0 keeps its own among many ranks") {
    const auto rows = kept_of_1000([](MetricsRow& row) {
      row.rank = static_cast<int>(row.seq % 20);
      row.metrics = kLoss;
    });
    CHECK(rows.size() <= 100);
    CHECK(std::ranges::count(rows, 0, &MetricsRow::rank) >= 25);
    for (int rank = 1; rank < 20; ++rank)
      CHECK(std::ranges::count(rows, rank, &MetricsRow::rank) >= 1);
  }
}

TEST_CASE("a removed job leaves nothing") {
  const TemporaryFolder folder;
  const auto store = open_store({.path = folder / "head.db"});
  Outcomes outcomes;
  Changes changes = one_job("a");
  changes.events.push_back({1, JobId("a"), 1, {}, EventKind::message, EventLevel::info, "x"});
  changes.metrics.push_back({JobId("a"), 1, 0, 1, 1, {}, "{}"});
  store->commit(changes, Urgency::now, OnFailure::retry, outcomes.next("in"));
  Changes removal;
  removal.jobs_forgotten.push_back({JobId("a"), from_millis(9), ""});
  store->commit(removal, Urgency::now, OnFailure::retry, outcomes.next("out"));
  outcomes.wait(2);
  CHECK(store->load().jobs.empty());
  CHECK(store->events(JobId("a")).empty());
  CHECK(store->metrics(JobId("a")).empty());
}

TEST_CASE("databases that are not ours to open") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  SUBCASE("not a database") {
    std::ofstream(path) << std::string(8192, 'x');
    CHECK_THROWS_WITH_AS(open_store({.path = path}), doctest::Contains("damaged"), Error);
  }
  SUBCASE("somebody else's database") {
    {
      Database database(path);
      database.run("CREATE TABLE other (x)");
    }
    CHECK_THROWS_WITH_AS(open_store({.path = path}), doctest::Contains("not one of dtrain's"),
                         Error);
  }
  SUBCASE("private to this user") {
    { const auto store = open_store({.path = path}); }
    CHECK((fs::status(path).permissions() & fs::perms::mask) ==
          (fs::perms::owner_read | fs::perms::owner_write));
  }
}
