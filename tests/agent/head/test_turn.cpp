#include <doctest/doctest.h>

#include <optional>
#include <thread>

#include "agent/head/turn.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable_is.hpp"

using namespace dtrain;
using head::HeadTurn;

namespace {

struct Root {
  dtrain::testing::TemporaryFolder folder;
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

TEST_CASE("of two that took the turn at once the later to write has it") {
  const Root at;
  const HeadTurn one(at.root, "Slurm job 8");
  const std::string mine = read_file(at.root.turn());
  CHECK(one.keep());
  write_file_atomic(at.root.turn(), R"({"generation":1,"holder":"Slurm job 9","past":[]})");
  CHECK(one.is_lost());
  CHECK_FALSE(one.keep());
  write_file_atomic(at.root.turn(), mine);
  CHECK(one.keep());
}

TEST_CASE("the end that an older head writes over a turn does not stay") {
  const Root at;
  { const HeadTurn first(at.root, "Slurm job 7"); }
  const std::string end = read_file(at.root.turn());
  const HeadTurn next(at.root, "Slurm job 8");
  write_file_atomic(at.root.turn(), end);
  CHECK_FALSE(next.is_lost());
  CHECK(next.keep());
  const head::Turn turn = head::read_turn(at.root);
  CHECK(turn.generation == 2);
  CHECK(turn.holder == "Slurm job 8");
  CHECK_FALSE(turn.ended);
}

TEST_CASE("one that ended while it waited for the one before it waits again") {
  const Root at;
  write_file_atomic(at.root.turn(),
                    R"({"generation":2,"holder":"Slurm job 8","begun":false,"past":[]})");
  CHECK(taking(at.root, "Slurm job 8") >= HeadTurn::kSafe);
  CHECK(taking(at.root, "Slurm job 8") < HeadTurn::kSafe);
}

TEST_CASE("a job of another Slurm is another holder, whatever its id") {
  const dtrain::testing::VariableIs job("SLURM_JOB_ID", "7");
  {
    const dtrain::testing::VariableIs start("DTRAIN_HEAD_START", std::nullopt);
    CHECK(head::turn_holder() == "Slurm job 7");
  }
  const dtrain::testing::VariableIs start("DTRAIN_HEAD_START", "1700000000.42");
  CHECK(head::turn_holder() == "Slurm job 7 of 1700000000.42");
}

TEST_CASE("the turn is taken before the lock of a head that goes on is waited for") {
  const Root at;
  std::optional<FileLock> lock = FileLock::try_lock(at.root.lock());
  REQUIRE(lock);
  const HeadTurn silent(at.root, "Slurm job 7");
  std::thread next([&] { const head::HeadHold hold(at.root, true, "Slurm job 8"); });
  while (!silent.is_lost()) std::this_thread::yield();
  lock.reset();
  next.join();
  CHECK(head::read_turn(at.root).ended);
  CHECK(head::read_turn(at.root).generation == 2);
}

TEST_CASE("a second head of the same allocation takes nothing before it has the lock") {
  const Root at;
  std::optional<FileLock> lock = FileLock::try_lock(at.root.lock());
  REQUIRE(lock);
  const HeadTurn first(at.root, "Slurm job 7");
  CHECK_FALSE(head::is_anothers(head::read_turn(at.root), "Slurm job 7"));
  CHECK(head::is_anothers(head::read_turn(at.root), "Slurm job 8"));
  CHECK_FALSE(head::is_anothers({}, "Slurm job 8"));
  std::thread second([&] { const head::HeadHold hold(at.root, true, "Slurm job 7"); });
  CHECK_FALSE(first.is_lost());
  lock.reset();
  second.join();
  CHECK(head::read_turn(at.root).generation == 2);
}
