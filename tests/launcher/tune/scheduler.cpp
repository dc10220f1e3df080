#include "launcher/tune/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/tune/asha.hpp"
#include "launcher/tune/pbt.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain;
using namespace dtrain::tune;
using namespace dtrain::tune::test;

namespace {

const char* const kPbtSpace =
    R"({"lr": {"loguniform": [1e-4, 1]}, "batch": {"choice": [16, 32, 64]},
  "layers": {"randint": [1, 9]}, "half": {"sample_from": "lr / 2"}, "epochs": 10})";

Params pbt_params(double lr) {
  return {{"lr", lr}, {"batch", 32}, {"layers", 4}, {"half", lr / 2}, {"epochs", 10}};
}

std::string scheduler_problems(std::string_view json, std::string_view space) {
  Problems problems;
  scheduler_spec_from_json(nlohmann::json::parse(json), space_of(space), {"scheduler"}, problems);
  return lines(problems);
}

}  // namespace

TEST_CASE("ASHA's rungs and decisions are Ray's") {
  const nlohmann::json data = recorded("asha");
  std::size_t reports = 0, stops = 0;
  for (const nlohmann::json& each : data["cases"]) {
    CAPTURE(each["case"].get<int>());
    AshaBracket bracket(each["grace_period"].get<double>(), each["max_t"].get<double>(),
                        each["reduction_factor"].get<double>(), each["bracket"].get<int>(),
                        each["stop_last_trials"].get<bool>());
    std::size_t wrong = 0;
    for (const nlohmann::json& report : each["reports"]) {
      const auto answer = bracket.report(report[0].get<TrialNumber>(), report[1].get<double>(),
                                         report[2].get<double>());
      wrong += answer.stop == (report[3] == 1) ? 0 : 1;
      stops += answer.stop ? 1 : 0;
      ++reports;
    }
    CHECK(wrong == 0);
    REQUIRE(bracket.rungs().size() == each["rungs"].size());
    for (std::size_t i = 0; i < bracket.rungs().size(); ++i) {
      const AshaBracket::Rung& rung = bracket.rungs()[i];
      CHECK(rung.milestone == each["rungs"][i][0].get<double>());
      CHECK(rung.trials.size() == each["rungs"][i][1].get<std::size_t>());
      const auto cutoff = rung.cutoff(each["reduction_factor"].get<double>());
      REQUIRE(cutoff.has_value() == !each["rungs"][i][2].is_null());
      if (cutoff) CHECK(*cutoff == each["rungs"][i][2].get<double>());
    }
  }
  MESSAGE(reports << " reports, " << stops << " stopped");
  CHECK(stops > 200);
}

TEST_CASE("ASHA stops what is not among the best of its rung, and says why") {
  const auto asha =
      scheduler_of(R"({"algorithm": "asha", "max_t": 9, "reduction_factor": 3})", Mode::max);
  for (TrialNumber trial = 0; trial < 5; ++trial) asha->added(trial, {});
  CHECK(asha->reported({0, 1, 0.5}).reason == "rung 1: it is the first there");
  CHECK(asha->reported({1, 1, 0.9}).action == Action::go_on);
  const Decision worse = asha->reported({2, 1, 0.6});
  CHECK(worse.action == Action::stop);
  CHECK(worse.reason == "rung 1: 0.6 is not among the best 1/3, which begins at 0.766667");
  CHECK(asha->reported({3, 1, NAN}).reason == "rung 1: the metric is no number");
  CHECK(asha->reported({1, 2, 0.9}).reason == "it is between rungs");
  CHECK(asha->reported({1, 9, 0.9}).reason == "it reached max_t, 9");
  // A trial that goes on from a checkpoint reports again.
  CHECK(asha->reported({0, 3, 0.9}).action == Action::go_on);
  CHECK(asha->reported({0, 2, 0.0}).reason == "2 was reported before");
  CHECK(asha->reported({77, 1, 0}).reason == "it is not a trial that runs");
  asha->ended(0);
  CHECK(asha->reported({0, 4, 0.0}).action == Action::go_on);
  CHECK(asha->state()["brackets"][0][0]["trials"] == 4);
}

TEST_CASE("ASHA's brackets: each trial in one, more in those with more rungs") {
  std::array<int, 3> counts{};
  for (TrialNumber trial = 0; trial < 1000; ++trial) {
    ++counts[asha_bracket({5, 4, 3}, 1, trial)];
  }
  CHECK((counts[0] > 600 && counts[0] < 730));  // e^0 : e^-1 : e^-2
  CHECK((counts[1] > 190 && counts[1] < 300));
  CHECK(asha_milestones(1, 1000, 10, 0) == std::vector<double>{1, 10, 100, 1000});
  CHECK(asha_milestones(1, 100, 4, 2) == std::vector<double>{16, 64});
  CHECK(asha_milestones(1, 10, 4, 9).empty());
}

// Algorithm 2 by hand: factor 2, rungs 1, 2 and 4.
TEST_CASE("promoting ASHA pauses trials and lets the best go on") {
  const auto asha = scheduler_of(
      R"({"algorithm": "asha", "max_t": 4, "reduction_factor": 2, "form": "promote"})", Mode::min);
  for (TrialNumber trial = 0; trial < 6; ++trial) asha->added(trial, {});
  CHECK(asha->reported({0, 1, 5}).action == Action::pause);  // the best of 1: 0 may go on
  CHECK_FALSE(asha->resume());
  CHECK(asha->reported({1, 1, 7}).reason == "rung 1: 7 is not yet among the best 1/2");
  const auto first = asha->resume();  // of 2 one may
  REQUIRE(first);
  CHECK(first->trial == 0);
  CHECK(first->reason == "rung 1: 5 is among the best 1/2");
  CHECK_FALSE(asha->resume());
  CHECK(asha->reported({2, 1, 6}).action == Action::pause);
  CHECK(asha->reported({3, 1, 4}).action == Action::go_on);  // of 4 two may: 3 and 0, which did
  CHECK_FALSE(asha->resume());
  CHECK(asha->reported({0, 2, 3}).action == Action::pause);
  CHECK(asha->reported({3, 2, 3.5}).action == Action::pause);
  CHECK(asha->reported({4, 1, NAN}).action == Action::pause);
  CHECK(asha->reported({5, 1, 9}).action == Action::pause);  // of 6 three may
  CHECK(asha->resume()->trial == 0);                         // the highest rung first
  CHECK(asha->resume()->trial == 2);
  CHECK_FALSE(asha->resume());
  CHECK(asha->reported({0, 4, 1}).reason == "it reached max_t, 4");
  asha->ended(0);
  asha->ended(1);  // it waits no more
  CHECK(asha->state()["brackets"][0][0]["paused"] == 2);
  CHECK(asha->state()["brackets"][0][2]["trials"] == 1);
}

TEST_CASE("at its end promoting ASHA takes its best to max_t") {
  const auto asha = scheduler_of(
      R"({"algorithm": "asha", "max_t": 16, "reduction_factor": 4, "form": "promote"})", Mode::max,
      {}, 5);
  for (TrialNumber trial = 0; trial < 4; ++trial) {
    asha->added(trial, {});
    asha->reported({trial, 1, 0.1 * static_cast<double>(trial)});
  }
  CHECK_FALSE(asha->resume());  // the last one, of four, went on at once
  CHECK(asha->reported({3, 4, 0.4}).action == Action::pause);
  CHECK_FALSE(asha->resume());  // the fifth is to come
  asha->added(4, {});
  CHECK_FALSE(asha->resume());  // and runs
  asha->ended(4);
  const auto last = asha->resume();
  REQUIRE(last);
  CHECK(last->trial == 3);
  CHECK(last->reason == "rung 4: 0.4 is the best of the highest rung, and no more trials come");
  CHECK_FALSE(asha->resume());
  CHECK(asha->reported({3, 16, 0.5}).action == Action::stop);
  asha->ended(3);
  CHECK_FALSE(asha->resume());  // one is there
}

TEST_CASE("promoting ASHA at ten thousand trials: about 1/4 go up each rung") {
  const auto asha = scheduler_of(
      R"({"algorithm": "asha", "max_t": 64, "reduction_factor": 4, "form": "promote"})", Mode::max);
  std::map<int, int> arrived;
  std::map<TrialNumber, int> at;
  // To the next milestone, and on while it may.
  const auto run = [&](TrialNumber trial) {
    Decision decision;
    while (decision.action == Action::go_on) {
      int& milestone = at[trial];
      milestone = milestone == 0 ? 1 : milestone * 4;
      ++arrived[milestone];
      decision = asha->reported(
          {trial, static_cast<double>(milestone), Stream(3, trial, "value").uniform()});
    }
  };
  for (TrialNumber trial = 0; trial < 10'000; ++trial) {
    while (const auto next = asha->resume()) run(next->trial);
    asha->added(trial, {});
    run(trial);
  }
  CHECK(arrived[1] == 10'000);
  CHECK((arrived[4] >= 2'500 && arrived[4] < 2'800));
  CHECK((arrived[64] >= 156 && arrived[64] < 200));
}

TEST_CASE("median stopping decides as Ray's") {
  const nlohmann::json data = recorded("median");
  std::size_t reports = 0, stops = 0;
  for (const nlohmann::json& each : data["cases"]) {
    CAPTURE(each["case"].get<int>());
    nlohmann::json spec = {{"algorithm", "median_stopping"}};
    spec["grace_period"] = each["grace_period"];
    spec["min_samples_required"] = each["min_samples_required"];
    const auto rule = scheduler_of(spec.dump(), each["mode"] == "max" ? Mode::max : Mode::min);
    std::size_t wrong = 0;
    std::set<TrialNumber> there;
    for (const nlohmann::json& report : each["reports"]) {
      const auto trial = report[0].get<TrialNumber>();
      if (there.insert(trial).second) rule->added(trial, {});
      const Decision decision =
          rule->reported({trial, report[1].get<double>(), report[2].get<double>()});
      const bool stop = decision.action == Action::stop;
      wrong += stop == (report[3] == 1) ? 0 : 1;
      stops += stop ? 1 : 0;
      ++reports;
      if (stop) rule->ended(trial);
    }
    CHECK(wrong == 0);
  }
  MESSAGE(reports << " reports, " << stops << " stopped");
  CHECK(stops > 100);
}

TEST_CASE("median stopping says why, and takes NaN for the worst") {
  const auto rule = scheduler_of(
      R"({"algorithm": "median_stopping", "grace_period": 2, "min_samples_required": 2})",
      Mode::min);
  for (TrialNumber trial = 0; trial < 4; ++trial) rule->added(trial, {});
  CHECK(rule->reported({0, 1, 5}).reason == "it is in its grace period, up to 2");
  rule->reported({0, 2, 4});
  CHECK(rule->reported({1, 2, 6}).reason == "only 1 others came as far, and 2 are wanted");
  CHECK(rule->reported({2, 2, 5.5}).reason ==
        "its best, 5.5, is worse than the median of 2 others, 5");
  CHECK(rule->reported({3, 2, NAN}).reason ==
        "its best, no number, is worse than the median of 3 others, 5.5");
}

TEST_CASE("median stopping compares at steps, where times are not whole or far") {
  const auto rule = scheduler_of(
      R"({"algorithm": "median_stopping", "grace_period": 0.3, "min_samples_required": 3})",
      Mode::max);
  // The plain way, over all that was reported.
  const auto step_of = [](double time) {
    double unit = 1.0 / 64;
    while (unit * 64 <= time) unit *= 2;
    while (unit * 32 > time) unit /= 2;
    return std::max(std::floor(time / unit) * unit, 0.3);
  };
  CHECK(step_of(64) == 64);
  CHECK(step_of(67) == 66);
  std::vector<std::vector<std::pair<double, double>>> all(6);
  Stream chance(5, 5, "times");
  std::vector<double> at(6);
  std::vector<double> bests(6, -INFINITY);
  for (TrialNumber trial = 0; trial < 6; ++trial) rule->added(trial, {});
  std::size_t stops = 0, compared = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto trial = static_cast<std::size_t>(chance.below(6));
    const double before = at[trial];
    at[trial] += chance.uniform();
    const double value = chance.normal() - static_cast<double>(trial);
    const double step = step_of(at[trial]);
    if (at[trial] >= 0.3) all[trial].emplace_back(at[trial], value);
    std::vector<double> means;
    for (std::size_t other = 0; other < 6; ++other) {
      if (other == trial || at[other] < step) continue;
      double sum = 0;
      int count = 0;
      for (const auto& [time, of] : all[other]) {
        if (time > step) continue;
        sum += of;
        ++count;
      }
      if (count > 0) means.push_back(sum / count);
    }
    std::sort(means.begin(), means.end());
    double& best = bests[trial];
    best = std::max(best, value);
    const std::size_t half = means.size() / 2;
    const bool is_compared = at[trial] >= 0.3 && before < step && means.size() >= 3;
    const bool stop = is_compared &&
                      best < (means.size() % 2 ? means[half] : (means[half - 1] + means[half]) / 2);
    REQUIRE((rule->reported({trial, at[trial], value}).action == Action::stop) == stop);
    stops += stop ? 1 : 0;
    compared += is_compared ? 1 : 0;
  }
  CHECK(stops > 0);
  CHECK(compared > 300);
}

TEST_CASE("median stopping says when a trial is next compared") {
  const auto rule = scheduler_of("\"median_stopping\"", Mode::max);
  rule->added(0, {});
  CHECK(rule->reported({0, 100, 1}).reason == "only 0 others came as far, and 3 are wanted");
  CHECK(rule->reported({0, 101, 1}).reason == "it is next compared at 102");
  CHECK(rule->reported({0, 102, 1}).reason == "only 0 others came as far, and 3 are wanted");
}

TEST_CASE("median stopping costs little where no two times are the same, or trials come late" *
          doctest::test_suite("workload")) {
  for (const bool seconds : {true, false}) {
    CAPTURE(seconds);
    const auto rule = scheduler_of("\"median_stopping\"", Mode::max);
    Stream chance(6, 6, "times");
    const auto start = std::chrono::steady_clock::now();
    std::size_t reports = 0, stops = 0;
    for (TrialNumber trial = 0; trial < 10'000; ++trial) {
      rule->added(trial, {});
      double time = 0;
      for (int i = 0; i < (seconds ? 30 : 300); i += seconds ? 1 : 10) {
        time += seconds ? 1 + 30 * chance.uniform() : 10;
        stops += rule->reported({trial, time, chance.uniform()}).action == Action::stop ? 1 : 0;
        ++reports;
      }
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    const double each = took.count() / static_cast<double>(reports);
    MESSAGE(reports << " reports: " << each << " us each, " << stops << " stops");
    CHECK(stops > 1'000);
  }
}

TEST_CASE("PBT's worst and best are Ray's") {
  const nlohmann::json data = recorded("pbt");
  std::size_t moved = 0;
  for (const nlohmann::json& each : data["cases"]) {
    CAPTURE(each["case"].get<int>());
    const auto scores = each["scores"].get<std::vector<double>>();
    std::vector<std::size_t> order(scores.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
    const std::size_t count = pbt_quantile(scores.size(), each["quantile_fraction"].get<double>());
    CHECK(std::vector<std::size_t>(order.begin(), order.begin() + static_cast<long>(count)) ==
          each["lower"].get<std::vector<std::size_t>>());
    CHECK(std::vector<std::size_t>(order.end() - static_cast<long>(count), order.end()) ==
          each["upper"].get<std::vector<std::size_t>>());
    moved += count;
  }
  CHECK(moved > 50);
}

TEST_CASE("PBT explores within the domains") {
  const SearchSpace space = space_of(kPbtSpace);
  Problems problems;
  PbtSpec spec = scheduler_spec_from_json(nlohmann::json::parse(R"({"algorithm": "pbt",
      "hyperparam_mutations": {"lr": "loguniform:1e-4:1", "batch": [16, 32, 64],
                               "layers": {"randint": [1, 9]}}})"),
                                          space, {"scheduler"}, problems)
                     .pbt;
  REQUIRE(problems.empty());
  std::map<double, int> lrs;
  std::map<int, int> batches;
  int resampled = 0;
  for (int i = 0; i < 1000; ++i) {
    const Explored explored = pbt_explore(spec, space, pbt_params(0.1), 1, 5, i);
    CHECK(explored.params.at("epochs") == 10);
    const double lr = explored.params.at("lr").get<double>();
    CHECK(explored.params.at("half") == lr / 2);
    REQUIRE(explored.changes.size() == 3);
    if (explored.changes[2].find("resampled") != std::string::npos) {
      ++resampled;
    } else {
      ++lrs[lr];
    }
    ++batches[explored.params.at("batch").get<int>()];
    CHECK(explored.params.at("layers").is_number_integer());
    CHECK(pbt_explore(spec, space, pbt_params(0.1), 1, 5, i).params == explored.params);
  }
  CHECK(lrs.size() == 2);  // times 1.2 and 0.8
  CHECK(lrs.begin()->first == doctest::Approx(0.08));
  CHECK((resampled > 200 && resampled < 300));
  CHECK(batches[16] + batches[64] > 750);
  spec.resample_probability = 0;
  for (int i = 0; i < 20; ++i) {
    CHECK(pbt_explore(spec, space, pbt_params(1), 1, 5, i).params.at("lr") <= 1);
  }
}

TEST_CASE("PBT copies the best to the worst, and its record can be run again") {
  const SearchSpace space = space_of(kPbtSpace);
  Problems problems;
  SchedulerSpec spec = scheduler_spec_from_json(
      nlohmann::json::parse(R"({"algorithm": "pbt", "perturbation_interval": 2,
                                "quantile_fraction": 0.25})"),
      space, {"scheduler"}, problems);
  REQUIRE(problems.empty());
  CHECK(spec.pbt.mutations.size() == 3);
  Pbt pbt(spec.pbt, space, Mode::max, 7, 4);
  Pbt same(spec.pbt, space, Mode::max, 7, 4);
  const auto both = [&](const Measured& report) {
    const Decision decision = pbt.reported(report);
    const Decision other = same.reported(report);
    CHECK(decision.reason == other.reason);
    CHECK(decision.exploit.has_value() == other.exploit.has_value());
    if (decision.exploit) CHECK(decision.exploit->params == other.exploit->params);
    return decision;
  };
  for (TrialNumber trial = 0; trial < 4; ++trial) {
    pbt.added(trial, pbt_params(0.1 + 0.1 * static_cast<double>(trial)));
    same.added(trial, pbt_params(0.1 + 0.1 * static_cast<double>(trial)));
  }
  CHECK(both({0, 1, 0.1}).reason == "it is next compared at 2");
  for (TrialNumber trial = 1; trial < 4; ++trial) {
    CHECK(both({trial, 2, 0.1 * static_cast<double>(trial)}).action == Action::go_on);
  }
  const Decision early = both({0, 2, 0.05});
  CHECK(early.reason == "it is 4. of 4, and none of the best has a checkpoint yet");
  pbt.checkpointed(3, 2);
  same.checkpointed(3, 2);
  CHECK(both({0, 3, 0.05}).action == Action::go_on);
  const Decision exploit = both({0, 4, 0.05});
  REQUIRE(exploit.action == Action::exploit);
  CHECK(exploit.reason == "it is 4. of 4, and goes on from trial 3, whose last value is 0.3");
  CHECK(exploit.exploit->donor == 3);
  CHECK(exploit.exploit->time == 2);
  CHECK_FALSE(exploit.exploit->waits);
  CHECK(exploit.exploit->changes.size() == 3);
  // It goes on from 2: what it reports then is new.
  CHECK(both({0, 3, 0.35}).action == Action::go_on);
  CHECK(both({0, 4, 0.5}).action == Action::go_on);
  pbt.checkpointed(0, 4);
  same.checkpointed(0, 4);
  const Decision second = both({1, 4, NAN});  // diverged: the worst
  REQUIRE(second.action == Action::exploit);
  CHECK(second.exploit->donor == 0);
  REQUIRE(pbt.record().size() == 2);
  CHECK(pbt.record()[1].before == 0);

  const std::vector<ScheduleStep> schedule = pbt.schedule_of(1);
  REQUIRE(schedule.size() == 3);
  CHECK((schedule[0].time == 0 && schedule[0].params == pbt_params(0.4)));
  CHECK((schedule[1].time == 2 && schedule[1].params == exploit.exploit->params));
  CHECK((schedule[2].time == 4 && schedule[2].params == second.exploit->params));

  SchedulerSpec replay_spec;
  replay_spec.algorithm = SchedulerSpec::Algorithm::pbt_replay;
  replay_spec.schedule = schedule;
  const auto replay = scheduler_of(to_json(replay_spec).dump(), Mode::max, space);
  replay->added(0, schedule[0].params);
  CHECK(replay->reported({0, 1, 1}).reason == "its parameters change at 2");
  const std::string waits = "its parameters change with its first checkpoint at ";
  CHECK(replay->reported({0, 2, 1}).reason == waits + "2 or later");
  replay->checkpointed(0, 2);
  const Decision step = replay->reported({0, 3, 1});
  REQUIRE(step.action == Action::exploit);
  CHECK((step.exploit->donor == 0 && step.exploit->time == 2));
  CHECK(step.exploit->params == schedule[1].params);
  // Not from 2 again: the parameters from there to 4 are part of what it is.
  CHECK(replay->reported({0, 3, 1}).reason == "its parameters change at 4");
  CHECK(replay->reported({0, 4, 1}).reason == waits + "4 or later");
  replay->checkpointed(0, 3);
  CHECK(replay->reported({0, 5, 1}).reason == waits + "4 or later");
  replay->checkpointed(0, 5);  // its checkpoints need not fall on the steps
  const Decision last = replay->reported({0, 6, 1});
  REQUIRE(last.action == Action::exploit);
  CHECK((last.exploit->donor == 0 && last.exploit->time == 5));
  CHECK(last.exploit->params == schedule[2].params);
  CHECK(replay->reported({0, 7, 1}).reason == "the schedule is at its end");
}

TEST_CASE("PBT gives each its turn where there are more trials than places") {
  const SearchSpace space = space_of(kPbtSpace);
  const auto pbt =
      scheduler_of(R"({"algorithm": "pbt", "perturbation_interval": 1})", Mode::max, space, 3);
  pbt->added(0, pbt_params(0.1));
  CHECK_FALSE(pbt->resume());
  CHECK(pbt->reported({0, 1, 1}).reason == "it is 1. of 1; others wait for their turn");
  CHECK_FALSE(pbt->resume());  // others begin first
  pbt->added(1, pbt_params(0.1));
  CHECK(pbt->reported({1, 2, 2}).action == Action::pause);
  pbt->added(2, pbt_params(0.1));
  CHECK(pbt->reported({2, 1, 3}).action == Action::pause);
  CHECK(pbt->resume()->trial == 0);
  CHECK(pbt->resume()->trial == 2);
  pbt->ended(1);
  CHECK_FALSE(pbt->resume());
  CHECK(pbt->reported({0, 2, 4}).action == Action::go_on);
}

TEST_CASE("what a scheduler says is read, with all that is wrong") {
  const char* const space = R"({"lr": {"uniform": [0, 1]}, "twice": {"sample_from": "lr * 2"}})";
  CHECK(scheduler_problems("null", space).empty());
  CHECK(scheduler_problems("\"asha\"", space).empty());
  CHECK(scheduler_problems("\"median_stopping\"", space).empty());
  CHECK(scheduler_problems("\"pbt\"", space).empty());
  CHECK(scheduler_problems("\"hyperband\"", space) ==
        "scheduler.algorithm: must be one of fifo, asha, median_stopping, pbt, pbt_replay, not "
        "\"hyperband\"\n");
  CHECK(scheduler_problems(R"({"algorithm": "asha", "max_t": 3, "grace_period": 5,
      "reduction_factor": 1, "brackets": 0, "form": "promote", "stop_last_trials": false,
      "reduction": 3})",
                           space) ==
        "scheduler.reduction_factor: must be a number above 1.0 and up to 1000000.0, not 1\n"
        "scheduler.brackets: must be a whole number from 1 to 32, not 0\n"
        "scheduler.grace_period: 5 is beyond max_t, 3\n"
        "scheduler.stop_last_trials: can be false for form: stop alone\n"
        "scheduler.reduction: is not known here\n");
  CHECK(
      scheduler_problems(R"({"algorithm": "pbt", "quantile_fraction": 0.6,
      "perturbation_factors": [0], "hyperparam_mutations": {"lr": 3, "twice": [1, 2], "x": [1]}})",
                         space) ==
      "scheduler.quantile_fraction: must be a number from 0.0 to 0.5, not 0.6\n"
      "scheduler.perturbation_factors: must be a list of numbers above 0, not [0]\n"
      "scheduler.hyperparam_mutations.lr: must be a list or a domain, not 3\n"
      "scheduler.hyperparam_mutations.lr: must be a list or a domain that is sampled, not 3\n"
      "scheduler.hyperparam_mutations.twice: is computed of others, which can mutate in its place\n"
      "scheduler.hyperparam_mutations.x: is no parameter of the space\n");
  CHECK(scheduler_problems(R"({"algorithm": "pbt_replay", "schedule": [{"time": 3, "params": {}},
      {"time": 2, "params": {"y": 1}}]})",
                           space) ==
        "scheduler.schedule[1].time: is before that of the step before it\n"
        "scheduler.schedule[1].params: there is no parameter \"y\" in the space\n");
  for (const char* json : {R"("asha")", R"("pbt")", R"("median_stopping")", R"("fifo")",
                           R"({"algorithm": "asha", "form": "promote", "brackets": 3})"}) {
    Problems problems;
    const auto spec = scheduler_spec_from_json(nlohmann::json::parse(json), space_of(space),
                                               {"scheduler"}, problems);
    const auto again =
        scheduler_spec_from_json(to_json(spec), space_of(space), {"scheduler"}, problems);
    CHECK(problems.empty());
    CHECK(to_json(again) == to_json(spec));
  }
}

TEST_CASE("what does not go together is said") {
  SamplerSpec sampler;
  SchedulerSpec scheduler;
  Problems problems;
  sampler.algorithm = SamplerSpec::Algorithm::tpe;
  check_together(sampler, scheduler, 1, {"scheduler"}, problems);
  CHECK(problems.empty());
  scheduler.algorithm = SchedulerSpec::Algorithm::pbt;
  check_together(sampler, scheduler, 1, {"scheduler"}, problems);
  scheduler.algorithm = SchedulerSpec::Algorithm::pbt_replay;
  check_together(sampler, scheduler, 2, {"scheduler"}, problems);
  CHECK(lines(problems) ==
        "scheduler: pbt changes parameters under way, of which tpe would learn wrong things\n"
        "scheduler: pbt wants two trials at least\n"
        "scheduler: pbt_replay runs one trial, not 2\n");
}

TEST_CASE("ten thousand trials: a report costs little" * doctest::test_suite("workload")) {
  const SearchSpace space = space_of(kPbtSpace);
  for (const char* json : {R"({"algorithm": "asha", "max_t": 1000})",
                           R"({"algorithm": "asha", "max_t": 1000, "form": "promote"})",
                           R"({"algorithm": "median_stopping"})",
                           R"({"algorithm": "pbt", "perturbation_interval": 1})"}) {
    const auto scheduler = scheduler_of(json, Mode::max, space, 10'000);
    for (TrialNumber trial = 0; trial < 10'000; ++trial) scheduler->added(trial, pbt_params(0.1));
    const auto start = std::chrono::steady_clock::now();
    std::size_t reports = 0;
    for (double time = 1; time <= 5; ++time) {
      for (TrialNumber trial = 0; trial < 10'000; ++trial) {
        scheduler->reported({trial, time, Stream(1, trial, "value").uniform() + time});
        if (trial % 2 == 0) scheduler->checkpointed(trial, time);
        ++reports;
      }
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    const double each = took.count() / static_cast<double>(reports);
    MESSAGE(std::string(json) << ": " << each << " us a report");
    CHECK(each < 1000);
  }
}
