#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <future>
#include <mutex>

#include "agent/head/store/copies.hpp"
#include "agent/head/store/journal.hpp"
#include "agent/head/store/store.hpp"
#include "tests/agent/head/store/sample_rows.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using dtrain::testing::TemporaryFolder;

// What the database's disk may do to it, and what is there afterwards.
namespace {

constexpr int kJobs = 150;

std::string job_name(int number) {
  return "job-" + std::to_string(number);
}

// A job as a head writes one: its rows belong together.
Changes whole_job(const std::string& id, std::int64_t event, const std::string& spec = "{}") {
  Changes changes;
  JobRow job = sample_job(id);
  job.spec = spec;
  job.attempt = 0;
  job.state = JobState::queued;
  changes.jobs.push_back(job);
  changes.events.push_back(
      {event, JobId(id), 0, from_millis(event), EventKind::state, EventLevel::info, "queued"});
  return changes;
}

// A search with so many records.
Changes whole_search(const std::string& id, std::int64_t records) {
  Changes changes;
  SearchRow search;
  search.id = SearchId(id);
  search.spec = "{}";
  changes.searches.push_back(search);
  for (std::int64_t seq = 1; seq <= records; ++seq) {
    SearchRecord& record = changes.search_records.emplace_back();
    record.search = search.id;
    record.seq = seq;
  }
  return changes;
}

void commit(Store& store, const Changes& changes) {
  std::promise<std::exception_ptr> written;
  store.commit(changes, Urgency::now, OnFailure::retry,
               [&](std::exception_ptr failure) { written.set_value(failure); });
  REQUIRE(written.get_future().get() == nullptr);
}

void copy_now(Store& store) {
  std::promise<std::exception_ptr> made;
  store.make_copy([&](std::exception_ptr failure) { made.set_value(failure); });
  REQUIRE(made.get_future().get() == nullptr);
}

std::set<std::string> names(const std::vector<JobRow>& jobs) {
  std::set<std::string> all;
  for (const JobRow& job : jobs) all.insert(job.id.str());
  return all;
}

// The files of a head that was killed: 150 jobs and a search, then a copy, then the job `later`,
// the search `late`, and more records of the one before.
class Killed {
 public:
  Killed() {
    const fs::path path = made_ / "head.db";
    {
      const auto store = open_store({.path = path});
      for (int i = 0; i < kJobs; ++i) {
        Changes changes = whole_job(job_name(i), i + 1);
        for (std::uint64_t seq = 1; seq < 20; ++seq) {
          changes.metrics.push_back({JobId(job_name(i)), 1, 0, seq, 1, from_millis(1), "{}"});
        }
        store->commit(changes, Urgency::soon, OnFailure::retry, nullptr);
      }
      commit(*store, whole_search("wide", 2));
      commit(*store, whole_job("last-before", kJobs + 1));
      copy_now(*store);
    }
    const auto store = open_store({.path = path});
    commit(*store, whole_search("wide", 5));
    commit(*store, whole_search("late", 1));
    commit(*store, whole_job("later", kJobs + 2));
    // As they lie on the disk now.
    for (const auto& entry : fs::directory_iterator(made_ / ".")) {
      if (!entry.path().filename().string().ends_with("-shm")) {
        fs::copy_file(entry.path(), files_ / entry.path().filename().string());
      }
    }
  }

  // Fresh ones, each time, in a folder that is emptied before.
  fs::path lay(const TemporaryFolder& folder) const {
    for (const auto& entry : fs::directory_iterator(folder / ".")) remove_tree(entry.path());
    for (const auto& entry : fs::directory_iterator(files_ / ".")) {
      fs::copy_file(entry.path(), folder / entry.path().filename().string());
    }
    return folder / "head.db";
  }

 private:
  TemporaryFolder made_;
  TemporaryFolder files_;
};

const Killed& killed() {
  static const Killed files;
  return files;
}

void flip(const fs::path& file, std::uintmax_t at, std::size_t bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(stream);
  stream.seekp(static_cast<std::streamoff>(at));
  stream << std::string(bytes, '\xa5');
}

std::string content(const fs::path& file) {
  return read_file(file);
}

// What is there in any case; `later` only by what was read from the damaged one.
Loaded open_again(const fs::path& path) {
  const Loaded all = open_store({.path = path})->load();
  const std::set<std::string> found = names(all.jobs);
  for (int i = 0; i < kJobs; ++i) CHECK(found.contains(job_name(i)));
  CHECK(found.contains("last-before"));
  CHECK((found.contains("later") || all.restored.has_value()));
  return all;
}

class Damage {
 public:
  std::function<void(const std::string&)> hook() {
    return [this](const std::string& why) {
      const std::lock_guard lock(mutex_);
      why_ = why;
      wake_.notify_all();
    };
  }
  std::string wait() {
    std::unique_lock lock(mutex_);
    REQUIRE(wake_.wait_for(lock, dtrain::testing::kPatience, [&] { return !why_.empty(); }));
    return why_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string why_;
};

// Another process that opens the database when it is told to, reads it and closes it. It is made
// before this one opens it: what SQLite knows of open files does not bear a fork.
class Onlooker {
 public:
  explicit Onlooker(const fs::path& database) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd told(ends[0]);
    tell_ = UniqueFd(ends[1]);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    tell_.reset();
    char word = 0;
    bool has_seen = false;
    if (::read(told.get(), &word, 1) == 1) {
      try {
        has_seen = Database(database).integer("SELECT count(*) FROM jobs") > 0;
      } catch (const std::exception&) {
        has_seen = false;
      }
    }
    ::_exit(has_seen ? 0 : 1);
  }
  ~Onlooker() {
    if (pid_ > 0) (void)end();
  }
  Onlooker(const Onlooker&) = delete;
  Onlooker& operator=(const Onlooker&) = delete;

  // Gives whether it has seen jobs, once it has ended.
  bool looks() {
    write_all(tell_.get(), "x");
    return end() == 0;
  }

 private:
  int end() {
    tell_.reset();
    int status = -1;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

  UniqueFd tell_;
  pid_t pid_ = -1;
};

constexpr int kLargeJobs = 1000;

// A database and its copy of 4 MB, twice what SQLite keeps in memory, so that what is on the disk
// is read again; made once.
fs::path lay_large(const TemporaryFolder& folder) {
  static const TemporaryFolder made;
  static const bool filled = [] {
    const auto store = open_store({.path = made / "head.db"});
    const std::string spec = "{\"x\":\"" + std::string(3000, 'x') + "\"}";
    for (int i = 0; i < kLargeJobs; ++i) {
      store->commit(whole_job(job_name(i), i + 1, spec), Urgency::soon, OnFailure::retry, nullptr);
    }
    commit(*store, whole_job("last-before", kLargeJobs + 1));
    copy_now(*store);
    return true;
  }();
  REQUIRE(filled);
  for (const fs::path& file : entries_of(made.path())) {
    fs::copy_file(file, folder / file.filename().string());
  }
  return folder / "head.db";
}

// A disk of its own, where this user may have one.
class Disk {
 public:
  Disk() : there_(::geteuid() == 0 && remount(0)) {}
  ~Disk() {
    if (there_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  bool there() const { return there_; }
  bool remount(unsigned long flags) {
    return ::mount("disk", folder_.path().c_str(), "tmpfs", flags, "size=4m") == 0;
  }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  bool there_;
};

}  // namespace

TEST_CASE("a disk without room for a copy has none, and is not filled by trying") {
  const Disk disk;
  if (!disk.there()) {
    MESSAGE("skipped: no disk can be mounted");
    return;
  }
  const fs::path path = disk / "head.db";
  const auto store = open_store({.path = path});
  const std::string spec = "{\"x\":\"" + std::string(1000000, 'x') + "\"}";
  commit(*store, whole_job("a", 1, spec));
  std::ofstream(disk / "other") << std::string(1500000, 'x');
  std::promise<std::exception_ptr> made;
  store->make_copy([&](std::exception_ptr failure) { made.set_value(failure); });
  CHECK(made.get_future().get() != nullptr);
  CHECK(store->copy().trouble.find("free") != std::string::npos);
  CHECK_FALSE(fs::exists(path.string() + ".backup.tmp"));
  commit(*store, whole_job("b", 2));  // it goes on
}

TEST_CASE("a disk that can only be read is not the database's damage") {
  Disk disk;
  if (!disk.there()) {
    MESSAGE("skipped: no disk can be mounted");
    return;
  }
  const fs::path path = disk / "head.db";
  commit(*open_store({.path = path}), whole_job("a", 1));
  const std::string before = content(path);
  REQUIRE(disk.remount(MS_REMOUNT | MS_RDONLY));
  CHECK_THROWS_WITH_AS(open_store({.path = path}), doctest::Contains("ead-only file system"),
                       Error);
  REQUIRE(disk.remount(MS_REMOUNT));
  CHECK(content(path) == before);
  const Loaded all = open_store({.path = path})->load();
  CHECK_FALSE(all.restored);
  CHECK(all.jobs.size() == 1);
}

TEST_CASE("a copy is whole, of this user alone, and leaves the one before") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  const auto store = open_store({.path = path});
  commit(*store, whole_job("a", 1));
  copy_now(*store);
  const std::string first = content(copy_of(path));
  CHECK(store->copy().path == folder / "head.db.backup");
  CHECK(store->copy().time);
  CHECK(store->copy().trouble.empty());
  CHECK_FALSE(store->copy().behind);
  commit(*store, whole_job("b", 2));
  CHECK(store->copy().behind);
  copy_now(*store);
  CHECK(content(older_copy_of(path)) == first);
  CHECK((fs::status(copy_of(path)).permissions() & fs::perms::mask) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  Database copy(copy_of(path), true);
  CHECK(check_whole(copy).jobs.size() == 2);
  CHECK_FALSE(fs::exists(journal_of(copy_of(path))));
  CHECK_FALSE(fs::exists(path.string() + ".backup.tmp"));
}

TEST_CASE("a copy comes by itself after a change, and without one it does not") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  const auto store = open_store({.path = path, .copy_after = std::chrono::milliseconds(1)});
  const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  const auto settled = [&] {
    while (store->copy().behind || !store->copy().time) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      std::this_thread::yield();
    }
    return *store->copy().time;
  };
  settled();
  commit(*store, whole_job("a", 1));
  const WallTime with_it = settled();
  Database copy(copy_of(path), true);
  CHECK(copy.integer("SELECT count(*) FROM jobs") == 1);
  CHECK(store->copy().time == with_it);
}

TEST_CASE("commits go on while a copy is made, and it has all of its last moment") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  for (const bool shared : {false, true}) {
    const auto store = open_store({.path = path, .shared = shared});
    std::promise<std::exception_ptr> made;
    const int first = shared ? 1000 : 0;
    for (int i = 0; i < 200; ++i) {
      if (i == 50) store->make_copy([&](std::exception_ptr failure) { made.set_value(failure); });
      commit(*store, whole_job(job_name(first + i), first + i + 1));
    }
    REQUIRE(made.get_future().get() == nullptr);
    copy_now(*store);
    Database copy(copy_of(path), true);
    CHECK(check_whole(copy).jobs.size() == (shared ? 400 : 200));
  }
}

TEST_CASE("a database that was killed opens as it was") {
  const TemporaryFolder folder;
  const Loaded all = open_again(killed().lay(folder));
  CHECK_FALSE(all.restored);
  CHECK(names(all.jobs).contains("later"));
}

TEST_CASE("numbers of events that a killed head may have told are not used again") {
  const TemporaryFolder folder;
  const TemporaryFolder again;
  const fs::path path = killed().lay(folder);
  std::int64_t last = 0;
  {
    const auto store = open_store({.path = path});
    last = store->load().last_event;
    CHECK(last > kJobs + 2 + 10000);
    // It is killed too before it has written any.
    for (const auto& entry : fs::directory_iterator(folder / ".")) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with("-shm")) fs::copy_file(entry.path(), again / name);
    }
  }
  CHECK(open_store({.path = again / "head.db"})->load().last_event > last + 10000);
  // Closed in order, it had written all that it told.
  CHECK(open_store({.path = path})->load().last_event == last);
}

TEST_CASE("each page damaged: what is acknowledged is there, or it is said what is not") {
  const TemporaryFolder folder;
  const std::uintmax_t pages = fs::file_size(killed().lay(folder)) / 4096;
  REQUIRE(pages > 30);
  int restored = 0;
  for (std::uintmax_t page = 0; page < pages; ++page) {
    for (const std::size_t bytes : {std::size_t{96}, std::size_t{4096}}) {  // a part, or all of it
      const std::uintmax_t at = bytes < 4096 ? 2000 : 0;
      CAPTURE(page);
      CAPTURE(at);
      const fs::path path = killed().lay(folder);
      flip(path, page * 4096 + at, bytes);
      const Loaded all = open_again(path);
      if (!all.restored) continue;
      ++restored;
      CHECK(fs::exists(all.restored->damaged));
      CHECK(fs::exists(journal_of(all.restored->damaged)));
      CHECK(all.last_event >= RestoredRow::kEventsUnknown);
      CHECK(all.restored->open.size() == all.jobs.size());
    }
  }
  CHECK(restored > 30);
}

TEST_CASE("what becomes of the file and of its log") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  const fs::path journal = journal_of(path);
  bool saved = true;  // `later` can be read from what is left
  SUBCASE("cut off") {
    fs::resize_file(path, fs::file_size(path) / 2);
    saved = false;
  }
  SUBCASE("empty") {
    fs::resize_file(path, 0);
    saved = false;
  }
  SUBCASE("another file's content") {
    std::ofstream(path) << std::string(8192, 'x');
    saved = false;
  }
  SUBCASE("not there") {
    fs::remove(path);
    saved = false;
  }
  SUBCASE("neither is there") {
    fs::remove(path);
    fs::remove(journal);
    saved = false;
  }
  SUBCASE("the log is not there") {
    fs::remove(journal);
    saved = false;
  }
  SUBCASE("the log is empty") {
    fs::resize_file(journal, 0);
    saved = false;
  }
  SUBCASE("the log has lost its beginning") {
    flip(journal, 0, 32);
    saved = false;
  }
  SUBCASE("the log is damaged") {
    flip(journal, 100, 8);
    saved = false;
  }
  const Loaded all = open_again(path);
  REQUIRE(all.restored);
  CHECK(names(all.jobs).contains("later") == saved);
  CHECK_FALSE(all.restored->why.empty());
  CHECK(all.restored->copied > from_millis(1));
  // The next time it is an ordinary one, which still knows.
  const Loaded next = open_again(path);
  CHECK(next.restored == all.restored);
}

TEST_CASE("what the damaged one still has of later jobs is taken over") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  Database(path).run("PRAGMA wal_checkpoint(TRUNCATE)");  // and no log is left of it
  const Loaded all = open_again(path);
  REQUIRE(all.restored);
  CHECK(all.restored->salvaged == 1);
  CHECK(names(all.jobs).contains("later"));
  const auto store = open_store({.path = path});
  CHECK(store->events(JobId("later")).size() == 1);
  CHECK(all.searches.size() == 2);
  CHECK(store->search_records(SearchId("wide")).size() == 5);
  CHECK(store->search_records(SearchId("late")).size() == 1);
}

TEST_CASE("what is taken over stays in the order in which it came") {
  const TemporaryFolder made;
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  {
    const auto store = open_store({.path = made / "head.db"});
    commit(*store, whole_job("b", 1));
    commit(*store, whole_job("a", 2));
    commit(*store, whole_search("t", 1));
    commit(*store, whole_search("s", 1));
    copy_now(*store);
    commit(*store, whole_job("b", 3));
    commit(*store, whole_job("z", 4));
    commit(*store, whole_job("c", 5));
    commit(*store, whole_search("t", 2));
    for (const auto& entry : fs::directory_iterator(made / ".")) {
      if (entry.path().filename().string().ends_with("-shm")) continue;
      fs::copy_file(entry.path(), folder / entry.path().filename().string());
    }
  }
  Database(path).run("PRAGMA wal_checkpoint(TRUNCATE)");  // and no log is left of it
  const Loaded all = open_store({.path = path})->load();
  REQUIRE(all.restored);
  CHECK(all.restored->salvaged == 3);
  std::string order;
  for (const JobRow& job : all.jobs) order += job.id.str();
  for (const SearchRow& search : all.searches) order += search.id.str();
  CHECK(order == "bazcts");
}

TEST_CASE("a job that was removed before the copy does not come back from an older state") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  const std::string older = content(path);
  {
    const auto store = open_store({.path = path});
    Changes removal;
    removal.jobs_forgotten.push_back({JobId(job_name(3)), from_millis(9), ""});
    removal.jobs_forgotten.push_back({JobId("late"), from_millis(9), ""});
    removal.searches_forgotten.emplace_back("late");
    commit(*store, removal);
    copy_now(*store);
  }
  // What is left of the database is of before; its log is not there.
  std::ofstream(path, std::ios::binary) << older;
  const Loaded all = open_store({.path = path})->load();
  REQUIRE(all.restored);
  CHECK_FALSE(names(all.jobs).contains(job_name(3)));
  CHECK(all.forgotten.size() == 2);
  CHECK(all.jobs.size() == kJobs + 1);
  CHECK(all.searches.size() == 1);
}

TEST_CASE("a torn last commit of a power cut is no damage") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  {
    Database database(path);
    database.keep_journal(true);
    database.run("UPDATE meta SET value = 'another boot' WHERE key = 'open'");
  }
  const std::uintmax_t size = fs::file_size(journal_of(path));
  {
    Database database(path);
    database.keep_journal(true);
    database.run("UPDATE jobs SET reason = 'never acknowledged'");
  }
  flip(journal_of(path), size + 200, 8);  // its first frame
  CHECK(read_journal(journal_of(path)).behind == 1);
  const Loaded all = open_again(path);
  CHECK_FALSE(all.restored);
  CHECK(all.jobs.front().reason == "because");
}

TEST_CASE("a damaged copy is passed over for the one before; without a whole one nothing is done") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  REQUIRE(fs::exists(older_copy_of(path)));
  fs::copy_file(copy_of(path), older_copy_of(path), fs::copy_options::overwrite_existing);
  fs::resize_file(path, 0);
  SUBCASE("the older one") {
    flip(copy_of(path), 4096, 4096);
    CHECK(open_again(path).restored);
  }
  SUBCASE("the newer one is not there") {
    fs::remove(copy_of(path));
    CHECK(open_again(path).restored);
  }
  SUBCASE("the newer one is of a newer dtrain") {
    Database(copy_of(path)).run("PRAGMA user_version = 999");
    CHECK(open_again(path).restored);
  }
  SUBCASE("both are of a newer dtrain") {
    Database(copy_of(path)).run("PRAGMA user_version = 999");
    Database(older_copy_of(path)).run("PRAGMA user_version = 999");
    CHECK_THROWS_WITH_AS(
        open_store({.path = path}),
        doctest::Contains("head.db.backup.1 is of no use: the database was written"), Error);
    CHECK(fs::file_size(path) == 0);
  }
  SUBCASE("none") {
    flip(copy_of(path), 4096, 4096);
    std::ofstream(older_copy_of(path)) << "garbage";
    const std::string before = content(copy_of(path)) + content(journal_of(path));
    try {
      open_store({.path = path});
      FAIL("it opened");
    } catch (const Error& error) {
      CHECK(error.message().find("head.db.backup is damaged too") != std::string::npos);
      CHECK(error.message().find("head.db.backup.1 is damaged too") != std::string::npos);
      CHECK(error.hint().find("move " + path.string() + "* away") != std::string::npos);
    }
    CHECK(fs::file_size(path) == 0);
    CHECK(content(copy_of(path)) + content(journal_of(path)) == before);
    CHECK_FALSE(fs::exists(path.string() + ".restoring"));
  }
}

TEST_CASE("a copy of an older dtrain is brought up to date") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  fs::copy_file(fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/database/v1.db", copy_of(path));
  std::ofstream(path) << std::string(8192, 'x');
  const Loaded all = open_store({.path = path})->load();
  CHECK(names(all.jobs) == std::set<std::string>{"a"});
  REQUIRE(all.restored);
  CHECK(all.restored->open == std::set<JobId>{JobId("a")});
}

TEST_CASE("what a damaged database of an older dtrain still has of later jobs is taken over") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  const fs::path golden = fs::path(DTRAIN_SOURCE_ROOT) / "tests/golden/database/v1.db";
  fs::copy_file(golden, copy_of(path));
  fs::copy_file(golden, path);
  // Its log, of another boot, is damaged behind the job.
  std::uintmax_t good = 0;
  std::int64_t page = 0;
  bool saved = true;
  {
    Database database(path);
    database.keep_journal(true);
    database.run(
        "PRAGMA journal_mode = WAL; BEGIN; CREATE TEMP TABLE job AS SELECT * FROM jobs; "
        "UPDATE job SET job = 'later', submission_id = NULL, attempt = 0; INSERT INTO jobs SELECT "
        "* FROM job; "
        "INSERT INTO events SELECT 1000 + event, 'later', attempt, time, kind, level, message "
        "FROM events LIMIT 1; INSERT INTO meta VALUES ('open', 'another boot'); COMMIT");
    good = fs::file_size(journal_of(path));
    for (int i = 0; i < 3; ++i) database.run("UPDATE jobs SET reason = reason || 'x'");
    page = database.integer("SELECT rootpage FROM sqlite_master WHERE name = 'nodes'");
  }
  flip(journal_of(path), good + 100, 8);
  SUBCASE("as far as it goes") {}
  SUBCASE("but not where a step finds damage too") {
    flip(path, static_cast<std::uintmax_t>(page - 1) * 4096, 4096);
    saved = false;
  }
  const std::string before = content(path);
  const std::string log = content(journal_of(path));
  const Loaded all = open_store({.path = path})->load();
  REQUIRE(all.restored);
  CHECK(names(all.jobs).contains("a"));
  CHECK(names(all.jobs).contains("later") == saved);
  CHECK(all.restored->salvaged == (saved ? 1 : 0));
  CHECK(content(all.restored->damaged) == before);
  CHECK(content(journal_of(all.restored->damaged)) == log);
  for (const auto& entry : fs::directory_iterator(folder / ".")) {
    CHECK(entry.path().string().find("salvaging") == std::string::npos);
  }
}

TEST_CASE("a head that was killed before its first tables were there begins anew") {
  const TemporaryFolder folder;
  const fs::path path = folder / "head.db";
  {
    Database database(path);
    database.keep_journal(true);
    database.run("PRAGMA journal_mode = WAL; CREATE TABLE half (x); DROP TABLE half");
  }
  REQUIRE(read_journal(journal_of(path)).begins);
  const Loaded all = open_store({.path = path})->load();
  CHECK(all.jobs.empty());
  CHECK_FALSE(all.restored);
}

TEST_CASE("a copy that somebody puts in place is known to be one") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  const std::string log = content(journal_of(path));
  fs::copy_file(copy_of(path), path, fs::copy_options::overwrite_existing);
  SUBCASE("without the log of what was there") {
    fs::remove(journal_of(path));
  }
  SUBCASE("beside it, which is not the copy's") {}
  const Loaded all = open_again(path);
  REQUIRE(all.restored);
  CHECK(all.restored->damaged.empty());
  CHECK_FALSE(names(all.jobs).contains("later"));
  for (const auto& entry : fs::directory_iterator(folder / ".")) {
    if (entry.path().string().find("damaged") == std::string::npos) continue;
    CHECK(content(entry.path()) == log);
  }
}

TEST_CASE("a database that was closed in order is moved by its one file") {
  const TemporaryFolder from;
  const TemporaryFolder to;
  const fs::path path = killed().lay(from);
  open_again(path);
  CHECK_FALSE(fs::exists(journal_of(path)));
  fs::copy_file(path, to / "head.db");
  const Loaded all = open_again(to / "head.db");
  CHECK_FALSE(all.restored);
  CHECK(names(all.jobs).contains("later"));
}

TEST_CASE("a file that vanishes under a running head: nobody is told, and nothing is lost") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  {
    Damage damage;
    const auto store = open_store({.path = path, .on_damage = damage.hook()});
    SUBCASE("removed") {
      fs::remove(path);
    }
    SUBCASE("replaced") {
      std::ofstream(folder / "other") << "not a database";
      fs::rename(folder / "other", path);
    }
    SUBCASE("its log removed") {
      fs::remove(journal_of(path));
    }
    store->commit(whole_job("told-nobody", 9000), Urgency::now, OnFailure::refuse,
                  [](std::exception_ptr) { FAIL("somebody was told"); });
    CHECK(damage.wait().find("removed") != std::string::npos);
    CHECK_FALSE(store->trouble().empty());
  }
  const Loaded all = open_again(path);
  CHECK(all.restored);
  CHECK(names(all.jobs).contains("later"));
  CHECK(names(all.jobs).contains("told-nobody"));
}

TEST_CASE("another program that looks at the database takes nothing from a running head") {
  const TemporaryFolder folder;
  const fs::path path = killed().lay(folder);
  Onlooker onlooker(path);
  std::promise<std::string> outcome;  // of the commit: written, or the damage that was found
  const auto store = open_store(
      {.path = path, .on_damage = [&](const std::string& why) { outcome.set_value(why); }});
  CHECK(onlooker.looks());
  CHECK(fs::exists(journal_of(path)));
  store->commit(
      whole_job("after", 9000), Urgency::now, OnFailure::retry,
      [&](std::exception_ptr failure) { outcome.set_value(failure ? "refused" : "written"); });
  CHECK(outcome.get_future().get() == "written");
  CHECK(store->trouble().empty());
  CHECK(names(store->load().jobs).contains("after"));
}

TEST_CASE("pages that are damaged under a running head") {
  const TemporaryFolder folder;
  const fs::path path = lay_large(folder);
  const std::string good = content(copy_of(path));
  {
    Damage damage;
    const auto store = open_store({.path = path, .on_damage = damage.hook()});
    const std::uintmax_t size = fs::file_size(path);
    for (std::uintmax_t at = 4096 * 20; at < size; at += 4096) flip(path, at, 64);
    SUBCASE("found by a commit") {
      Changes changes;
      for (int i = 0; i < kLargeJobs; i += 10) changes.jobs.push_back(sample_job(job_name(i)));
      store->commit(changes, Urgency::now, OnFailure::retry,
                    [](std::exception_ptr) { FAIL("somebody was told"); });
    }
    SUBCASE("found by a reader") {
      (void)store->load();  // what was read when it was opened
      CHECK_THROWS_AS((void)store->load(), Error);
    }
    SUBCASE("found by a copy, which is not kept") {
      store->make_copy([](std::exception_ptr failure) { CHECK(failure); });
    }
    damage.wait();
  }
  CHECK(content(copy_of(path)) == good);
  CHECK_FALSE(fs::exists(path.string() + ".backup.tmp"));
  const Loaded all = open_store({.path = path})->load();
  CHECK(all.restored);
  CHECK(all.jobs.size() == kLargeJobs + 1);
}
