#include "trainer/checkpoint/store.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

namespace {

void write_shard(const fs::path& storage, std::int64_t step, int shard = 0, int shards = 1) {
  ShardWriter writer(storage, 1, step, shard, shards);
  FileSink a = writer.create("weights.bin");
  a.write(std::string_view("weights"));
  writer.close(a);
  FileSink b = writer.create("more/state.json");
  b.write(std::string_view("{}"));
  writer.close(b);
  writer.finish();
}

fs::path commit(const fs::path& storage, std::int64_t step, Metrics metrics = {}, int shards = 1) {
  for (int shard = 0; shard < shards; ++shard) write_shard(storage, step, shard, shards);
  return commit_checkpoint(storage, {.job = "",
                                     .attempt = 1,
                                     .step = step,
                                     .world_size = 2,
                                     .shards = shards,
                                     .metrics = std::move(metrics)});
}

std::string commit_refusal(const fs::path& storage, std::int64_t step, int shards = 1) {
  return message_of<Error>(
      [&] { commit_checkpoint(storage, {.step = step, .shards = shards, .metrics = {}}); });
}

struct Warnings {
  std::vector<std::string> list;
  Warn sink() {
    return [this](const std::string& message) { list.push_back(message); };
  }
};

}  // namespace

TEST_CASE("a checkpoint is committed as the page says") {
  const TemporaryFolder storage;
  const fs::path folder =
      commit(storage.path(), 470, {{"accuracy", 0.9}, {"worst", std::nan("")}}, 2);
  CHECK(folder == storage / "checkpoints/checkpoint_000000");
  CHECK_FALSE(fs::exists(temporary_folder(storage.path(), 1, 470)));
  const auto shard = nlohmann::json::parse(read_file(folder / "shard-00001-of-00002/shard.json"));
  CHECK(shard["format"] == "dtrain-shard");
  CHECK(shard["version"] == 1);
  CHECK(shard["shard"] == 1);
  CHECK(shard["files"].size() == 2);
  const auto manifest = nlohmann::json::parse(read_file(folder / "manifest.json"));
  CHECK(manifest["format"] == "dtrain-checkpoint");
  CHECK(manifest["number"] == 0);
  CHECK(manifest["job"] == "");
  CHECK(manifest["world_size"] == 2);
  CHECK(manifest["metrics"]["worst"] == "nan");
  CHECK(manifest["files"].size() == 4);
  CHECK(manifest["files"][0]["path"] == "shard-00000-of-00002/weights.bin");
  CHECK(manifest["files"][0]["size"] == 7);
  const std::string created = manifest["created"];
  CHECK(created.size() == 24);
  CHECK(created.back() == 'Z');

  const Checkpoint back = open_checkpoint(folder);
  CHECK(back.manifest.step == 470);
  CHECK(std::isnan(back.manifest.metrics.at("worst")));
  verify_checkpoint(back);

  CHECK(commit(storage.path(), 480).filename() == "checkpoint_000001");
}

TEST_CASE("what is not whole is not committed") {
  const TemporaryFolder storage;
  const fs::path shard = temporary_folder(storage.path(), 1, 5) / "shard-00000-of-00001";
  CHECK(contains(commit_refusal(storage.path(), 5), "shard.json: No such file"));
  write_shard(storage.path(), 5);
  SUBCASE("a shard is missing") {
    CHECK(contains(commit_refusal(storage.path(), 5, 2), "shard-00000-of-00002/shard.json"));
  }
  SUBCASE("a file is missing") {
    fs::remove(shard / "weights.bin");
    CHECK(contains(commit_refusal(storage.path(), 5), "weights.bin: is missing"));
  }
  SUBCASE("a file has another size") {
    write_file(shard / "weights.bin", "weight");
    CHECK(contains(commit_refusal(storage.path(), 5), "has 6 bytes, its record says 7"));
  }
  SUBCASE("a file is a link") {
    fs::rename(shard / "weights.bin", storage / "elsewhere");
    fs::create_symlink(storage / "elsewhere", shard / "weights.bin");
    CHECK(contains(commit_refusal(storage.path(), 5), "not a regular file"));
  }
  SUBCASE("another file is there") {
    write_file(shard / "more/stray", "x");
    CHECK(contains(commit_refusal(storage.path(), 5), "stray: is not listed"));
  }
  SUBCASE("another folder is there") {
    write_file(shard.parent_path() / "other/x", "x");
    CHECK(contains(commit_refusal(storage.path(), 5), "other: is not a shard"));
  }
  CHECK_FALSE(fs::exists(storage / "checkpoints/checkpoint_000000"));
  Warnings warnings;
  CHECK_FALSE(newest_checkpoint(storage.path(), warnings.sink()).has_value());
}

TEST_CASE("a shard that is written again replaces what a crash left") {
  const TemporaryFolder storage;
  write_file(temporary_folder(storage.path(), 1, 5) / "shard-00000-of-00001/left_over", "x");
  CHECK_NOTHROW(commit(storage.path(), 5));
}

TEST_CASE("the newest whole checkpoint is taken, a broken one passed over with a warning") {
  const TemporaryFolder storage;
  Warnings warnings;
  CHECK_FALSE(newest_checkpoint(storage.path(), warnings.sink()).has_value());
  commit(storage.path(), 10);
  commit(storage.path(), 20);
  const fs::path third = commit(storage.path(), 30);
  fs::create_directories(storage / "checkpoints/checkpoint_7");  // not a name of ours
  fs::create_directories(storage / "checkpoints/checkpoint_000009.old");
  CHECK(newest_checkpoint(storage.path(), warnings.sink())->manifest.step == 30);
  CHECK(warnings.list.empty());

  const fs::path weights = third / "shard-00000-of-00001/weights.bin";
  SUBCASE("cut off") {
    write_file(weights, "wei");
  }
  SUBCASE("gone") {
    fs::remove(weights);
  }
  SUBCASE("manifest cut off") {
    const std::string text = read_file(third / "manifest.json");
    write_file(third / "manifest.json", text.substr(0, text.size() / 2));
  }
  SUBCASE("no manifest") {
    fs::remove(third / "manifest.json");
  }
  SUBCASE("a manifest that leads out of its folder") {
    std::string text = read_file(third / "manifest.json");
    const std::string path = "shard-00000-of-00001/weights.bin";
    text.replace(text.find(path), path.size(), "../../../../../../etc/passwd");
    write_file(third / "manifest.json", text);
  }
  SUBCASE("of a version to come") {
    std::string text = read_file(third / "manifest.json");
    text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
    write_file(third / "manifest.json", text);
  }
  CHECK(newest_checkpoint(storage.path(), warnings.sink())->manifest.step == 20);
  REQUIRE(warnings.list.size() == 1);
  CHECK(contains(warnings.list[0], "checkpoint_000002"));
  // Its number is not given again.
  CHECK(commit(storage.path(), 40).filename() == "checkpoint_000003");
}

TEST_CASE("what cannot be read is an error, and no reason to take another") {
  const TemporaryFolder storage;
  Warnings warnings;
  commit(storage.path(), 10);
  const fs::path second = commit(storage.path(), 20);
  const auto look = [&] {
    return message_of<Error>([&] { list_checkpoints(storage.path(), warnings.sink()); });
  };
  SUBCASE("a manifest") {
    fs::remove(second / "manifest.json");
    fs::create_directory(second / "manifest.json");
    CHECK(contains(look(), "checkpoint_000001/manifest.json: Is a directory"));
    // Training goes on: nothing is removed.
    remove_checkpoints(storage.path(), {.num_to_keep = 1, .score_attribute = {}}, {},
                       warnings.sink());
    REQUIRE(warnings.list.size() == 1);
    CHECK(contains(warnings.list[0], "no checkpoint is removed: "));
    CHECK(fs::exists(storage / "checkpoints/checkpoint_000000/manifest.json"));
  }
  SUBCASE("the folder of them") {
    fs::rename(storage / "checkpoints", storage / "elsewhere");
    write_file(storage / "checkpoints", "");
    CHECK(contains(look(), "cannot read " + (storage / "checkpoints").string() + ": Not a dir"));
  }
}

TEST_CASE("a flipped bit is found by the sums") {
  const TemporaryFolder storage;
  const fs::path folder = commit(storage.path(), 10);
  write_file(folder / "shard-00000-of-00001/weights.bin", "weighty");
  const Checkpoint checkpoint = open_checkpoint(folder);  // sizes agree
  CHECK(contains(message_of<Error>([&] { verify_checkpoint(checkpoint); }),
                 "weights.bin: its content does not match"));
}

TEST_CASE("what is kept") {
  const auto checkpoints = [](std::vector<Metrics> metrics) {
    std::vector<Checkpoint> list;
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      Checkpoint checkpoint;
      checkpoint.manifest.number = static_cast<std::int64_t>(i);
      checkpoint.manifest.metrics = metrics[i];
      list.push_back(checkpoint);
    }
    return list;
  };
  using Numbers = std::vector<std::int64_t>;
  const auto list = checkpoints({{{"a", 0.5}}, {{"a", 0.9}}, {}, {{"a", 0.7}}, {{"a", 0.1}}});
  CHECK(checkpoints_to_remove(list, {}).empty());
  CHECK(checkpoints_to_remove(list, {.num_to_keep = 2, .score_attribute = ""}) == Numbers{0, 1, 2});
  CHECK(checkpoints_to_remove(list, {.num_to_keep = 2, .score_attribute = ""}, 1) == Numbers{0, 2});
  // Two best are 1 and 3; the newest stays although it is the worst.
  CHECK(checkpoints_to_remove(list, {.num_to_keep = 2, .score_attribute = "a"}) == Numbers{0, 2});
  CHECK(checkpoints_to_remove(
            list, {.num_to_keep = 2, .score_attribute = "a", .higher_is_better = false}) ==
        Numbers{1, 2, 3});
  CHECK(checkpoints_to_remove(list, {.num_to_keep = 9, .score_attribute = "a"}).empty());
  const auto equal = checkpoints({{{"a", 1}}, {{"a", 1}}, {{"a", 1}}});
  CHECK(checkpoints_to_remove(equal, {.num_to_keep = 1, .score_attribute = "a"}) == Numbers{0, 1});
  const auto nan = checkpoints({{{"a", std::nan("")}}, {{"a", -5}}, {{"a", 1}}});
  CHECK(checkpoints_to_remove(nan, {.num_to_keep = 2, .score_attribute = "a"}) == Numbers{0});

  const TemporaryFolder storage;
  for (int i = 0; i < 4; ++i) commit(storage.path(), i, {{"a", i == 1 ? 9.0 : 1.0}});
  Warnings warnings;
  remove_checkpoints(storage.path(), {.num_to_keep = 2, .score_attribute = "a"}, std::nullopt,
                     warnings.sink());
  Numbers left;
  for (const auto& each : list_checkpoints(storage.path(), warnings.sink())) {
    left.push_back(each.manifest.number);
  }
  CHECK(left == Numbers{1, 3});
  CHECK(warnings.list.empty());
}

TEST_CASE("names and paths") {
  CHECK(checkpoint_name(1234567) == "checkpoint_1234567");
  CHECK(checkpoint_number("checkpoint_000012") == 12);
  CHECK(checkpoint_number("checkpoint_1234567") == 1234567);
  for (const char* name : {"checkpoint_12", "checkpoint_-00001", "checkpoint_", "x",
                           "checkpoint_000001x", "checkpoint_99999999999999999999"}) {
    CHECK_FALSE(checkpoint_number(name).has_value());
  }
  for (const char* path : {"a", "a/b", "..a/b..", "a b"}) CHECK(is_plain_path(path));
  for (const char* path : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "."}) {
    CHECK_FALSE(is_plain_path(path));
  }
  CHECK_FALSE(is_plain_path(std::string("a\0b", 3)));
}

TEST_CASE("a shard's files have plain names") {
  const TemporaryFolder storage;
  ShardWriter writer(storage.path(), 1, 1);
  CHECK_THROWS_AS(writer.create("../x"), Error);
  CHECK_THROWS_AS(writer.create("/x"), Error);
  CHECK_THROWS_AS(writer.create("shard.json"), Error);
}

TEST_CASE("leftovers of earlier runs are removed, committed checkpoints are not") {
  const TemporaryFolder storage;
  commit(storage.path(), 1);
  write_shard(storage.path(), 2);
  remove_temporaries(storage.path());
  CHECK_FALSE(fs::exists(storage / "checkpoints/.tmp"));
  CHECK(fs::exists(storage / "checkpoints/checkpoint_000000"));
  CHECK_NOTHROW(remove_temporaries(storage.path()));
}
