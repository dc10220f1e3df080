// Ranks with GPUs. Where there are fewer than ranks, they share one: it is NCCL all the same, over
// a socket.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using test::contains;
using test::holds;
using test::kOnGpu;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

namespace {

using Env = std::map<std::string, std::string>;

Env with(Env more) {
  more.insert(kOnGpu.begin(), kOnGpu.end());
  return more;
}

bool no_gpu() {
#ifdef DTRAIN_CUDA
  if (test::gpus() > 0) return false;
  MESSAGE("this machine has no GPU");
#else
  MESSAGE("built without CUDA");
#endif
  return true;
}

TensorMap final_weights(const TemporaryFolder& folder, int rank) {
  return read_tensors(folder / ("final-" + std::to_string(rank) + ".safetensors"));
}

}  // namespace

TEST_CASE("on GPUs, over NCCL, as one process does") {
  if (no_gpu()) return;
  for (const char* job : {"static_graph", "find_unused", "halves", "uneven", "no_batches",
                          "given_layout", "collectives", "zero_equal", "zero_accumulates",
                          "zero_join", "zero_refuses", "zero2_memory", "checkpointed"}) {
    CAPTURE(std::string(job));
    const TemporaryFolder folder;
    holds(job, 2, folder.path(), kOnGpu);
  }
  const TemporaryFolder folder;
  holds("measures", 3, folder.path(), kOnGpu);
}

TEST_CASE("on GPUs each of 50 steps is Python DDP's on the CPU") {
  if (no_gpu()) return;
  const TemporaryFolder folder;
  const std::string golden =
      std::string(std::getenv("DTRAIN_GOLDEN")) + "/python_ddp/adamw.safetensors";
  holds("parity", 2, folder.path(), with({{"TEST_GOLDEN", golden}}));
}

TEST_CASE("on GPUs a training that is killed goes on bit-exactly") {
  if (no_gpu()) return;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TemporaryFolder whole;
    const TemporaryFolder killed;
    holds("train", ranks, whole.path(), kOnGpu);
    for (const auto& exit :
         launch("train", ranks, killed.path(), with({{"TEST_DIE_AFTER", "7"}}))) {
      CHECK(exit.code == 128 + 9);
    }
    holds("train", ranks, killed.path(), kOnGpu);
    for (int rank = 0; rank < ranks; ++rank) {
      const TensorMap left = final_weights(whole, rank);
      const TensorMap right = final_weights(killed, rank);
      CHECK(!left.empty());
      for (const auto& [name, tensor] : left) CHECK(tensor.equal(right.at(name)));
    }
  }
}

TEST_CASE("on GPUs a backward that waits for a rank names the call and the rank") {
  if (no_gpu()) return;
  const TemporaryFolder folder;
  const auto exits =
      launch("hanging_backward", 2, folder.path(), with({{"TEST_TIMEOUT_MS", "4000"}}));
  CAPTURE(exits[0].error_file);
  CAPTURE(exits[1].error_file);
  CAPTURE(read_file(folder / "rank-0.log"));
  CHECK(exits[0].code == 1);
  CHECK(contains(exits[0].error_file, "allreduce #"));
  CHECK(contains(exits[0].error_file, " failed on rank 0 of 2: it timed out"));
  CHECK(contains(exits[0].error_file, "the slowest is rank 1: its last call was "));
  CHECK(exits[1].code == 5);
  CHECK(contains(exits[1].error_file, "last call "));
}

TEST_CASE("on GPUs a peer that dies in a backward ends the others") {
  if (no_gpu()) return;
  const TemporaryFolder folder;
  const auto exits = launch("hanging_backward", 2, folder.path(),
                            with({{"TEST_TIMEOUT_MS", "4000"}, {"TEST_DIES", "1"}}));
  CAPTURE(exits[0].error_file);
  CAPTURE(read_file(folder / "rank-0.log"));
  CHECK(exits[0].code == 1);
  CHECK(exits[1].code == 3);
  CHECK(contains(exits[0].error_file, "allreduce #"));
}
