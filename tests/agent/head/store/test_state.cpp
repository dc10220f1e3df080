#include <doctest/doctest.h>

#include <set>
#include <string>

#include "agent/head/store/state.hpp"
#include "launcher/core/error.hpp"

using namespace dtrain;
using namespace dtrain::head;

namespace {

// Walks every pair of state and event: what the table has is what next() gives, each pair stands
// there once, and every state can be reached from the first.
template <typename State, typename Event>
void walk(std::span<const Transition<State, Event>> table, int states, int events, State first) {
  std::set<int> reached{static_cast<int>(first)};
  for (int round = 0; round < states; ++round) {
    for (int s = 0; s < states; ++s) {
      for (int e = 0; e < events; ++e) {
        int rows = 0;
        std::optional<State> to;
        for (const auto& row : table) {
          if (static_cast<int>(row.from) == s && static_cast<int>(row.on) == e) {
            ++rows;
            to = row.to;
          }
        }
        CHECK(rows <= 1);
        CHECK(next(static_cast<State>(s), static_cast<Event>(e)) == to);
        if (to && reached.contains(s)) reached.insert(static_cast<int>(*to));
      }
    }
  }
  CHECK(static_cast<int>(reached.size()) == states);
}

}  // namespace

TEST_CASE("every pair of state and event") {
  walk(job_transitions(), 9, 8, JobState::queued);
  walk(attempt_transitions(), 7, 6, AttemptState::starting);
  walk(rank_transitions(), 5, 4, RankState::starting);
  walk(node_transitions(), 6, 7, NodeState::joining);
}

TEST_CASE("final states are the ones that nothing leads out of") {
  const std::set<std::string> final_jobs{"succeeded", "failed", "stopped"};
  for (int s = 0; s < 9; ++s) {
    const auto state = static_cast<JobState>(s);
    CHECK(is_final(state) == final_jobs.contains(to_string(state)));
  }
  const std::set<std::string> final_attempts{"succeeded", "failed", "stopped", "lost"};
  for (int s = 0; s < 7; ++s) {
    const auto state = static_cast<AttemptState>(s);
    CHECK(is_final(state) == final_attempts.contains(to_string(state)));
  }
}

TEST_CASE("a final state cannot be left, and a stop that meets an end keeps the end") {
  CHECK_FALSE(next(JobState::succeeded, JobEvent::stop).has_value());
  CHECK_FALSE(next(JobState::stopped, JobEvent::run).has_value());
  CHECK(next(JobState::stopping, JobEvent::succeed) == JobState::succeeded);
  CHECK_FALSE(next(JobState::stopping, JobEvent::restart).has_value());
}

TEST_CASE("names there and back") {
  for (int s = 0; s < 9; ++s) {
    const auto state = static_cast<JobState>(s);
    CHECK(job_state_from(to_string(state)) == state);
  }
  for (int s = 0; s < 6; ++s) {
    const auto state = static_cast<NodeState>(s);
    CHECK(node_state_from(to_string(state)) == state);
  }
  CHECK(rank_state_from("killed") == RankState::killed);
  CHECK(attempt_state_from("lost") == AttemptState::lost);
  CHECK_THROWS_AS(job_state_from("sleeping"), Error);
}
