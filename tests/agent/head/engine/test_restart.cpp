#include <doctest/doctest.h>
#include <signal.h>

#include <deque>

#include "agent/head/engine/restart.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;

namespace {

// Attempts of one job that have ended, a minute after each other.
struct History {
  std::deque<AttemptRow> rows;
  JobSpec spec;
  RestartsSoFar so_far;

  History(int max_restarts, RestartSpec restart = {}) {
    spec.max_restarts = max_restarts;
    spec.restart = std::move(restart);
  }
  PastAttempts past() const {
    PastAttempts all;
    for (const AttemptRow& row : rows) all.push_back(&row);
    return all;
  }
  RestartDecision end(FaultKind kind, int code = 0, std::optional<std::int64_t> step = {},
                      std::optional<std::string> checkpoint = {}, const std::string& node = "n") {
    AttemptRow& row = rows.emplace_back();
    row.attempt = static_cast<int>(rows.size());
    row.state = kind == FaultKind::none ? AttemptState::succeeded : AttemptState::failed;
    row.ended = WallTime(std::chrono::minutes(row.attempt));
    row.fault.kind = kind;
    row.fault.code = code;
    if (kind == FaultKind::signal || kind == FaultKind::out_of_memory) row.fault.signal = code;
    row.fault.node = NodeId(node);
    row.step = step;
    row.checkpoint = std::move(checkpoint);
    const RestartDecision decision =
        decide_restart({row.state, "it failed"}, StopCause::none, so_far, spec, past());
    row.counted = decision.so_far.restarts > so_far.restarts;
    so_far = decision.so_far;
    return decision;
  }
};

}  // namespace

TEST_CASE("which ranks failed by themselves, and how") {
  const auto rank = [](int number, int code, int second, bool stopped = false, double error = 0) {
    RankRow row;
    row.rank = number;
    row.node = NodeId("n");
    row.state = RankState::exited;
    row.code = code;
    row.ended = WallTime(std::chrono::seconds(second));
    row.stopped = stopped;
    row.error_time = error;
    return row;
  };
  CHECK_FALSE(failed_by_itself(rank(0, 0, 1)));
  CHECK_FALSE(failed_by_itself(rank(1, 143, 2, true)));
  CHECK(failed_by_itself(rank(1, 2, 8)));
  CHECK(failed_at(rank(0, 1, 9)) == WallTime(std::chrono::seconds(9)));
  CHECK(failed_at(rank(0, 1, 9, false, 5.5)) == WallTime(std::chrono::milliseconds(5500)));
  RankRow killed = rank(3, 0, 2);
  killed.state = RankState::killed;
  killed.signal = 9;
  CHECK(describe(killed) == "rank 3 on n: signal 9 (SIGKILL)");
  killed.cause = "killed for memory: it used 1.0 GiB of 1.0 GiB";
  CHECK(describe(killed) ==
        "rank 3 on n: signal 9 (SIGKILL), killed for memory: it used 1.0 GiB of 1.0 GiB");
}

TEST_CASE("restart or end") {
  using What = RestartDecision::What;
  const auto decide = [](const AttemptEnd& end, StopCause cause, RestartsSoFar so_far, int most) {
    AttemptRow row;
    row.state = end.state;
    row.fault.kind = FaultKind::exit_code;
    row.fault.code = 1;
    JobSpec spec;
    spec.max_restarts = most;
    return decide_restart(end, cause, so_far, spec, {&row});
  };
  const AttemptEnd failed{AttemptState::failed, "rank 0 on n: exit code 1", false};
  const AttemptEnd port{AttemptState::failed, "rank 0 on n: exit code 1", true};
  const AttemptEnd done{AttemptState::succeeded, "", false};
  const AttemptEnd stopped{AttemptState::stopped, "stopped by the user", false};
  const AttemptEnd lasting{AttemptState::failed, "no program", false, true};
  CHECK(decide(lasting, StopCause::none, {0, 0}, 3).what == What::fail);
  CHECK(decide(lasting, StopCause::none, {0, 0}, 3).so_far.restarts == 0);
  CHECK(decide(done, StopCause::user, {0, 0}, 3).what == What::succeed);
  CHECK(decide(failed, StopCause::none, {0, 0}, 0).what == What::fail);
  CHECK(decide(failed, StopCause::none, {1, 0}, 2).what == What::restart);
  CHECK(decide(failed, StopCause::none, {1, 0}, 2).so_far.restarts == 2);
  CHECK(decide(failed, StopCause::none, {2, 0}, 2).what == What::fail);
  CHECK(decide(port, StopCause::none, {0, 0}, 0).what == What::restart);
  CHECK(decide(port, StopCause::none, {0, 0}, 0).so_far.restarts == 0);
  CHECK(decide(port, StopCause::none, {0, 1}, 0).what == What::fail);
  CHECK(decide(stopped, StopCause::user, {0, 0}, 3).what == What::stop);
  CHECK(decide(failed, StopCause::user, {0, 0}, 3).what == What::stop);
  CHECK(decide(stopped, StopCause::timeout, {0, 0}, 3).what == What::fail);
}

TEST_CASE(
    "restart: lost and preempted machines are no failures of the job, unless they are asked to "
    "be") {
  using What = RestartDecision::What;
  SUBCASE("they count nowhere") {
    History job(0);
    for (int i = 0; i < 3 * kLostNodesInARow; ++i) {
      CHECK(job.end(FaultKind::preempted).what == What::restart);
    }
    for (int i = 1; i < kLostNodesInARow; ++i) {
      const RestartDecision decision = job.end(FaultKind::node_lost);
      CHECK(decision.what == What::restart);
      CHECK(decision.reason == "begins anew, for it failed");
    }
    CHECK(job.so_far.restarts == 0);
    const RestartDecision last = job.end(FaultKind::node_lost);
    CHECK(last.what == What::fail);
    CHECK(last.reason.find("10 attempts in a row ended by lost nodes") != std::string::npos);
    CHECK(job.end(FaultKind::exit_code, 1).what == What::fail);
  }
  SUBCASE("a checkpoint begins their count anew") {
    History job(0);
    for (int i = 0; i < 5 * kLostNodesInARow; ++i) {
      CHECK(job.end(FaultKind::node_lost, 0, {}, "cp-" + std::to_string(i / 5)).what ==
            What::restart);
    }
  }
  SUBCASE("they count where that is asked for") {
    History job(1, {.count = {"node_lost"}});
    CHECK(job.end(FaultKind::node_lost).reason == "restart 1 of 1 after it failed");
    CHECK(job.end(FaultKind::preempted).what == What::restart);
    CHECK(job.end(FaultKind::node_lost).what == What::fail);
  }
}

TEST_CASE("restart.on: only after these failures") {
  using What = RestartDecision::What;
  const auto after = [](std::vector<std::string> on, FaultKind kind, int code = 0) {
    return History(3, {.on = std::move(on)}).end(kind, code);
  };
  CHECK(after({"75"}, FaultKind::exit_code, 75).what == What::restart);
  CHECK(after({"75"}, FaultKind::exit_code, 7).reason ==
        "it failed; restart.on does not name it (exit_code)");
  CHECK(after({"exit_code"}, FaultKind::exit_code, 7).what == What::restart);
  CHECK(after({"SIGUSR1"}, FaultKind::signal, SIGUSR1).what == What::restart);
  CHECK(after({"SIGUSR1"}, FaultKind::signal, SIGSEGV).what == What::fail);
  CHECK(after({"signal"}, FaultKind::signal, SIGSEGV).what == What::restart);
  CHECK(after({"signal"}, FaultKind::out_of_memory, SIGKILL).what == What::fail);
  CHECK(after({"SIGKILL"}, FaultKind::out_of_memory, SIGKILL).what == What::restart);
  CHECK(after({"hang", "node_lost"}, FaultKind::hang).what == What::restart);
  CHECK(after({"75"}, FaultKind::node_lost).what == What::fail);
  CHECK(after({"75"}, FaultKind::preempted).reason ==
        "it failed; restart.on does not name it (preempted)");
}

TEST_CASE("restart.window_s: as many restarts in that time") {
  using What = RestartDecision::What;
  History job(2, {.window = std::chrono::minutes(5)});
  CHECK(job.end(FaultKind::exit_code, 1).reason ==
        "restart 1 of 2 within 5 m 00 s after it failed");
  CHECK(job.end(FaultKind::exit_code, 2).what == What::restart);
  for (int i = 0; i < 4; ++i) job.end(FaultKind::preempted);
  CHECK(job.end(FaultKind::exit_code, 3).what == What::restart);  // the first two are long ago
  CHECK(job.end(FaultKind::exit_code, 4).what == What::restart);
  CHECK(job.end(FaultKind::exit_code, 5).reason ==
        "it failed; 2 restarts within 5 m 00 s were all");
}

TEST_CASE("restart.same_failure: twice in a row at the same step ends the job") {
  using What = RestartDecision::What;
  History job(9);
  CHECK(job.end(FaultKind::exit_code, 1, 100).what == What::restart);
  CHECK(job.end(FaultKind::exit_code, 1, 120).what == What::restart);  // another step
  CHECK(job.end(FaultKind::exit_code, 2, 120).what == What::restart);  // another code
  CHECK(job.end(FaultKind::exit_code, 2).what == What::restart);       // not known
  CHECK(job.end(FaultKind::exit_code, 2).what == What::restart);
  CHECK(job.end(FaultKind::exit_code, 2, 120).what == What::restart);
  SUBCASE("it ends") {
    CHECK(job.end(FaultKind::exit_code, 2, 120).reason ==
          "it failed; the same at step 120 as the attempt before, so it is not tried again "
          "(restart.same_failure)");
  }
  SUBCASE("in other words it is another one") {
    job.rows.back().fault.words = "CUDA error";
    CHECK(job.end(FaultKind::exit_code, 2, 120).what == What::restart);
  }
  SUBCASE("a preempted machine is no failure") {
    CHECK(job.end(FaultKind::preempted, 0, 120).what == What::restart);
    CHECK(job.end(FaultKind::preempted, 0, 120).what == What::restart);
  }
  SUBCASE("what has no kind is not the program's") {
    CHECK(job.end(FaultKind::other, 0, 120).what == What::restart);
    CHECK(job.end(FaultKind::other, 0, 120).what == What::restart);
  }
  SUBCASE("unless it is to be tried") {
    job.spec.restart.same_failure = SameFailure::restart;
    CHECK(job.end(FaultKind::exit_code, 2, 120).what == What::restart);
  }
}

TEST_CASE("restart.backoff_s: twice as long each time, until there is a checkpoint") {
  History job(100, {.backoff = 10s});
  CHECK(job.end(FaultKind::exit_code, 1).wait == 10s);
  CHECK(job.end(FaultKind::exit_code, 2).wait == 20s);
  CHECK(job.end(FaultKind::node_lost).wait == 40s);
  CHECK(job.end(FaultKind::preempted).wait == 0s);
  CHECK(job.end(FaultKind::exit_code, 1, {}, "cp").wait == 10s);
  for (int i = 0; i < 20; ++i) job.end(FaultKind::exit_code, i, {}, "cp");
  CHECK(job.end(FaultKind::exit_code, 1, {}, "cp").wait == 3600s);
  CHECK(History(1).end(FaultKind::exit_code, 1).wait == 0s);
}

TEST_CASE("a node where the last two attempts failed is suspected") {
  History job(9);
  job.end(FaultKind::exit_code, 1, {}, {}, "a");
  CHECK(suspect(job.past()).empty());
  job.end(FaultKind::exit_code, 2, {}, {}, "b");
  CHECK(suspect(job.past()).empty());
  job.end(FaultKind::signal, 11, {}, {}, "b");
  CHECK(suspect(job.past()) == NodeId("b"));
  job.end(FaultKind::preempted, 0, {}, {}, "b");
  CHECK(suspect(job.past()).empty());
}

TEST_CASE("what a rank's failure is") {
  RankRow rank;
  rank.node = NodeId("n");
  rank.code = 1;
  rank.last_lines = {"begun", "12:03:04 pid 77: no such file /x9"};
  CHECK(fault_of(rank).kind == FaultKind::exit_code);
  CHECK(fault_of(rank).words == "#:#:# pid #: no such file /x#");
  rank.error_message = "ValueError: 3";
  CHECK(fault_of(rank).words == "ValueError: #");
  rank.cause = "its shared library liby.so is missing";
  CHECK(fault_of(rank).kind == FaultKind::exit_code);
  rank.cause.clear();
  rank.signal = 9;
  CHECK(fault_of(rank).kind == FaultKind::signal);
  rank.cause = "killed for memory: it used 1.0 GiB of 1.0 GiB";
  CHECK(fault_of(rank).kind == FaultKind::out_of_memory);
}
