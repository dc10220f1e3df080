#include <doctest/doctest.h>

#include "agent/head/turn.hpp"
#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using head::HeadTurn;

namespace {

struct Root {
  testing::TemporaryFolder folder;
  paths::HeadRoot root{folder.path()};
};

std::chrono::steady_clock::duration taking(const paths::HeadRoot& root, const std::string& holder) {
  const auto begin = std::chrono::steady_clock::now();
  const HeadTurn turn(root, holder);
  return std::chrono::steady_clock::now() - begin;
}

}  // namespace

TEST_CASE("the next begins at once after an end in order, and the one before it never again") {
  const Root at;
  { const HeadTurn first(at.root, "Slurm job 7"); }
  CHECK(head::read_turn(at.root).ended);
  CHECK(taking(at.root, "Slurm job 8") < HeadTurn::kSafe);
  const head::Turn turn = head::read_turn(at.root);
  CHECK(turn.generation == 2);
  CHECK(turn.holder == "Slurm job 8");
  CHECK(turn.past == std::vector<std::string>{"Slurm job 7"});
  CHECK_THROWS_WITH(HeadTurn(at.root, "Slurm job 7"),
                    "Slurm job 7 is the head no more: Slurm job 8 has taken its place");
}

TEST_CASE("started again in its own allocation it waits for nobody") {
  const Root at;
  const HeadTurn killed(at.root, "Slurm job 7");
  CHECK(taking(at.root, "Slurm job 7") < HeadTurn::kSafe);
  CHECK(head::read_turn(at.root).generation == 2);
}

TEST_CASE("who takes the turn of one that may live says so first, and waits until that must know") {
  const Root at;
  const HeadTurn silent(at.root, "Slurm job 7");
  CHECK_FALSE(silent.is_lost());
  CHECK(taking(at.root, "Slurm job 8") >= HeadTurn::kSafe);
  CHECK(silent.is_lost());
}

TEST_CASE("one that has lost its turn says nothing of its end") {
  const Root at;
  {
    std::optional<HeadTurn> lost(std::in_place, at.root, "Slurm job 7");
    const HeadTurn next(at.root, "Slurm job 8");
    lost.reset();
    CHECK_FALSE(head::read_turn(at.root).ended);
  }
  CHECK(head::read_turn(at.root).ended);
}

TEST_CASE("a turn that cannot be read is nobody's to take") {
  const Root at;
  write_file_atomic(at.root.turn(), "{");
  CHECK_THROWS_AS(HeadTurn(at.root, "Slurm job 7"), Error);
}
