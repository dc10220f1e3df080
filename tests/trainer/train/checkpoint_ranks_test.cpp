#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "tests/trainer/support/fake_supervisor.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/checkpoint/store.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using test::contains;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

namespace {

using Env = std::map<std::string, std::string>;

void expect_codes(const std::vector<test::Exit>& exits, int code, const TemporaryFolder& folder) {
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
    REQUIRE(exits[rank].code == code);
  }
}

bool same_weights(const TemporaryFolder& a, const TemporaryFolder& b, int rank) {
  const std::string name = "final-" + std::to_string(rank) + ".safetensors";
  const TensorMap left = read_tensors(a / name);
  const TensorMap right = read_tensors(b / name);
  if (left.size() != right.size() || left.empty()) return false;
  for (const auto& [key, tensor] : left) {
    if (!right.contains(key) || !tensor.equal(right.at(key))) return false;
  }
  return true;
}

// "STEP loss samples…" by step; of a step that came twice, both lines must be equal.
std::map<int, std::string> lines_by_step(const TemporaryFolder& folder, int rank) {
  std::map<int, std::string> lines;
  std::istringstream in(read_file(folder / ("losses-" + std::to_string(rank))));
  for (std::string line; std::getline(in, line);) {
    const auto [at, fresh] = lines.emplace(std::stoi(line), line);
    if (!fresh) CHECK(at->second == line);
  }
  return lines;
}

std::int64_t newest_step(const TemporaryFolder& folder) {
  const auto newest =
      newest_checkpoint(folder / "storage", [](const std::string& text) { FAIL_CHECK(text); });
  return newest ? newest->manifest.step : 0;
}

}  // namespace

TEST_CASE("a training that is killed at any step goes on bit-exactly") {
  // Steps from the clock, printed when one fails: a fixed list would never find another.
  std::random_device device;
  const unsigned seed = device();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto check = [&](int ranks, const Env& env) {
    CAPTURE(ranks);
    CAPTURE(env.size());
    const TemporaryFolder whole;
    expect_codes(launch("train", ranks, whole.path(), env), 0, whole);
    for (int round = 0; round < 2; ++round) {
      const int step = static_cast<int>(random() % 13) + 1;
      CAPTURE(step);
      const TemporaryFolder killed;
      Env dying = env;
      dying["TEST_DIE_AFTER"] = std::to_string(step);
      expect_codes(launch("train", ranks, killed.path(), dying), 128 + 9, killed);
      CHECK(newest_step(killed) <= step);
      expect_codes(launch("train", ranks, killed.path(), env), 0, killed);
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(same_weights(whole, killed, rank));
        CHECK(lines_by_step(whole, rank) == lines_by_step(killed, rank));
      }
    }
  };
  SUBCASE("one rank, SGD") {
    check(1, {{"TEST_SGD", "1"}});
  }
  SUBCASE("one rank, AdamW") {
    check(1, {});
  }
  SUBCASE("two ranks, SGD") {
    check(2, {{"TEST_SGD", "1"}});
  }
  SUBCASE("two ranks, AdamW") {
    check(2, {});
  }
  SUBCASE("three ranks, AdamW") {
    check(3, {});
  }
}

TEST_CASE("a damaged shard of one rank: all of them go on from the checkpoint before") {
  const TemporaryFolder whole;
  expect_codes(launch("train", 2, whole.path()), 0, whole);
  const TemporaryFolder killed;
  expect_codes(launch("train", 2, killed.path(), {{"TEST_TERM_AFTER", "8"}}), 143, killed);
  REQUIRE(newest_step(killed) == 9);
  const auto newest = newest_checkpoint(killed / "storage", [](const std::string&) {})->folder;
  const auto shard = newest / "shard-00001-of-00002/optimizer.safetensors";
  std::string content = read_file(shard);
  content.back() = static_cast<char>(~content.back());
  test::write_file(shard, content);
  expect_codes(launch("train", 2, killed.path()), 0, killed);
  const std::string log = read_file(killed / "rank-0.log");
  CHECK(contains(log, "a checkpoint is damaged"));
  CHECK(contains(log, shard.string()));
  CHECK(contains(log, newest.filename().string() + ".bad"));
  for (int rank = 0; rank < 2; ++rank) CHECK(same_weights(whole, killed, rank));
}

TEST_CASE("where nodes were brought different checkpoints, one that all of them have is taken") {
  const TemporaryFolder folder;
  expect_codes(launch("train", 2, folder.path(), {{"TEST_TERM_AFTER", "8"}}), 143, folder);
  REQUIRE(newest_step(folder) == 9);
  for (const char* node : {"node-0", "node-1"}) {
    std::filesystem::copy(folder / "storage", folder / node,
                          std::filesystem::copy_options::recursive);
  }
  test::write_file(folder / "node-1/checkpoints/checkpoint_000002/shard-00001-of-00002/rank.json",
                   "?");
  std::filesystem::remove_all(folder / "node-1/checkpoints/checkpoint_000001");
  expect_codes(launch("choose", 2, folder.path()), 0, folder);
  for (const char* name : {"rank-0.log", "rank-1.log"}) {
    CHECK(contains(read_file(folder / name), "chose step 3"));
  }
  CHECK(contains(read_file(folder / "rank-0.log"), "checkpoint_000001: is not there"));
  CHECK(std::filesystem::exists(folder / "node-1/checkpoints/checkpoint_000002"));

  std::filesystem::remove_all(folder / "node-1/checkpoints/checkpoint_000000");
  for (const test::Exit& exit : launch("choose", 2, folder.path())) {
    CHECK(exit.code == 1);
    CHECK(contains(exit.error_file, "so are all before it"));
  }
}

TEST_CASE("another number of ranks sees the samples that are left, in the same order") {
  // The order in which all ranks together saw the first epoch's samples.
  const auto order_of = [](const TemporaryFolder& folder, int ranks, int first, int last) {
    std::vector<std::vector<std::int64_t>> by_rank(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& [step, line] : lines_by_step(folder, rank)) {
        if (step < first || step > last) continue;
        std::istringstream in(line);
        std::string word;
        in >> word >> word;
        for (std::int64_t i = 0; in >> i;) by_rank[static_cast<std::size_t>(rank)].push_back(i);
      }
    }
    std::vector<std::int64_t> order;
    for (std::size_t i = 0; i < by_rank[0].size(); ++i) {
      for (const auto& samples : by_rank) {
        if (i < samples.size()) order.push_back(samples[i]);
      }
    }
    return order;
  };
  const TemporaryFolder one;
  expect_codes(launch("train", 1, one.path()), 0, one);
  const std::vector<std::int64_t> expected = order_of(one, 1, 1, 10);
  REQUIRE(expected.size() == 40);

  // Two ranks leave after 4 steps of 4 samples each, so 32 are seen; three ranks take the other 8,
  // and, to be even, the first one again, in one step.
  const TemporaryFolder two;
  expect_codes(launch("train", 2, two.path(), {{"TEST_TERM_AFTER", "3"}}), 143, two);
  REQUIRE(newest_step(two) == 4);
  const std::vector<std::int64_t> begun = order_of(two, 2, 1, 4);
  CHECK(begun == std::vector(expected.begin(), expected.begin() + 32));
  const TemporaryFolder three;
  std::filesystem::copy(two / "storage", three / "storage",
                        std::filesystem::copy_options::recursive);
  expect_codes(launch("train", 3, three.path()), 0, three);
  std::vector<std::int64_t> left(expected.begin() + 32, expected.end());
  left.push_back(expected.front());
  CHECK(order_of(three, 3, 5, 5) == left);
}

TEST_CASE("a schedule as long as the data goes on with another number of ranks") {
  const TemporaryFolder folder;
  Env env{{"TEST_SAMPLES_OF_SCHEDULE", "160"}, {"TEST_TERM_AFTER", "3"}};
  expect_codes(launch("train", 2, folder.path(), env), 143, folder);
  REQUIRE(newest_step(folder) == 4);  // of 20, which are 40 of one rank
  env.erase("TEST_TERM_AFTER");
  expect_codes(launch("train", 1, folder.path(), env), 0, folder);
  const std::string log = read_file(folder / "rank-0.log");
  CHECK(contains(log, "begins at step 8 of the schedule"));
  CHECK(contains(log, "at step 8 in place of 4"));
}

TEST_CASE("SIGTERM on one rank: all save the same step and leave, and go on later") {
  const TemporaryFolder folder;
  expect_codes(launch("train", 2, folder.path(), {{"TEST_TERM_AFTER", "5"}}), 143, folder);
  CHECK(lines_by_step(folder, 0).rbegin()->first == 6);
  CHECK(lines_by_step(folder, 1).rbegin()->first == 6);
  CHECK(newest_step(folder) == 6);
  expect_codes(launch("train", 2, folder.path()), 0, folder);
  const TemporaryFolder whole;
  expect_codes(launch("train", 2, whole.path()), 0, whole);
  CHECK(same_weights(whole, folder, 0));
}

TEST_CASE("a shard that cannot be written is every rank's error") {
  const TemporaryFolder folder;
  const auto exits = launch("broken_shard", 2, folder.path());
  for (int rank = 0; rank < 2; ++rank) {
    const std::string log = read_file(folder / ("rank-" + std::to_string(rank) + ".log"));
    CAPTURE(log);
    CHECK(exits[static_cast<std::size_t>(rank)].code == 7);
    CHECK(contains(log, "told: rank 0: rank 1: "));
    CHECK(contains(log, "File name too long"));
  }
  CHECK(newest_step(folder) == 0);
}

TEST_CASE("and under a launcher that goes on waiting for it") {
  const TemporaryFolder folder;
  const test::FakeSupervisor supervisor(folder / "s");  // takes everything and never answers
  const auto exits = launch("broken_shard", 2, folder.path(),
                            {{"DTRAIN_REPORT_SOCKET", (folder / "s").string()},
                             {"DTRAIN_STORAGE_PATH", (folder / "storage").string()}});
  for (int rank = 0; rank < 2; ++rank) {
    const std::string log = read_file(folder / ("rank-" + std::to_string(rank) + ".log"));
    CAPTURE(log);
    CHECK(exits[static_cast<std::size_t>(rank)].code == 7);
    CHECK(contains(log, "told: rank 0: checkpoint of step 0 was not committed: rank 1: "));
    CHECK(contains(log, "File name too long"));
  }
}
