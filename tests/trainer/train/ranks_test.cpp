#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using test::contains;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

namespace {

TensorMap result(const TemporaryFolder& folder, const std::string& name, int rank) {
  return read_tensors(folder / (name + "-" + std::to_string(rank) + ".safetensors"));
}

bool same_bits(const TensorMap& a, const TensorMap& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name) || !tensor.equal(b.at(name))) return false;
  }
  return true;
}

bool nearly(const TensorMap& a, const TensorMap& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name) || !tensor.allclose(b.at(name), 1e-5, 1e-7)) return false;
  }
  return true;
}

// What one process finds for the whole batch, with rank 0's weights.
TensorMap whole_batch_gradients(const std::vector<int>& batches) {
  auto model = test::make_small_model(100);
  for (const int number : batches) {
    const test::Examples all = test::make_examples(number);
    at::cross_entropy_loss(model->forward(all.inputs), all.labels).backward();
  }
  return test::gradients_of(*model);
}

void succeed(const std::vector<test::Exit>& exits, const TemporaryFolder& folder) {
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CAPTURE(read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
    REQUIRE(exits[rank].code == 0);
    REQUIRE(exits[rank].error_file.empty());
  }
}

}  // namespace

TEST_CASE("collectives of three ranks") {
  const TemporaryFolder folder;
  succeed(launch("collectives", 3, folder.path()), folder);
}

TEST_CASE("a rank that is slow in its data, or in computing, is told from those that wait for it") {
  test::holds("slow_data", 2);
  test::holds("slow_compute", 2);
}

TEST_CASE("ranks that cannot share memory talk by Gloo, and rank 0 says why, once") {
  const TemporaryFolder folder;
  succeed(launch("collectives", 2, folder.path(), {{"TEST_SMALL_FILES", "1"}}), folder);
  const std::string said = "note: the ranks talk by Gloo, not by shared memory: rank 0 ";
  const std::string log = read_file(folder / "rank-0.log");
  CAPTURE(log);
  const auto at = log.find(said);
  REQUIRE(at != std::string::npos);
  CHECK(log.find(said, at + 1) == std::string::npos);
  CHECK_FALSE(contains(read_file(folder / "rank-1.log"), "note: "));
}

TEST_CASE("gradients are those of the joined batch, from rank 0's weights") {
  for (const bool views : {true, false}) {
    const TemporaryFolder folder;
    succeed(launch("gradients", 2, folder.path(),
                   views ? std::map<std::string, std::string>{}
                         : std::map<std::string, std::string>{{"TEST_NO_BUCKET_VIEW", "1"}}),
            folder);
    for (int round = 0; round < 2; ++round) {
      const TensorMap expected = whole_batch_gradients({round});
      const std::string name = "gradients" + std::to_string(round);
      CHECK(nearly(result(folder, name, 0), expected));
      CHECK(same_bits(result(folder, name, 0), result(folder, name, 1)));
    }
  }
}

TEST_CASE("ranks stay bit-identical step after step") {
  const TemporaryFolder folder;
  succeed(launch("steps", 3, folder.path()), folder);
  CHECK(same_bits(result(folder, "parameters", 0), result(folder, "parameters", 1)));
  CHECK(same_bits(result(folder, "parameters", 0), result(folder, "parameters", 2)));
}

TEST_CASE("inside of no_sync nothing is sent; the next backward sends the sum") {
  const TemporaryFolder folder;
  succeed(launch("accumulate", 2, folder.path()), folder);
  CHECK_FALSE(nearly(result(folder, "inside", 0), result(folder, "inside", 1)));
  CHECK(nearly(result(folder, "after", 0), whole_batch_gradients({0, 1})));
  CHECK(same_bits(result(folder, "after", 0), result(folder, "after", 1)));
}

TEST_CASE("buffers are rank 0's at each trained forward, and not in an evaluation") {
  const TemporaryFolder folder;
  succeed(launch("buffers", 2, folder.path()), folder);
  const auto mean = [&](const std::string& name, int rank) {
    return result(folder, name, rank).at("mean")[0].item<float>();
  };
  CHECK(mean("forward", 0) == 5);
  CHECK(mean("forward", 1) == 5);
  CHECK(mean("evaluation", 0) == 5);
  CHECK(mean("evaluation", 1) == 6);
  CHECK(mean("synced", 1) == 5);
}

TEST_CASE("parameters that forward does not use") {
  const TemporaryFolder folder;
  succeed(launch("unused", 2, folder.path()), folder);
  const TensorMap gradients = result(folder, "gradients", 1);
  CHECK(gradients.contains("first.weight"));
  CHECK(same_bits(result(folder, "gradients", 0), gradients));
}

TEST_CASE("models that differ are refused on every rank, with an error file") {
  const TemporaryFolder folder;
  const auto exits = launch("mismatch", 2, folder.path());
  for (const test::Exit& exit : exits) {
    CHECK(exit.code == 1);
    const auto document = nlohmann::json::parse(exit.error_file);
    const std::string message = document["message"]["message"];
    CHECK_FALSE(message.empty());
    CHECK_FALSE(contains(message, "Exception raised from"));
  }
  CHECK(contains(exits[0].error_file, "1 other ranks have another model"));
  CHECK(
      contains(exits[1].error_file,
               "rank 1 has first.weight Float[17, 8] where rank 0 has first.weight Float[16, 8]"));
}

TEST_CASE("a peer that dies ends the others at once") {
  const TemporaryFolder folder;
  const auto exits = launch("dead_peer", 2, folder.path());
  CHECK(exits[0].code == 1);
  CHECK(exits[1].code == 3);
  CHECK(contains(exits[0].error_file, "message"));
  CHECK(contains(read_file(folder / "rank-0.log"), "error: "));
}

TEST_CASE(
    "over Gloo the error names the call, this rank, and the slowest one, which leaves its stacks") {
  for (const int hangs : {0, 1}) {
    CAPTURE(hangs);
    const TemporaryFolder folder;
    const auto exits = launch("hanging_peer", 2, folder.path(),
                              {{"TEST_TIMEOUT_MS", "4000"},
                               {"TEST_HANGING_RANK", std::to_string(hangs)},
                               {"DTRAIN_TRANSPORT", "gloo"}});
    const auto waits = static_cast<std::size_t>(1 - hangs);
    const std::string& error = exits[waits].error_file;
    CAPTURE(error);
    CHECK(exits[waits].code == 1);
    CHECK(contains(error,
                   "allreduce #2 (1 Float) failed on rank " + std::to_string(waits) + " of 2: "));
    CHECK(contains(error, "Timed out waiting 4000ms"));
    CHECK(contains(error, "the slowest is rank " + std::to_string(hangs) +
                              ": its last call was allreduce #1 (1 Float), at step " +
                              std::to_string(41 + hangs)));
    CHECK(contains(error, "native_stack"));
    const std::string& other = exits[static_cast<std::size_t>(hangs)].error_file;
    CAPTURE(other);
    CHECK(exits[static_cast<std::size_t>(hangs)].code == 5);
    CHECK(contains(other, "after step " + std::to_string(41 + hangs) + ", last call allreduce #1"));
    CHECK(contains(other, "nanosleep"));
  }
}

TEST_CASE("over Gloo a backward that waits for a rank says so too") {
  const TemporaryFolder folder;
  const auto exits = launch("hanging_backward", 2, folder.path(),
                            {{"TEST_TIMEOUT_MS", "4000"}, {"DTRAIN_TRANSPORT", "gloo"}});
  CAPTURE(exits[0].error_file);
  CHECK(exits[0].code == 1);
  CHECK(contains(exits[0].error_file, "allreduce #"));
  CHECK(contains(exits[0].error_file, " failed on rank 0 of 2: "));
  CHECK(contains(exits[0].error_file, "the slowest is rank 1: its last call was "));
}

TEST_CASE("a peer that hangs: every rank's error file has step, last call and stacks") {
  const TemporaryFolder folder;
  const auto exits = launch("hanging_peer", 2, folder.path(),
                            {{"TEST_TIMEOUT_MS", "4000"}, {"DTRAIN_TRANSPORT", "shared_memory"}});
  CAPTURE(exits[0].error_file);
  CAPTURE(exits[1].error_file);
  CHECK(exits[0].code == 1);
  CHECK(contains(exits[0].error_file, "timed out after 4 s"));
  CHECK(contains(exits[0].error_file, "rank 1"));
  CHECK(contains(exits[0].error_file, "42"));  // the step that rank 1 works on
  CHECK(contains(exits[0].error_file, "native_stack"));
  CHECK(exits[1].code == 5);
  CHECK(contains(exits[1].error_file, "after step 42, last call"));
  CHECK(contains(exits[1].error_file, "nanosleep"));
}
