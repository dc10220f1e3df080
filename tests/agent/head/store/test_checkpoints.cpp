#include <doctest/doctest.h>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/agent/head/store/sample_checkpoint.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::model_at;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace {

ShardReport report(const fs::path& path, std::int64_t step, int shard = 0, int shards = 1) {
  ShardReport task;
  task.job = JobId("job-aaaaaa");
  task.attempt = 1;
  task.step = step;
  task.shard = shard;
  task.shards = shards;
  task.path = path;
  return task;
}

CommitRequest request(std::int64_t step, int shards = 1) {
  CommitRequest commit;
  commit.job = JobId("job-aaaaaa");
  commit.step = step;
  commit.shards = shards;
  commit.metrics = {{"acc", 0.5}};
  commit.created = from_millis(1767323045678);
  return commit;
}

}  // namespace

TEST_CASE("a folder from elsewhere becomes a committed checkpoint") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  clear_temporary(storage, 1);
  const fs::path source = model_at(folder / "mine");
  ShardReport task = report(source, 7);
  SUBCASE("moved") {}
  SUBCASE("copied") {
    task.keep = true;
  }
  place_shard(storage, task, {storage});
  CHECK(fs::exists(source) == task.keep);
  const CommittedCheckpoint done = commit_checkpoint(storage, request(7));
  CHECK(done.number == 0);
  CHECK(done.path == storage / "checkpoints" / "checkpoint_000000");
  CHECK(done.size == 9);
  const Manifest manifest = read_manifest(done.path);
  REQUIRE(manifest.files.size() == 2);
  CHECK(manifest.files[1].path == "shard-00000-of-00001/model.safetensors");
  CHECK(manifest.files[1].sha256 == sum_file(done.path / manifest.files[1].path).sha256);
  verify_sums(done.path, manifest.files);
  const auto json = nlohmann::json::parse(read_file(done.path / "manifest.json"));
  CHECK(json.at("format") == "dtrain-checkpoint");
  CHECK(json.at("job") == "job-aaaaaa");
  CHECK(json.at("created") == "2026-01-02T03:04:05.678Z");
  CHECK(fs::is_empty(storage / "checkpoints" / ".tmp"));
}

TEST_CASE("shards that the writer put in place are verified, not hashed") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  clear_temporary(storage, 1);
  for (int shard = 0; shard < 2; ++shard) {
    const fs::path place = temporary_folder(storage, 1, 5) / shard_name(shard, 2);
    write(place / "m", "12345");
    const std::string sum(64, 'a');
    write(place / "shard.json",
          nlohmann::json{{"format", "dtrain-shard"},
                         {"version", 1},
                         {"shard", shard},
                         {"shards", 2},
                         {"step", 5},
                         {"files", {{{"path", "m"}, {"size", 5}, {"sha256", sum}}}}}
              .dump());
    place_shard(storage, report(place, 5, shard, 2), {storage});
  }
  SUBCASE("whole") {
    CHECK(commit_checkpoint(storage, request(5, 2)).size == 10);
    CHECK(scan_storage(storage).whole.size() == 1);
  }
  SUBCASE("a file of another size") {
    write(temporary_folder(storage, 1, 5) / shard_name(1, 2) / "m", "123");
    CHECK_THROWS_WITH_AS(commit_checkpoint(storage, request(5, 2)),
                         doctest::Contains("has 3 bytes, not 5"), Error);
  }
  SUBCASE("a file too many") {
    write(temporary_folder(storage, 1, 5) / shard_name(1, 2) / "n", "");
    CHECK_THROWS_WITH_AS(commit_checkpoint(storage, request(5, 2)),
                         doctest::Contains("not in the list"), Error);
  }
  SUBCASE("a shard too few") {
    remove_tree(temporary_folder(storage, 1, 5) / shard_name(1, 2));
    CHECK_THROWS_AS(commit_checkpoint(storage, request(5, 2)), Error);
  }
  SUBCASE("something else beside them") {
    write(temporary_folder(storage, 1, 5) / "other", "");
    CHECK_THROWS_WITH_AS(commit_checkpoint(storage, request(5, 2)),
                         doctest::Contains("does not belong"), Error);
  }
}

TEST_CASE("hostile paths are refused, and stay where they are") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "home" / "storage";
  clear_temporary(storage, 1);
  const auto refused = [&](const fs::path& path, const char* why) {
    CHECK_THROWS_WITH_AS(place_shard(storage, report(path, 1), {storage, folder / "work"}),
                         doctest::Contains(why), Error);
  };
  refused(folder / "home", "lies in it");
  refused(folder / "home" / "x" / "..", "lies in it");
  refused("/", "");
  refused("relative", "must be absolute");
  refused(folder / "missing", "No such file");
  write(folder / "file", "x");
  refused(folder / "file", "is not a folder");
  model_at(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "link");
  refused(folder / "link", "is not a folder");
  refused(folder / "work", "");
  model_at(folder / "work");
  refused(folder / "work", "lies in it");
  model_at(folder / "with-link");
  fs::create_symlink("/etc/passwd", folder / "with-link" / "passwd");
  refused(folder / "with-link", "is a symbolic link");
  CHECK(fs::exists(folder / "with-link" / "model.safetensors"));
  fs::create_directory(folder / "empty");
  refused(folder / "empty", "is empty");
  place_shard(storage, report(model_at(folder / "good"), 1), {storage});
  const fs::path committed = commit_checkpoint(storage, request(1)).path;
  refused(committed, "committed checkpoints");
}

TEST_CASE("a newest checkpoint that is not whole is passed over") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  clear_temporary(storage, 1);
  for (int i = 0; i < 3; ++i) {
    place_shard(storage, report(model_at(folder / "m"), i), {});
    CHECK(commit_checkpoint(storage, request(i)).number == i);
  }
  write(checkpoint_folder(storage, 2) / shard_name(0, 1) / "model.safetensors", "short");
  fs::remove(checkpoint_folder(storage, 1) / "manifest.json");
  fs::create_directory(checkpoints_folder(storage) / "checkpoint_abc");
  const StorageScan scan = scan_storage(storage);
  REQUIRE(scan.whole.size() == 1);
  CHECK(scan.whole[0].step == 0);
  CHECK(scan.broken.size() == 2);
  CHECK(scan.highest == 2);
  // What is known is not read.
  const StorageScan others = scan_storage(storage, {0, 1});
  CHECK(others.whole.empty());
  CHECK(others.broken.size() == 1);
  CHECK(others.highest == 2);
  remove_checkpoint(storage, 1);
  remove_checkpoint(storage, 1);
  CHECK_FALSE(fs::exists(checkpoint_folder(storage, 1)));
}

TEST_CASE("an attempt clears what older ones left") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  write(storage / "checkpoints" / ".tmp" / "attempt-1-step-4" / "x", "");
  write(storage / "checkpoints" / ".tmp" / "attempt-2-step-4" / "x", "");
  clear_temporary(storage, 2);
  CHECK_FALSE(fs::exists(storage / "checkpoints" / ".tmp" / "attempt-1-step-4"));
  CHECK(fs::exists(storage / "checkpoints" / ".tmp" / "attempt-2-step-4"));
}
