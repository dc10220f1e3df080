#include "agent/head/engine/search.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "launcher/tune/random.hpp"

using namespace dtrain;
using namespace dtrain::head;
using State = Trial::State;

namespace {

tune::SearchSpec spec_of(const std::string& more, const std::string& space = R"({
    "lr": {"uniform": [0, 1]}})") {
  nlohmann::json json = nlohmann::json::parse(R"({
    "job": {"name": "mnist", "command": ["./train", "--lr={lr:0}"], "workdir": "/w"},
    "metric": "accuracy", "mode": "max"})");
  json["space"] = nlohmann::json::parse(space);
  json.update(nlohmann::json::parse(more));
  if (!json.contains("search")) json["search"]["seed"] = 1;
  tune::Problems problems;
  tune::SearchSpec spec = tune::search_spec_from_json(json, problems);
  problems.check();
  return spec;
}

std::string line(const SearchRecord& record) {
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value).dump() : "-";
  };
  return std::to_string(record.seq) + " " + std::to_string(static_cast<int>(record.kind)) + " t" +
         std::to_string(record.trial) + " " + std::to_string(record.number) + " " +
         std::to_string(record.iteration) + " " + number(record.time) + " " + number(record.value) +
         " " + record.job + " " + record.text;
}

Search replayed(const tune::SearchSpec& spec, const std::vector<SearchRecord>& records) {
  Search search(spec);
  for (const SearchRecord& record : records) search.apply(record);
  return search;
}

// Records as a table keeps them: the later one of a number takes the place of the earlier.
void keep(std::vector<SearchRecord>& records, SearchRecord record) {
  for (SearchRecord& each : records) {
    if (each.seq != record.seq) continue;
    each = std::move(record);
    return;
  }
  records.push_back(std::move(record));
}

bool equal(const Search& a, const Search& b) {
  const auto ending = [](const Search& search) {
    const auto end = search.ending();
    return end ? std::to_string(static_cast<int>(end->state)) + end->reason : "";
  };
  return a.trials() == b.trials() && a.to_stop() == b.to_stop() && a.to_go_on() == b.to_go_on() &&
         a.alive() == b.alive() && a.halt() == b.halt() && a.more() == b.more() &&
         ending(a) == ending(b) && a.scheduler_state() == b.scheduler_state() &&
         (!a.more() || a.suggest() == b.suggest());
}

// A cluster that runs a search: a few places, jobs that report, fail and end. Every choice is by
// chance of `seed`, so that a run can be had again, with heads that die in between.
class Simulation {
 public:
  Simulation(tune::SearchSpec spec, std::uint64_t seed, int places = 3)
      : spec_(std::move(spec)), search(spec_), chance_(seed, 0, "world"), places_(places) {}

  int length = 9;      // reports of a program that is left alone
  double failing = 0;  // of legs, by chance
  bool checkpoints = true;
  bool steps = true;
  bool dies = false;    // the head, again and again
  bool checks = false;  // that what is replayed is the same, at every record
  std::function<void(Simulation&)> each = [](Simulation&) {};

  void run() {
    for (int turn = 0; turn < 20'000 && !is_over; ++turn) {
      if (dies && chance_dies_.below(3) == 0) search = replayed(spec_, records);
      look();
      each(*this);
      if (!is_over) progress();
    }
  }

  void look() {
    const std::set<tune::TrialNumber> stops = search.to_stop();
    for (const auto trial : stops) stopping_.insert(trial);
    const std::set<tune::TrialNumber> next = search.to_go_on();
    for (const auto trial : next) begin(trial);
    while (static_cast<int>(search.alive().size()) < places_) {
      if (auto record = search.resumed()) {
        put(*record);
        const std::set<tune::TrialNumber> now = search.to_go_on();
        for (const auto trial : now) begin(trial);
      } else if (search.more()) {
        const JobId job("job-" + std::to_string(++jobs_));
        const auto trial = search.trials().size();
        put(search.started(search.suggest(), job));
        reports_[trial] = 0;
      } else {
        break;
      }
    }
    if (const auto end = search.ending()) {
      put(search.ended(end->state, end->reason));
      ended = *end;
      is_over = true;
    }
  }

  void put(SearchRecord record) {
    all.push_back(line(record));
    keep(records, std::move(record));
    if (checks) {
      const bool same = equal(replayed(spec_, records), search);
      CHECK_MESSAGE(same, "after ", all.back());
    }
  }

  std::vector<double> values() const {
    std::vector<double> values;
    for (const Trial& trial : search.trials()) values.push_back(trial.value.value_or(-1));
    return values;
  }
  int count(State state) const {
    return static_cast<int>(
        std::count_if(search.trials().begin(), search.trials().end(),
                      [&](const Trial& each_) { return each_.state == state; }));
  }

 private:
  void begin(tune::TrialNumber number) {
    const Trial& trial = *search.find(number);
    const auto from = trial.from ? trial.from : trial.checkpoint;
    reports_[number] = from ? static_cast<int>(from->step) : 0;
    put(search.goes_on_as(number, JobId("job-" + std::to_string(++jobs_))));
  }

  void progress() {
    std::vector<tune::TrialNumber> running;
    for (const auto trial : search.alive()) {
      if (search.find(trial)->leg_lives) running.push_back(trial);
    }
    if (running.empty()) return;
    const auto number = running[static_cast<std::size_t>(chance_.below(running.size()))];
    if (stopping_.contains(number) && chance_.below(2) == 0) {
      stopping_.erase(number);
      put(search.leg_ended(number, JobState::stopped, "stopped"));
      return;
    }
    if (chance_.uniform() < failing) {
      stopping_.erase(number);
      put(search.leg_ended(number, JobState::failed, "exit code 1"));
      return;
    }
    int& done = reports_[number];
    if (done == length) {
      stopping_.erase(number);
      put(search.leg_ended(number, JobState::succeeded, ""));
      return;
    }
    ++done;
    const auto& params = search.find(number)->params;
    const double lr = params.contains("lr") ? params.at("lr").get<double>() : 0;
    nlohmann::json metrics;
    metrics["accuracy"] = 1 - (lr - 0.3) * (lr - 0.3) + 0.001 * done;
    if (auto record = search.reported(
            number, steps ? std::optional<std::int64_t>(done) : std::nullopt, metrics)) {
      put(*record);
    }
    if (!checkpoints) return;
    if (auto record = search.checkpointed(number, done, done)) put(*record);
  }

  tune::SearchSpec spec_;

 public:
  Search search;
  std::vector<SearchRecord> records;
  std::vector<std::string> all;
  bool is_over = false;
  Search::Ending ended;

 private:
  tune::Stream chance_;
  tune::Stream chance_dies_{7, 7, "dies"};
  int places_;
  int jobs_ = 0;
  std::map<tune::TrialNumber, int> reports_;
  std::set<tune::TrialNumber> stopping_;
};

// Two trials, of which the second is to go on from the first one's checkpoint.
Search exploiting(bool steps, std::vector<SearchRecord>& records) {
  Search search(
      spec_of(R"({"num_samples": 2, "scheduler": {"algorithm": "pbt", "perturbation_interval": 2,
                  "quantile_fraction": 0.5}})"));
  for (const char* job : {"a", "b"}) {
    records.push_back(search.started({{"lr", 0.5}}, JobId(job)));
  }
  for (std::int64_t i = 1; i <= 4; ++i) {
    for (const tune::TrialNumber trial : {0, 1}) {
      auto record = search.reported(trial, steps ? std::optional(10 * i) : std::nullopt,
                                    {{"accuracy", trial == 0 ? 0.9 : 0.1 + 0.1 * i}});
      REQUIRE(record);
      records.push_back(*record);
    }
    if (i == 2) records.push_back(*search.checkpointed(0, 7, 20));
  }
  CHECK(search.to_stop() == std::set<tune::TrialNumber>{1});
  CHECK(search.pinned(JobId("a")) == std::set<int>{7});
  return search;
}

const char* kSearches[] = {
    R"({"num_samples": 12})",
    R"({"num_samples": 12, "stop": {"training_iteration": 5}})",
    R"({"num_samples": 16, "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3}})",
    R"({"num_samples": 16, "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3,
        "form": "promote"}})",
    R"({"num_samples": 10, "scheduler": {"algorithm": "median_stopping"}})",
    R"({"num_samples": 6, "scheduler": {"algorithm": "pbt", "perturbation_interval": 2}})",
    R"({"num_samples": 20, "search": {"algorithm": "tpe", "seed": 3, "n_startup_trials": 4},
        "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}})",
};

}  // namespace

TEST_CASE("a search that is told its records again stands where it stood, after each of them") {
  for (const char* text : kSearches) {
    CAPTURE(text);
    for (const std::uint64_t seed : {1, 2}) {
      Simulation world(spec_of(text), seed);
      world.checks = true;
      world.failing = 0.02;
      world.steps = seed == 1;
      world.run();
      CHECK(world.is_over);
      CHECK(world.search.trials().size() == world.search.total());
    }
  }
}

TEST_CASE("a search whose heads die again and again decides as one whose head lives") {
  for (const char* text : kSearches) {
    CAPTURE(text);
    Simulation whole(spec_of(text), 5);
    whole.run();
    Simulation dying(spec_of(text), 5);
    dying.dies = true;
    dying.run();
    REQUIRE(whole.is_over);
    CHECK(whole.all == dying.all);
    CHECK(whole.search.trials() == dying.search.trials());
  }
}

TEST_CASE("asha stops some, and what reaches max_t is complete") {
  Simulation world(spec_of(kSearches[2]), 1);
  world.length = 100;
  world.run();
  CHECK(world.ended.state == SearchState::succeeded);
  CHECK(world.count(State::stopped) > 5);
  CHECK(world.count(State::complete) > 0);
  CHECK(world.count(State::stopped) + world.count(State::complete) == 16);
  for (const Trial& trial : world.search.trials()) {
    CHECK(trial.iteration <= 9);
    CHECK((trial.state == State::complete) == (trial.iteration == 9));
    CHECK(trial.legs.size() == 1);
  }
}

TEST_CASE("asha that promotes pauses trials, and the best go on from their checkpoints") {
  Simulation world(spec_of(kSearches[3]), 1);
  world.length = 100;
  world.run();
  CHECK(world.ended.state == SearchState::succeeded);
  CHECK(world.count(State::paused) == 0);
  std::size_t several = 0;
  for (const Trial& trial : world.search.trials()) {
    several += trial.legs.size() > 1 ? 1 : 0;
    if (trial.state == State::stopped) CHECK(trial.reason.starts_with("it stays behind"));
  }
  CHECK(several > 0);
  CHECK(world.count(State::stopped) > 0);
  const Trial* best = world.search.best();
  REQUIRE(best != nullptr);
  CHECK(best->state == State::complete);
}

TEST_CASE("a trial without steps or checkpoints begins anew when it is promoted, and is heard") {
  Simulation world(spec_of(kSearches[3]), 3);
  world.length = 100;
  world.steps = false;
  world.checkpoints = false;
  world.run();
  CHECK(world.is_over);
  CHECK(world.count(State::complete) > 0);
}

TEST_CASE("pbt moves trials to better ones' checkpoints, which are pinned until the next leg") {
  Simulation world(spec_of(kSearches[5]), 4);
  world.length = 20;
  bool pinned = false;
  world.each = [&](Simulation& now) {
    for (const Trial& trial : now.search.trials()) {
      if (!trial.from) continue;
      pinned = true;
      CHECK(now.search.pinned(trial.from->job).contains(trial.from->number));
    }
  };
  world.run();
  CHECK(pinned);
  int exploits = 0;
  for (const Trial& trial : world.search.trials()) {
    exploits += trial.exploits;
    CHECK(trial.iteration <= 20);
    CHECK_FALSE(trial.from);
    if (trial.exploits > 0) CHECK(world.search.schedule_of(trial.number).size() > 1);
  }
  CHECK(exploits > 2);
  CHECK(world.search.exploitations().size() == static_cast<std::size_t>(exploits));
}

TEST_CASE("without anybody who decides by reports only each trial's last one is kept") {
  Simulation world(spec_of(R"({"num_samples": 4, "search": {"algorithm": "tpe", "seed": 1}})"), 1);
  world.length = 50;
  world.checkpoints = false;
  world.run();
  int reports = 0;
  for (const SearchRecord& record : world.records) {
    if (record.kind != SearchRecord::Kind::reported) continue;
    ++reports;
    CHECK(record.iteration == 50);
  }
  CHECK(reports == 4);
  CHECK(equal(replayed(world.search.spec(), world.records), world.search));
}

TEST_CASE("what is reported again counts once, and what is no report of the metric not at all") {
  Search search(spec_of(R"({"num_samples": 1, "stop": {"loss": "<= 0.1"}})"));
  search.started({{"lr", 0.1}}, JobId("a"));
  const auto report = [&](std::optional<std::int64_t> step, const char* metrics) {
    return search.reported(0, step, nlohmann::json::parse(metrics)).has_value();
  };
  CHECK_FALSE(report(1, R"({"loss": 3})"));
  CHECK(report(10, R"({"accuracy": 0.1})"));
  CHECK(report(20, R"({"accuracy": 0.3})"));
  CHECK(report(30, R"({"accuracy": "nan"})"));
  CHECK(search.find(0)->iteration == 3);
  CHECK(std::isnan(*search.find(0)->value));
  CHECK(search.find(0)->best == 0.3);
  CHECK(search.find(0)->best_iteration == 2);
  CHECK_FALSE(report(10, R"({"accuracy": 0.9})"));
  CHECK_FALSE(report(30, R"({"accuracy": 0.9})"));
  CHECK_FALSE(search.reported(1, 40, {{"accuracy", 1}}));
  const auto late = search.checkpointed(0, 0, 20);
  CHECK(late->iteration == 2);
  CHECK(search.checkpointed(0, 1, 35)->iteration == 3);
  // A report of the step of a checkpoint that came before it.
  CHECK(report(35, R"({"accuracy": 0.5})"));
  CHECK(search.find(0)->checkpoint->iteration == 4);
  CHECK(search.to_stop().empty());
  CHECK(report(36, R"({"loss": 0.05})"));
  CHECK(search.to_stop() == std::set<tune::TrialNumber>{0});
  CHECK_FALSE(report(40, R"({"accuracy": 0.9})"));
  search.leg_ended(0, JobState::stopped, "stopped");
  CHECK(search.find(0)->state == State::complete);
  CHECK(search.find(0)->reason == "loss is 0.05, <= 0.1");
  CHECK(search.find(0)->value == 0.5);
}

TEST_CASE("a condition is met by a second report of the same step") {
  std::vector<SearchRecord> records;
  Search search(spec_of(R"({"num_samples": 1, "stop": {"accuracy": 0.95, "val_accuracy": 0.95}})"));
  records.push_back(search.started({{"lr", 0.1}}, JobId("a")));
  const auto report = [&](std::int64_t step, const char* metrics) {
    const auto record = search.reported(0, step, nlohmann::json::parse(metrics));
    if (record) records.push_back(*record);
    return record.has_value();
  };
  CHECK(report(10, R"({"accuracy": 0.5})"));
  CHECK_FALSE(report(10, R"({"val_accuracy": 0.9})"));
  CHECK(report(20, R"({"accuracy": 0.6})"));
  CHECK_FALSE(report(10, R"({"val_accuracy": 0.96})"));  // after a restart
  CHECK_FALSE(report(20, R"({"accuracy": 0.96})"));      // the same iteration again
  CHECK(search.to_stop().empty());
  CHECK(report(20, R"({"val_accuracy": 0.97})"));
  CHECK(search.to_stop() == std::set<tune::TrialNumber>{0});
  CHECK(search.find(0)->iteration == 2);
  CHECK(search.find(0)->value == 0.6);
  CHECK(equal(replayed(search.spec(), records), search));
  records.push_back(search.leg_ended(0, JobState::stopped, "stopped"));
  CHECK(search.find(0)->state == State::complete);
  CHECK(search.find(0)->reason == "val_accuracy is 0.97, >= 0.95");
  CHECK(equal(replayed(search.spec(), records), search));
}

TEST_CASE("an exploit that comes to nothing leaves the trial what it was") {
  std::vector<SearchRecord> records;
  Search search = exploiting(true, records);
  CHECK(search.find(1)->params == tune::Params{{"lr", 0.5}});
  CHECK(search.find(1)->iteration == 4);
  const auto put = [&](std::optional<SearchRecord> record) {
    REQUIRE(record);
    records.push_back(*record);
    CHECK(equal(replayed(search.spec(), records), search));
  };
  // It had one report left, and ends before it can be stopped.
  put(search.reported(1, 50, {{"accuracy", 0.6}}));
  put(search.checkpointed(1, 3, 50));
  put(search.leg_ended(1, JobState::succeeded, ""));
  const Trial& trial = *search.find(1);
  CHECK(trial.state == State::complete);
  CHECK(trial.params == tune::Params{{"lr", 0.5}});
  CHECK(trial.value == 0.6);
  CHECK(trial.iteration == 5);
  CHECK(trial.step == 50);
  CHECK(trial.exploits == 0);
  CHECK(trial.checkpoint->number == 3);
  CHECK(search.pinned(JobId("a")).empty());
  CHECK(search.exploitations().empty());
  CHECK(search.schedule_of(1).size() == 1);
  CHECK(search.schedule_of(1)[0]["params"] == nlohmann::json{{"lr", 0.5}});
}

TEST_CASE("a trial that is exploited has no value of the line that it left") {
  std::vector<SearchRecord> records;
  Search search = exploiting(true, records);
  const auto put = [&](SearchRecord record) {
    records.push_back(record);
    CHECK(equal(replayed(search.spec(), records), search));
  };
  put(search.leg_ended(1, JobState::stopped, ""));
  CHECK(search.find(1)->next_params);
  CHECK(search.find(1)->from->number == 7);
  // One of the leg that has ended makes it no donor.
  put(*search.checkpointed(1, 4, 40));
  put(search.goes_on_as(1, JobId("c")));
  const Trial& trial = *search.find(1);
  CHECK(trial.params != tune::Params{{"lr", 0.5}});
  CHECK_FALSE(trial.next_params);
  CHECK_FALSE(trial.value);
  CHECK_FALSE(trial.best);
  CHECK_FALSE(trial.checkpoint);
  CHECK(trial.exploits == 1);
  CHECK(trial.iteration == 2);
  CHECK(trial.step == 20);
  CHECK(trial.time == 2);
  CHECK(search.exploitations().size() == 1);
  put(search.leg_ended(1, JobState::succeeded, ""));
  CHECK(search.find(1)->state == State::complete);
  CHECK_FALSE(search.find(1)->value);
  CHECK(search.best()->number == 0);
}

TEST_CASE("a search that stops for good does not exploit any more, one that goes on does") {
  for (const auto halt : {Search::Halt::time_budget, Search::Halt::person}) {
    std::vector<SearchRecord> records;
    Search search = exploiting(true, records);
    search.halted(halt, "over");
    search.leg_ended(0, JobState::stopped, "");
    search.leg_ended(1, JobState::stopped, "");
    const auto ending = search.ending();
    REQUIRE(ending);
    search.ended(ending->state, ending->reason);
    CHECK(search.find(1)->params == tune::Params{{"lr", 0.5}});
    CHECK(search.find(1)->value == 0.5);
    if (halt == Search::Halt::time_budget) {
      CHECK_FALSE(search.find(1)->next_params);
      CHECK(search.exploitations().empty());
      continue;
    }
    search.continued();
    CHECK(search.to_go_on() == std::set<tune::TrialNumber>{0, 1});
    CHECK(search.pinned(JobId("a")) == std::set<int>{7});
    search.goes_on_as(1, JobId("c"));
    CHECK(search.find(1)->exploits == 1);
    CHECK(search.find(1)->iteration == 2);
  }
}

TEST_CASE("a trial without steps counts on from where it goes on, after an exploit too") {
  std::vector<SearchRecord> records;
  Search search = exploiting(false, records);
  search.leg_ended(1, JobState::stopped, "");
  search.goes_on_as(1, JobId("c"));
  CHECK_FALSE(search.find(1)->step);
  CHECK(search.find(1)->iteration == 2);
  CHECK(search.reported(1, std::nullopt, {{"accuracy", 0.95}}));
  CHECK(search.find(1)->iteration == 3);
  // Before a checkpoint of its own: from the donor's again.
  search.halted(Search::Halt::person, "by a person");
  search.leg_ended(1, JobState::stopped, "");
  CHECK(search.find(1)->iteration == 2);
  CHECK(search.find(1)->time == 2);
}

TEST_CASE("a checkpoint is of where the trial was at its step, however late it is committed") {
  Search search(
      spec_of(R"({"num_samples": 2, "scheduler": {"algorithm": "pbt", "perturbation_interval": 2,
                  "quantile_fraction": 0.5}})"));
  search.started({{"lr", 0.5}}, JobId("a"));
  std::int64_t reports = 0;
  const auto report_until = [&](std::int64_t last) {
    while (reports < last) {
      ++reports;
      REQUIRE(search.reported(0, 10 * reports, {{"accuracy", 0.5}}));
    }
  };
  const auto committed = [&](std::int64_t step) {
    REQUIRE(search.checkpointed(0, static_cast<int>(step), step));
    return search.find(0)->checkpoint->iteration;
  };
  report_until(1'000);
  for (const std::int64_t step : {5, 10, 19, 4'000, 9'990}) {
    CHECK(committed(step) == step / 10);
    CHECK(search.find(0)->checkpoint->time == static_cast<double>(step / 10));
  }
  for (int i = 0; i < 100; ++i) {
    report_until(reports + 100);
    CHECK(committed(10 * reports - 501) == reports - 51);
  }
  // After a thousand reports without a checkpoint it may be a little before, and never behind.
  report_until(61'000);
  for (const std::int64_t step : {123'450, 400'000, 609'000, 609'990, 200'000}) {
    const std::int64_t iteration = committed(step);
    CHECK(iteration <= step / 10);
    if (step > 200'000) CHECK(iteration > step / 10 - 100);
    CHECK(search.find(0)->checkpoint->time == static_cast<double>(iteration));
  }
}

TEST_CASE("what a trial reports while it is stopped counts, and nobody decides by it") {
  for (const bool paused : {false, true}) {
    CAPTURE(paused);
    Search search(spec_of(paused ? R"({"num_samples": 2, "scheduler": {"algorithm": "asha",
        "max_t": 9, "reduction_factor": 3, "form": "promote"}})"
                                 : R"({"num_samples": 2, "stop": {"training_iteration": 5}})"));
    std::vector<SearchRecord> records;
    const auto put = [&](std::optional<SearchRecord> record) {
      REQUIRE(record);
      records.push_back(*record);
      CHECK(equal(replayed(search.spec(), records), search));
    };
    const auto report = [&](std::int64_t step, double value) {
      return search.reported(0, step, {{"accuracy", value}});
    };
    put(search.started({{"lr", 0.1}}, JobId("a")));
    put(report(57, 0.1));
    if (!paused) put(search.halted(Search::Halt::person, "by a person"));
    CHECK(search.to_stop() == std::set<tune::TrialNumber>{0});
    put(report(58, 0.2));
    put(report(59, 0.8));
    put(report(60, 0.3));
    put(search.checkpointed(0, 0, 60));
    CHECK(search.find(0)->iteration == 4);
    CHECK(search.find(0)->value == 0.3);
    CHECK(search.find(0)->best == 0.8);
    put(search.leg_ended(0, JobState::stopped, ""));
    CHECK(search.find(0)->state == State::paused);
    if (paused) continue;
    put(search.continued());
    put(search.goes_on_as(0, JobId("b")));
    put(report(61, 0.4));
    CHECK(search.find(0)->iteration == 5);
    CHECK(search.to_stop() == std::set<tune::TrialNumber>{0});
  }
}

TEST_CASE("a trial that meets what it is to reach while it is stopped is complete") {
  Search search(spec_of(R"({"num_samples": 1, "stop": {"accuracy": 0.9}})"));
  search.started({{"lr", 0.1}}, JobId("a"));
  search.halted(Search::Halt::person, "by a person");
  CHECK(search.reported(0, 1, {{"accuracy", 0.95}}));
  CHECK_FALSE(search.reported(0, 2, {{"accuracy", 0.1}}));
  search.leg_ended(0, JobState::stopped, "");
  CHECK(search.find(0)->state == State::complete);
  CHECK(search.find(0)->value == 0.95);
}

TEST_CASE("fail_fast ends a search with its first failure, or when none ended well") {
  Simulation first(spec_of(R"({"num_samples": 9, "fail_fast": true})"), 1);
  first.failing = 0.1;
  first.checks = true;
  first.run();
  CHECK(first.ended.state == SearchState::failed);
  CHECK(first.ended.reason.find("fail_fast is true") != std::string::npos);
  CHECK(first.count(State::failed) >= 1);
  CHECK(first.search.trials().size() < 9);

  Simulation all(spec_of(R"({"num_samples": 30, "fail_fast": 4})"), 1);
  all.failing = 1;
  all.run();
  CHECK(all.ended.state == SearchState::failed);
  CHECK(all.count(State::failed) >= 4);
  CHECK(all.search.trials().size() < 10);

  Simulation never(spec_of(R"({"num_samples": 12, "fail_fast": false})"), 1);
  never.failing = 1;
  never.run();
  CHECK(never.count(State::failed) == 12);
  CHECK(never.ended.state == SearchState::failed);
  CHECK(never.ended.reason == "all of its 12 trials failed");
}

TEST_CASE("a person's stop ends all legs, and the search goes on where it was") {
  for (const char* text : kSearches) {
    CAPTURE(text);
    Simulation world(spec_of(text), 2);
    world.checks = true;
    int reports = 0;
    world.each = [&](Simulation& now) {
      if (++reports == 30) now.put(now.search.halted(Search::Halt::person, "stopped by a person"));
    };
    world.run();
    REQUIRE(world.is_over);
    CHECK(world.ended.state == SearchState::stopped);
    CHECK(world.search.alive().empty());
    CHECK_FALSE(world.search.more());
    const int paused = world.count(State::paused);
    CHECK(paused > 0);
    world.is_over = false;
    world.put(world.search.continued());
    world.run();
    CHECK(world.ended.state == SearchState::succeeded);
    CHECK(world.search.trials().size() == world.search.total());
    CHECK(world.count(State::paused) == 0);
    CHECK(world.count(State::failed) == 0);
  }
}

TEST_CASE("a time budget that is over stops what runs, and the search has succeeded") {
  Simulation world(spec_of(kSearches[3]), 2);
  int turns = 0;
  world.each = [&](Simulation& now) {
    if (++turns == 25) now.put(now.search.halted(Search::Halt::time_budget, "over"));
  };
  world.checks = true;
  world.run();
  CHECK(world.ended.state == SearchState::succeeded);
  CHECK(world.ended.reason == "over");
  CHECK(world.count(State::paused) == 0);
  CHECK(world.count(State::running) == 0);
  CHECK(world.search.best() != nullptr);
}

TEST_CASE("a person's stop of one trial is that trial's end") {
  Search search(spec_of(R"({"num_samples": 2})"));
  search.started({{"lr", 0.1}}, JobId("a"));
  search.leg_ended(0, JobState::stopped, "stopped by the user");
  CHECK(search.find(0)->state == State::stopped);
  CHECK(search.find(0)->reason == "stopped by the user");
  CHECK(search.more());
  CHECK_FALSE(search.ending());
}

TEST_CASE("the grace of a stop is told again, a later one takes its place, and none goes on") {
  const tune::SearchSpec spec = spec_of(R"({"num_samples": 2})");
  Search search(spec);
  std::vector<SearchRecord> records{search.started({{"lr", 0.1}}, JobId("a"))};
  const auto halt = [&](std::optional<std::chrono::seconds> grace) {
    records.push_back(search.halted(Search::Halt::person, "stopped by the user", grace));
    return replayed(spec, records).halt_grace();
  };
  CHECK_FALSE(halt(std::nullopt));
  CHECK(halt(std::chrono::seconds(3600)) == std::chrono::seconds(3600));
  CHECK(halt(std::chrono::seconds(0)) == std::chrono::seconds(0));
  CHECK(search.halt_reason() == "stopped by the user");
  records.push_back(search.leg_ended(0, JobState::stopped, "stopped"));
  records.push_back(search.continued());
  CHECK_FALSE(replayed(spec, records).halt_grace());
}

TEST_CASE("a trial that cannot begin has failed, and others come") {
  Search search(spec_of(R"({"num_samples": 2})"));
  search.started({{"lr", 0.1}}, JobId());
  search.leg_ended(0, JobState::failed, "no");
  CHECK(search.find(0)->state == State::failed);
  CHECK(search.find(0)->legs.empty());
  CHECK(search.alive().empty());
  CHECK(search.more());
}

TEST_CASE("ten thousand trials of a hundred reports are told again within seconds") {
  const tune::SearchSpec spec =
      spec_of(R"({"num_samples": 10000, "scheduler": {"algorithm": "asha", "max_t": 100}})");
  std::vector<SearchRecord> records;
  for (std::uint64_t trial = 0; trial < 10'000; ++trial) {
    SearchRecord record;
    record.seq = static_cast<std::int64_t>(records.size()) + 1;
    record.trial = trial;
    record.kind = SearchRecord::Kind::started;
    record.text = R"({"lr":0.5})";
    record.job = "job-" + std::to_string(trial);
    records.push_back(record);
    for (int iteration = 1; iteration <= 100; ++iteration) {
      record = {};
      record.seq = static_cast<std::int64_t>(records.size()) + 1;
      record.trial = trial;
      record.kind = SearchRecord::Kind::reported;
      record.iteration = iteration;
      record.step = iteration;
      record.time = iteration;
      record.value = 0.001 * static_cast<double>(trial % 997);
      records.push_back(record);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const Search search = replayed(spec, records);
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(search.trials().size() == 10'000);
  MESSAGE("records: ", records.size(),
          ", ms: ", std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  CHECK(took < std::chrono::minutes(10));
}
