#include "trainer/train/ddp.hpp"

#include <doctest/doctest.h>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"

using namespace dtrain::train;
using test::contains;
using test::holds;
using test::launch;
using test::read_file;
using test::TemporaryFolder;

TEST_CASE("static_graph: every way to use a parameter trains as one process does") {
  holds("static_graph", 2);
}

TEST_CASE("find_unused_parameters: the same") {
  holds("find_unused", 2);
}

TEST_CASE("unused parameters that nobody looks for are an error that says so") {
  const TemporaryFolder folder;
  const auto exits = launch("unused_error", 2, folder.path());
  for (const auto& exit : exits) {
    CHECK(exit.code == 1);
    CHECK(contains(exit.error_file, "find_unused_parameters"));
  }
}

TEST_CASE("torch::optim's zero_grad throws on bucket views, ours does not") {
  holds("zero_grad_trap", 2, {"shared_memory"});
}

TEST_CASE("gradients in 16 bits are rounded once and equal on all ranks") {
  holds("halves", 2);
}

TEST_CASE("ranks with different numbers of batches never wait, and stay equal") {
  holds("uneven", 3);
  holds("no_batches", 3);
}

TEST_CASE("no layout of the buckets changes a bit, and tuning neither") {
  holds("layouts", 3, {"shared_memory"});
}

TEST_CASE("a layout that is given stays") {
  holds("given_layout", 3);
}

TEST_CASE("buckets lie in shared memory, and only they") {
  holds("in_place", 2, {"shared_memory"});
}

TEST_CASE("where the buckets' layout cannot change a bit") {
  const c10::Device cpu(c10::kCPU);
  const c10::Device gpu(c10::kCUDA, 0);
  CHECK(layout_changes_nothing(Transport::shared_memory, cpu, 3));
  CHECK_FALSE(layout_changes_nothing(Transport::gloo, cpu, 3));
  CHECK(layout_changes_nothing(Transport::gloo, cpu, 2));
  // Shared memory carries CPU tensors; those of a GPU go through NCCL.
  CHECK_FALSE(layout_changes_nothing(Transport::shared_memory, gpu, 3));
  CHECK(layout_changes_nothing(Transport::shared_memory, gpu, 2));
}
