#include <doctest/doctest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "agent/head/engine/search.hpp"
#include "agent/head/store/lineage.hpp"
#include "agent/head/store/sqlite.hpp"
#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/world.hpp"

// Searches over a real database: their trials are jobs, and heads die.

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;
using nlohmann::json;

namespace {

tune::SearchSpec wanted(const std::string& more) {
  json spec = json::parse(R"({
    "job": {"name": "mnist", "command": ["./train", "--lr={lr}"], "workdir": "/tmp"},
    "space": {"lr": {"uniform": [0, 1]}}, "search": {"seed": 1},
    "metric": "accuracy", "mode": "max"})");
  spec.merge_patch(json::parse(more));
  tune::Problems problems;
  tune::SearchSpec read = tune::search_spec_from_json(spec, problems);
  problems.check();
  return read;
}

// What a search's trials run: one rank each on node-0, told what happens by hand. What a head has
// not acknowledged is told to the next one again, as supervisors do.
class Programs {
 public:
  explicit Programs(World& world, int cpus = 4) : world_(world) { world.join("node-0", {}, cpus); }

  int length = 9;  // steps until a program ends by itself
  bool checkpoints = false;
  std::set<std::uint64_t> failing;  // trials that fail at their first step
  // What is told in a step is not on the disk at its end, nor is what follows from it.
  bool lossy = false;

  json ask(const std::function<void(Engine::Answer)>& start) {
    std::optional<json> answer;
    start([&](json told) { answer = std::move(told); });
    world_.until([&] { return answer.has_value(); });
    return *answer;
  }

  SearchId submit(const std::string& more, const std::map<std::string, std::string>& secrets = {},
                  const std::optional<StartCheckpoint>& start = std::nullopt) {
    const json answer = ask([&](Engine::Answer done) {
      tune::SearchSpec spec = wanted(more);
      spec.job.start = start;
      world_.engine->submit_search("", std::move(spec), secrets, std::move(done));
    });
    REQUIRE(answer.contains("search"));
    search = SearchId(answer.at("search").get<std::string>());
    return search;
  }

  // A checkpoint of a job whose search has ended.
  StartCheckpoint trained() {
    checkpoints = true;
    submit(R"({"num_samples": 1})");
    run();
    checkpoints = false;
    const std::string job = trials().at(0).at("job");
    const json last = world_.engine->job(JobId(job)).at("checkpoints").back();
    return {job, last.at("number").get<int>(), "", ""};
  }

  json view(std::size_t trials = 1000) {
    return ask(
        [&](Engine::Answer done) { world_.engine->search(search, trials, std::move(done)); });
  }
  json trials() {
    return ask([&](Engine::Answer done) {
             world_.engine->search_trials(search, 0, 1000, std::move(done));
           })
        .at("trials");
  }
  std::string state() { return summary().at("state"); }
  json summary() {
    const json all = world_.engine->searches(std::nullopt);
    for (const json& each : all.at("searches")) {
      if (each.at("search") == search.str()) return each;
    }
    return {};
  }
  bool is_over() {
    const std::string now = state();
    return now != "running" && now != "stopping";
  }

  void die() {
    world_.restart();
    std::vector<std::pair<JobId, int>> there;
    for (auto& [id, program] : programs) {
      if (!program.finished || unacknowledged(id)) there.emplace_back(id, 1);
    }
    world_.join("node-0", there);
    for (const auto& [id, said] : said_) {
      for (std::size_t i = 0; i < said.size(); ++i) {
        const std::uint64_t seq = i + 1;
        if (seq > world_.acknowledged("node-0", id, 1)) {
          world_.repeat("node-0", id, 1, seq, said[i]);
        }
      }
    }
  }

  // Takes what was started and stopped. Then one of those that run gets one step further.
  void step() {
    world_.settle();
    take();
    // In the order in which it was told, as without any death.
    for (const auto& each : said_) {
      if (lossy) world_.until([&] { return !unacknowledged(each.first); });
    }
    // Whose turn it is does not hang on how long a checkpoint takes to be copied.
    world_.until([&] {
      take();
      const json shown = summary();
      if (!shown.contains("counts")) return true;
      const json& counts = shown.at("counts");
      const auto unfinished = std::count_if(programs.begin(), programs.end(),
                                            [](const auto& each) { return !each.second.finished; });
      return counts.at("running").get<int>() + counts.at("waiting").get<int>() <= unfinished;
    });
    world_.settle();
    take();
    if (lossy) world_.shut_door();
    for (auto& [id, program] : programs) {
      if (program.stopping && !program.finished) {
        finish(id, program, Outcome::stopped);
        return;
      }
    }
    JobId next;
    for (auto& [id, program] : programs) {
      if (program.finished) continue;
      if (next.empty() || program.behind() < programs.at(next).behind()) next = id;
    }
    if (next.empty()) {
      if (lossy) world_.open_door();
      const std::size_t starts = world_.starts.size();
      const std::size_t sent = world_.sent.size();
      world_.until([&] {
        return world_.starts.size() != starts || world_.sent.size() != sent || is_over();
      });
      return;
    }
    Program& program = programs.at(next);
    if (failing.contains(program.trial)) {
      finish(next, program, Outcome::failed);
    } else if (program.done == length) {
      finish(next, program, Outcome::succeeded);
    } else {
      report(next, program);
    }
  }

  // Those too that are no search's.
  void run_jobs() {
    while (world_.engine->open_job()) step();
    world_.settle();
  }

  void run() {
    for (int turn = 0; turn < 5000 && !is_over(); ++turn) step();
    REQUIRE(is_over());
    world_.settle();
  }

  struct Program {
    std::uint64_t trial = 0;
    double lr = 0;
    int done = 0;
    bool stopping = false;
    bool finished = false;
    std::pair<int, std::uint64_t> behind() const { return {done, trial}; }
  };
  std::map<JobId, Program> programs;
  SearchId search;

 private:
  bool unacknowledged(const JobId& id) {
    return world_.acknowledged("node-0", id, 1) < said_[id].size();
  }

  void say(const JobId& id, wire::AttemptEventBody body) {
    said_[id].push_back(body);
    world_.seqs[{"node-0", id.str(), 1}] = said_[id].size();
    world_.repeat("node-0", id, 1, said_[id].size(), std::move(body));
  }

  void take() {
    for (; taken_ < world_.starts.size(); ++taken_) {
      const auto& spec = world_.starts[taken_].spec;
      if (programs.contains(spec.job)) continue;
      Program& program = programs[spec.job];
      program.trial = std::stoull(spec.env.at("DTRAIN_TRIAL"));
      program.lr = json::parse(spec.env.at("DTRAIN_PARAMS")).at("lr");
      CHECK(spec.env.at("DTRAIN_SEARCH_ID") == search.str());
      CHECK(spec.command.at(1) == "--lr=" + json(program.lr).dump());
      if (spec.checkpoint) {
        program.done =
            std::stoi(read_file(fs::path(*spec.checkpoint) / "shard-00000-of-00001" / "step"));
      }
      say(spec.job, wire::MasterReady{29500});
      wire::RanksStarted body;
      body.ranks.push_back({0, 1000});
      body.time = world_.clock.wall();
      say(spec.job, body);
    }
    for (; looked_ < world_.sent.size(); ++looked_) {
      const auto& sent = world_.sent[looked_];
      if (!std::holds_alternative<wire::StopRanks>(sent.command)) continue;
      if (programs.contains(sent.job)) programs.at(sent.job).stopping = true;
    }
  }

  void report(const JobId& id, Program& program) {
    ++program.done;
    json line = {{"type", "metrics"}, {"step", program.done}};
    const double off = program.lr - 0.3;
    line["metrics"]["accuracy"] = 1 - off * off + 0.001 * program.done;
    say(id, wire::RankReport{0, line});
    if (!checkpoints) return;
    const fs::path folder =
        world_.folder / (id.str() + "-checkpoint-" + std::to_string(program.done));
    fs::create_directories(folder);
    std::ofstream(folder / "step") << program.done;
    say(id, wire::RankReport{0,
                             {{"type", "checkpoint"},
                              {"step", program.done},
                              {"path", folder.string()},
                              {"ack", true}}});
    if (lossy) return;
    const auto seq = said_[id].size();
    world_.until([&] { return world_.answer("node-0", id, 1, seq).has_value(); });
  }

  void finish(const JobId& id, Program& program, Outcome outcome) {
    wire::RankExited body;
    body.rank = 0;
    body.exit.code = outcome == Outcome::failed ? 1 : 0;
    body.time = world_.clock.wall();
    body.boot_time = world_.clock.boot();
    body.stopped = outcome == Outcome::stopped;
    say(id, body);
    wire::NodeFinished end;
    end.outcome = outcome;
    say(id, end);
    program.finished = true;
  }

  World& world_;
  std::map<JobId, std::vector<wire::AttemptEventBody>> said_;
  std::size_t taken_ = 0;
  std::size_t looked_ = 0;
};

const char* kAsha = R"({"num_samples": 9, "max_concurrent": 3,
    "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3}})";
const char* kPromoting = R"({"num_samples": 9, "max_concurrent": 3,
    "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}})";
const char* kPbt = R"({"num_samples": 4, "max_concurrent": 4,
    "job": {"checkpoint": {"num_to_keep": 1}},
    "scheduler": {"algorithm": "pbt", "perturbation_interval": 2}})";
const char* kTpe = R"({"num_samples": 8, "max_concurrent": 2,
    "search": {"algorithm": "tpe", "n_startup_trials": 3}})";

// What of a trial does not hang on ids, which are drawn.
std::string told(const json& trials) {
  std::string all;
  for (const json& trial : trials) {
    json each;
    for (const char* key : {"trial", "state", "params", "iteration", "value", "exploits"}) {
      each[key] = trial.at(key);
    }
    each["legs"] = trial.at("legs").size();
    all += each.dump() + "\n";
  }
  return all;
}

ErrorCode refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("trials of a search run as jobs, and asha stops the worse ones") {
  World world;
  Programs programs(world);
  programs.submit(kAsha);
  programs.run();
  const json view = programs.view();
  CHECK(view.at("state") == "succeeded");
  CHECK(view.at("counts").at("complete").get<int>() + view.at("counts").at("stopped").get<int>() ==
        9);
  CHECK(view.at("counts").at("stopped").get<int>() > 3);
  CHECK(view.at("best").at("iteration") == 9);
  CHECK(view.at("trials").front().at("trial") == view.at("best").at("trial"));
  CHECK(view.at("trials").size() == 9);
  for (const json& trial : programs.trials()) {
    const json job = world.engine->job(JobId(trial.at("job").get<std::string>()));
    CHECK(job.at("search") == programs.search.str());
    CHECK(job.at("trial") == trial.at("trial"));
    CHECK(job.at("spec").at("trial").at("leg") == 1);
    CHECK(trial.at("legs").size() == 1);
    if (trial.at("state") == "stopped") CHECK(job.at("state") == "stopped");
  }
  // Trials are not in the way of other jobs.
  CHECK(world.engine->status().at("jobs").empty());
  CHECK(world.engine->status(std::nullopt, true).at("jobs").size() == 9);
  CHECK(world.engine->status().at("searches").size() == 1);
  CHECK(world.engine->status().at("search_counts").at("succeeded") == 1);
  CHECK(world.engine->jobs().at("jobs").size() == 9);
  CHECK_FALSE(world.engine->has_jobs());
  // The same from the database.
  const std::string before = told(programs.trials());
  world.restart();
  CHECK(told(programs.trials()) == before);
  json again = programs.view();
  again.erase("trials");
  json was = view;
  was.erase("trials");
  CHECK(again == was);
}

TEST_CASE("a head that dies after whatever happened loses no trial, and decides the same") {
  for (const char* text : {kAsha, kPromoting, kPbt, kTpe}) {
    CAPTURE(text);
    const bool checkpoints = text == kPromoting || text == kPbt;
    std::string whole;
    {
      World world;
      Programs programs(world);
      programs.checkpoints = checkpoints;
      programs.submit(text);
      programs.run();
      CHECK(programs.state() == "succeeded");
      whole = told(programs.trials());
      int legs = 0;
      for (const json& trial : programs.trials()) {
        legs += static_cast<int>(trial.at("legs").size());
      }
      CHECK((legs > static_cast<int>(programs.trials().size())) == checkpoints);
    }
    for (const bool lossy : {false, true}) {
      CAPTURE(lossy);
      World world;
      Programs programs(world);
      programs.checkpoints = checkpoints;
      programs.submit(text);
      programs.lossy = lossy;
      for (int turn = 0; turn < 2000 && !programs.is_over(); ++turn) {
        programs.step();
        programs.die();
        // Half of the time it is on the disk before the next head dies.
        if (turn % 2 == 0) world.settle();
      }
      CHECK(programs.state() == "succeeded");
      CHECK(told(programs.trials()) == whole);
      // Each leg was one job, and no job was any other's.
      std::set<std::string> legs;
      for (const json& trial : programs.trials()) {
        for (const json& leg : trial.at("legs")) CHECK(legs.insert(leg).second);
      }
      CHECK(legs.size() == world.engine->jobs().at("jobs").size());
    }
  }
}

TEST_CASE("trials that run are shown first, then those that wait, then the others") {
  World world;
  Programs programs(world, 1);  // one runs at a time
  programs.submit(R"({"num_samples": 4, "max_concurrent": 2, "scheduler": {"algorithm": "asha",
      "max_t": 4, "reduction_factor": 2, "form": "promote"}})");
  const auto begun = [&](int trials) {
    world.until([&] { return programs.summary().at("begun") == trials; });
  };
  const auto begin = [&](std::size_t trial) {
    const JobId job(programs.trials().at(trial).at("job").get<std::string>());
    world.started("node-0", job, 1);
    world.start_ranks("node-0", job, 1, 0, 1);
    return job;
  };
  const auto pause = [&](std::size_t trial, double accuracy) {
    const JobId job = begin(trial);
    json line = {{"type", "metrics"}, {"step", 1}};
    line["metrics"]["accuracy"] = accuracy;
    world.say("node-0", job, 1, wire::RankReport{0, line});
    world.until([&] { return world.stops("node-0", job, 1) > 0; });
    world.exit_rank("node-0", job, 1, 0, 0, true);
    world.finish("node-0", job, 1, Outcome::stopped);
  };
  begun(2);
  pause(0, 0.9);
  begun(3);
  pause(1, 0.5);
  begin(2);
  // The first is promoted, and its job is behind that of the third.
  world.until([&] { return programs.trials().at(0).at("legs").size() == 2; });
  world.settle();
  const json trials = programs.view().at("trials");
  std::vector<std::pair<int, std::string>> shown;
  for (const json& trial : trials) shown.emplace_back(trial.at("trial"), trial.at("state"));
  CHECK(shown ==
        std::vector<std::pair<int, std::string>>{{2, "running"}, {0, "waiting"}, {1, "paused"}});
  CHECK(programs.view(1).at("trials") == json::array({trials.at(0)}));
}

TEST_CASE("a promoted trial goes on from its checkpoint as a job that resumes the one before") {
  World world;
  Programs programs(world);
  programs.checkpoints = true;
  programs.submit(kPromoting);
  programs.run();
  int resumed = 0;
  for (const json& trial : programs.trials()) {
    const json& legs = trial.at("legs");
    for (std::size_t i = 1; i < legs.size(); ++i) {
      const json job = world.engine->job(JobId(legs[i].get<std::string>()));
      CHECK(job.at("resumed_from") == legs[i - 1]);
      CHECK(job.at("spec").at("trial").at("leg") == i + 1);
      ++resumed;
    }
  }
  CHECK(resumed > 0);
  CHECK(programs.summary().at("best").at("iteration") == 9);
}

TEST_CASE("pbt moves a trial to another's checkpoint, which num_to_keep does not take before") {
  World world;
  Programs programs(world);
  programs.checkpoints = true;
  programs.length = 12;
  programs.submit(kPbt);
  programs.run();
  CHECK(programs.state() == "succeeded");
  int moved = 0;
  for (const json& trial : programs.trials()) {
    CHECK(trial.at("state") == "complete");
    moved += trial.at("exploits").get<int>();
    if (trial.at("exploits") == 0) continue;
    CHECK(trial.at("schedule").size() > 1);
    const json job = world.engine->job(JobId(trial.at("legs").at(1).get<std::string>()));
    CHECK(job.at("started_from").get<std::string>().starts_with("checkpoint "));
  }
  CHECK(moved > 0);
  CHECK(programs.view(0).at("exploitations").size() == static_cast<std::size_t>(moved));
}

TEST_CASE("a search that a person stops can go on, also under another head") {
  for (const bool dies : {false, true}) {
    World world;
    Programs programs(world);
    programs.checkpoints = true;
    const SearchId id = programs.submit(R"({"num_samples": 4, "max_concurrent": 2})");
    for (int i = 0; i < 8; ++i) programs.step();
    const json stopping = programs.ask(
        [&](Engine::Answer done) { world.engine->stop_search(id, std::nullopt, done); });
    CHECK(stopping.at("state") == "stopping");
    programs.run();
    CHECK(programs.state() == "stopped");
    CHECK(programs.summary().at("counts").at("paused") == 2);
    CHECK(refusal([&] { world.engine->stop(JobId("x"), {}, nullptr); }) == ErrorCode::not_found);
    if (dies) programs.die();
    const json on =
        programs.ask([&](Engine::Answer done) { world.engine->resume_search(id, {}, done); });
    CHECK(on.at("state") == "running");
    CHECK(refusal([&] { world.engine->resume_search(id, {}, nullptr); }) == ErrorCode::conflict);
    if (dies) programs.die();
    programs.run();
    CHECK(programs.state() == "succeeded");
    int legs = 0;
    for (const json& trial : programs.trials()) {
      CHECK(trial.at("iteration") == 9);
      legs += static_cast<int>(trial.at("legs").size());
    }
    CHECK(legs == 6);
  }
}

TEST_CASE("until a search that was resumed goes on nothing else happens to it") {
  World world;
  Programs programs(world);
  programs.checkpoints = true;
  const std::map<std::string, std::string> secrets = {{"TOKEN", "hush"}};
  const SearchId id = programs.submit(
      R"({"num_samples": 3, "max_concurrent": 2, "job": {"secrets": ["TOKEN"]}})", secrets);
  for (int i = 0; i < 6; ++i) programs.step();
  world.engine->stop_search(id, std::nullopt, nullptr);
  programs.run();
  REQUIRE(programs.state() == "stopped");
  const fs::path file = world.options.root.secrets(JobId(id.str()));
  world.until([&] { return !fs::exists(file); });
  std::optional<json> answer;
  const auto told = [&](json all) { answer = std::move(all); };
  world.engine->resume_search(id, secrets, told);
  SUBCASE("no other request is taken") {
    const auto refused = [&](auto call) { return refusal(call) == ErrorCode::conflict; };
    world.until([&] {
      if (programs.state() != "stopped") return true;
      CHECK(refused([&] { world.engine->resume_search(id, secrets, nullptr); }));
      CHECK(refused([&] { world.engine->remove_search(id, nullptr); }));
      CHECK(refused([&] { world.engine->stop_search(id, std::nullopt, nullptr); }));
      return false;
    });
    world.until([&] { return answer.has_value(); });
    CHECK(answer->at("state") == "running");
  }
  SUBCASE("with the cluster going down it does not go on, and can under the next head") {
    world.engine->stop_all([](const json&) {});
    world.until([&] { return answer.has_value(); });
    CHECK(answer->contains("error"));
    CHECK_FALSE(fs::exists(file));
    CHECK(programs.state() == "stopped");
    programs.die();
    CHECK(programs.summary().at("counts").at("paused") == 2);
    CHECK(programs
              .ask([&](Engine::Answer done) {
                world.engine->resume_search(id, secrets, std::move(done));
              })
              .at("state") == "running");
  }
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.summary().at("counts").at("complete") == 3);
}

TEST_CASE("a second stop of a search hurries it, also under another head") {
  World world;
  Programs programs(world);
  const SearchId id = programs.submit(R"({"num_samples": 4, "max_concurrent": 2})");
  for (int i = 0; i < 4; ++i) programs.step();
  const auto stop = [&](int grace) {
    programs.ask([&](Engine::Answer done) {
      world.engine->stop_search(id, std::chrono::seconds(grace), std::move(done));
    });
    world.settle();
  };
  const auto graces = [&] {  // the newest that each leg was told
    std::map<JobId, std::int64_t> told;
    for (const auto& sent : world.sent) {
      const auto* ranks = std::get_if<wire::StopRanks>(&sent.command);
      if (ranks != nullptr) told[sent.job] = ranks->grace.value().count();
    }
    REQUIRE(told.size() == 2);
    CHECK(told.begin()->second == told.rbegin()->second);
    return told.begin()->second;
  };
  stop(3600);
  CHECK(graces() == 3600);
  stop(7);
  CHECK(graces() == 7);
  const std::size_t sent = world.sent.size();
  stop(7);
  CHECK(world.sent.size() == sent);
  programs.die();
  stop(0);
  CHECK(graces() == 0);
  programs.run();
  CHECK(programs.state() == "stopped");
  CHECK(programs.summary().at("counts").at("paused") == 2);
}

TEST_CASE("a search of more trials than are stopped and begun at once stops, and goes on") {
  World world;
  Programs programs(world, 110);
  programs.length = 1;
  const SearchId id = programs.submit(R"({"num_samples": 110, "max_concurrent": 110})");
  world.until([&] { return programs.summary().at("begun") == 110; });
  world.engine->stop_search(id, std::nullopt, nullptr);
  programs.run();
  CHECK(programs.state() == "stopped");
  CHECK(programs.summary().at("counts").at("paused") == 110);
  programs.ask([&](Engine::Answer done) { world.engine->resume_search(id, {}, done); });
  programs.run();
  CHECK(programs.state() == "succeeded");
  for (const json& trial : programs.trials()) {
    CHECK(trial.at("state") == "complete");
    CHECK(trial.at("legs").size() == 2);
  }
}

TEST_CASE("while a search runs its jobs cannot be removed; with it all of them go") {
  World world;
  Programs programs(world);
  const SearchId id = programs.submit(R"({"num_samples": 3, "max_concurrent": 1})");
  CHECK(refusal([&] { world.engine->remove_search(id, nullptr); }) == ErrorCode::conflict);
  while (programs.trials().size() < 2) programs.step();
  const JobId first(programs.trials().at(0).at("job").get<std::string>());
  CHECK(world.state(first) == "succeeded");
  CHECK(refusal([&] { world.engine->remove(first, nullptr); }) == ErrorCode::conflict);
  programs.run();
  // A person may go on with one; that is no part of the search.
  JobSpec more = job_spec_from_json(world.engine->job(first).at("spec"));
  more.resumes = first.str();
  const JobId own = world.submit(more);
  CHECK(world.engine->job(own).at("spec").at("trial").at("leg") == 0);
  CHECK(world.engine->job(own).at("search").is_null());
  CHECK(world.started("node-0", own, 1).env.contains("DTRAIN_PARAMS"));
  programs.run_jobs();
  more.resumes = own.str();
  more.trial->number = 1;
  CHECK(refusal([&] { world.engine->submit("", more, {}, nullptr); }) == ErrorCode::invalid);
  const json gone =
      programs.ask([&](Engine::Answer done) { world.engine->remove_search(id, done); });
  CHECK(world.engine->jobs().at("jobs").size() == 1);
  world.engine->remove(own, nullptr);
  CHECK(gone.at("removed") == true);
  CHECK(world.engine->jobs().at("jobs").empty());
  CHECK(world.engine->searches(std::nullopt).at("searches").empty());
  world.restart();
  CHECK(world.engine->searches(std::nullopt).at("searches").empty());
  CHECK(refusal([&] { world.engine->search(id, 0, nullptr); }) == ErrorCode::not_found);
}

TEST_CASE("next legs that cannot begin end their trials, and none that is about to begin") {
  World world;
  Programs programs(world);
  const StartCheckpoint start = programs.trained();
  programs.submit(R"({"num_samples": 3, "max_concurrent": 3, "fail_fast": false})", {}, start);
  world.until([&] { return programs.summary().at("begun") == 2; });
  world.engine->stop_search(programs.search, std::nullopt, nullptr);
  programs.run();
  const json before = programs.trials();
  REQUIRE(before.size() == 2);
  for (const json& trial : before) {
    REQUIRE(trial.at("state") == "paused");
    const JobId leg(trial.at("job").get<std::string>());
    fs::remove_all(start_folder(world.options.root.storage(leg)));
  }
  programs.ask([&](Engine::Answer done) {
    world.engine->resume_search(programs.search, {}, std::move(done));
  });
  programs.run();
  CHECK(programs.trials().at(0).at("state") == "failed");
  CHECK(programs.trials().at(1).at("state") == "failed");
  CHECK(programs.trials().at(2).at("state") == "complete");
  CHECK(programs.trials().at(2).at("legs").size() == 1);
  CHECK(world.engine->jobs().at("jobs").size() == 4);
}

TEST_CASE("the job that a search's trials start from cannot be removed before it has ended") {
  World world;
  Programs programs(world);
  const StartCheckpoint start = programs.trained();
  const JobId source(start.job);
  programs.submit(R"({"num_samples": 2, "max_concurrent": 1, "fail_fast": false})", {}, start);
  programs.step();
  CHECK(refusal([&] { world.engine->remove(source, nullptr); }) == ErrorCode::conflict);
  world.engine->stop_search(programs.search, std::nullopt, nullptr);
  programs.run();
  // One that was stopped holds nothing; what it then cannot begin fails.
  world.engine->remove(source, nullptr);
  programs.ask([&](Engine::Answer done) {
    world.engine->resume_search(programs.search, {}, std::move(done));
  });
  programs.run();
  CHECK(programs.trials().at(0).at("state") == "complete");
  CHECK(programs.trials().at(1).at("state") == "failed");
  CHECK(programs.trials().at(1).at("reason").get<std::string>().find(start.job) !=
        std::string::npos);
}

TEST_CASE("a checkpoint that was sent for a search's trials is kept until it has ended") {
  World world;
  Programs programs(world);
  const std::string tree(64, 'a');
  programs.submit(R"({"num_samples": 1})", {}, StartCheckpoint{"", 0, "/model", tree});
  CHECK(world.engine->content_trees().contains(tree));
  world.restart();
  CHECK(world.engine->content_trees().contains(tree));
  programs.run();
  CHECK_FALSE(world.engine->content_trees().contains(tree));
}

TEST_CASE("the job of a trial that a person stops is that trial's end") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 3, "max_concurrent": 1})");
  for (int i = 0; i < 3; ++i) programs.step();
  const JobId first(programs.trials().at(0).at("job").get<std::string>());
  world.engine->stop(first, std::nullopt, nullptr);
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.trials().at(0).at("state") == "stopped");
  CHECK(programs.trials().at(0).at("reason") == "stopped by the user");
  CHECK(programs.trials().at(2).at("state") == "complete");
}

TEST_CASE("failed trials end a search as fail_fast says") {
  World world;
  Programs programs(world);
  programs.failing = {0, 1, 2, 3, 4, 5, 6, 7};
  programs.submit(R"({"num_samples": 8, "max_concurrent": 1, "fail_fast": 3})");
  programs.run();
  CHECK(programs.state() == "failed");
  CHECK(programs.trials().size() == 3);
  CHECK(programs.trials().at(0).at("state") == "failed");
  CHECK(programs.trials().at(0).at("reason").get<std::string>().find("exit code 1") !=
        std::string::npos);
  CHECK(programs.summary().at("reason") == "3 trials failed, and none ended well (fail_fast)");
  CHECK(programs.summary().at("best").is_null());
}

TEST_CASE("a time budget is over by the clock, also under another head") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 100, "max_concurrent": 2, "time_budget_s": 60})");
  for (int i = 0; i < 5; ++i) programs.step();
  world.advance(std::chrono::seconds(20));
  programs.die();
  CHECK(programs.state() == "running");
  world.advance(std::chrono::seconds(20));
  world.engine->heard(NodeId("node-0"));
  CHECK(programs.state() == "running");
  world.advance(std::chrono::seconds(21));
  CHECK(programs.state() == "stopping");
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.summary().at("reason") == "its time_budget_s, 60 s, is over");
  CHECK(programs.trials().at(0).at("state") == "stopped");
}

TEST_CASE("a time budget counts anew when a search that was stopped goes on") {
  World world;
  Programs programs(world);
  programs.checkpoints = true;
  const SearchId id =
      programs.submit(R"({"num_samples": 100, "max_concurrent": 2, "time_budget_s": 60})");
  const auto pass = [&](int seconds) {
    for (; seconds > 0; seconds -= 10) {
      world.engine->heard(NodeId("node-0"));
      world.advance(std::chrono::seconds(std::min(seconds, 10)));
    }
  };
  for (int i = 0; i < 5; ++i) programs.step();
  pass(50);
  world.engine->stop_search(id, std::nullopt, nullptr);
  programs.run();
  REQUIRE(programs.state() == "stopped");
  pass(100);
  CHECK(programs.state() == "stopped");
  programs.ask([&](Engine::Answer done) { world.engine->resume_search(id, {}, std::move(done)); });
  for (int i = 0; i < 5; ++i) programs.step();
  pass(59);
  CHECK(programs.state() == "running");
  pass(2);
  CHECK(programs.state() == "stopping");
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.summary().at("reason") == "its time_budget_s, 60 s, is over");
}

TEST_CASE("what ranks but 0 report is no value of their trial") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 1, "stop": {"accuracy": 0.9},
                      "job": {"nproc_per_node": 2}})");
  world.until([&] { return programs.summary().at("begun") == 1; });
  const JobId job(programs.trials().at(0).at("job").get<std::string>());
  world.started("node-0", job, 1);
  world.start_ranks("node-0", job, 1, 0, 2);
  const auto report = [&](int rank, int step, double accuracy) {
    json line = {{"type", "metrics"}, {"step", step}};
    line["metrics"]["accuracy"] = accuracy;
    world.say("node-0", job, 1, wire::RankReport{rank, line});
  };
  report(1, 500, 0.99);
  report(0, 1, 0.2);
  report(1, 501, 0.98);
  report(0, 2, 0.3);
  world.settle();
  const auto trial = [&] { return programs.trials().at(0); };
  CHECK(trial().at("state") == "running");
  CHECK(trial().at("value") == 0.3);
  CHECK(trial().at("best") == 0.3);
  CHECK(trial().at("iteration") == 2);
  CHECK(trial().at("step") == 2);
  CHECK(trial().at("metrics").at("accuracy") == 0.3);
  CHECK(world.metrics(job).size() == 4);
  CHECK(world.stops("node-0", job, 1) == 0);
  report(0, 3, 0.95);
  world.until([&] { return world.stops("node-0", job, 1) > 0; });
}

TEST_CASE("jobs of a search that has ended go by retention, the search stays until it is removed") {
  World world;
  Programs programs(world);
  programs.checkpoints = true;
  const auto jobs_left = [&] { return world.engine->jobs().at("jobs").size(); };
  const auto until_left = [&](std::size_t count, std::uint64_t retention_size) {
    world.engine->set_storage({.retention_size = retention_size});
    world.until([&] {
      world.advance(std::chrono::milliseconds(1));
      return jobs_left() == count;
    });
  };
  const JobId other = world.submit(World::spec());
  programs.programs[other].finished = true;
  world.run_through("node-0", other, 1, 0);
  world.until([&] { return world.state(other) == "succeeded"; });
  fs::create_directories(world.options.root.storage(other));
  std::ofstream(world.options.root.storage(other) / "model") << "much";
  const SearchId id = programs.submit(R"({"num_samples": 3, "max_concurrent": 1})");
  while (programs.trials().size() < 2) programs.step();
  world.settle();
  // Those of one that runs stay, also of trials that have ended.
  until_left(2, 1);
  CHECK(world.state(JobId(programs.trials().at(0).at("job").get<std::string>())) == "succeeded");
  CHECK(refusal([&] { world.engine->job(other); }) == ErrorCode::not_found);
  programs.run();
  const json before = programs.trials();
  const json best = programs.summary().at("best");
  until_left(0, 2);
  for (const bool again : {false, true}) {
    if (again) world.restart();
    const json after = programs.trials();
    REQUIRE(after.size() == 3);
    CHECK(told(after) == told(before));
    CHECK(after.at(0).at("job") == before.at(0).at("job"));
    CHECK(after.at(0).at("job_state").is_null());
    CHECK(programs.summary().at("best") == best);
  }
  programs.ask([&](Engine::Answer done) { world.engine->remove_search(id, std::move(done)); });
  CHECK(world.engine->searches(std::nullopt).at("searches").empty());
}

TEST_CASE("as many trials wait as run, and two at least") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 100})");
  world.until([&] { return programs.summary().at("begun") == 8; });
  world.settle();
  const json counts = programs.summary().at("counts");  // node-0 has four CPUs
  CHECK(counts.at("running") == 4);
  CHECK(counts.at("waiting") == 4);
}

TEST_CASE("a search's secrets go to each of its trials, and end with it") {
  World world;
  Programs programs(world);
  const std::string text = R"({"num_samples": 2, "max_concurrent": 1,
                               "job": {"secrets": ["TOKEN"]}})";
  CHECK(refusal([&] { world.engine->submit_search("", wanted(text), {}, nullptr); }) ==
        ErrorCode::invalid);
  const SearchId id = programs.submit(text, {{"TOKEN", "hush"}});
  programs.step();
  programs.die();
  world.engine->stop_search(id, std::nullopt, nullptr);
  programs.run();
  const fs::path file = world.options.root.secrets(JobId(id.str()));
  world.until([&] { return !fs::exists(file); });
  const json without =
      programs.ask([&](Engine::Answer done) { world.engine->resume_search(id, {}, done); });
  CHECK(without.contains("error"));
  programs.ask([&](Engine::Answer done) {
    world.engine->resume_search(id, {{"TOKEN", "hush"}}, done);
  });
  programs.run();
  CHECK(programs.state() == "succeeded");
  for (const auto& each : world.starts) CHECK(each.secrets.at("TOKEN") == "hush");
  CHECK(world.starts.size() >= 3);
  world.until([&] { return !fs::exists(file); });
}

TEST_CASE(
    "a search that is resumed while its end is on its way to the disk keeps its new secrets") {
  World world;
  Programs programs(world);
  const std::map<std::string, std::string> secrets = {{"TOKEN", "hush"}};
  const SearchId id = programs.submit(
      R"({"num_samples": 4, "max_concurrent": 2, "job": {"secrets": ["TOKEN"]}})", secrets);
  for (int i = 0; i < 4; ++i) programs.step();
  world.engine->stop_search(id, std::nullopt, nullptr);
  while (programs.summary().at("counts").at("paused") != 2) programs.step();
  REQUIRE(programs.state() == "stopping");
  world.shut_door();
  world.until([&] { return programs.state() == "stopped"; });
  world.engine->resume_search(id, secrets, [](const json&) {});
  world.until([&] { return programs.state() == "running"; });
  world.open_door();
  world.settle();
  CHECK(fs::exists(world.options.root.secrets(JobId(id.str()))));
  programs.die();
  programs.run();
  CHECK(programs.state() == "succeeded");
  for (const auto& each : world.starts) CHECK(each.secrets.at("TOKEN") == "hush");
}

TEST_CASE("a search whose secrets are gone begins no trial without them") {
  World world;
  Programs programs(world);
  const std::map<std::string, std::string> secrets = {{"TOKEN", "hush"}};
  const SearchId id = programs.submit(
      R"({"num_samples": 4, "max_concurrent": 2, "job": {"secrets": ["TOKEN"]}})", secrets);
  for (int i = 0; i < 4; ++i) programs.step();
  world.settle();
  fs::remove(world.options.root.secrets(JobId(id.str())));
  programs.die();
  programs.run();
  CHECK(programs.state() == "stopped");
  CHECK(programs.summary().at("reason") == "its secrets are not there any more");
  programs.ask(
      [&](Engine::Answer done) { world.engine->resume_search(id, secrets, std::move(done)); });
  programs.run();
  CHECK(programs.state() == "succeeded");
  for (const auto& each : world.starts) CHECK(each.secrets.at("TOKEN") == "hush");
}

TEST_CASE("the same submission is the same search, and a warm start learns from one that ended") {
  World world;
  Programs programs(world);
  const auto submit = [&](const std::string& text, const std::string& submission) {
    return programs.ask([&](Engine::Answer done) {
      world.engine->submit_search(submission, wanted(text), {}, std::move(done));
    });
  };
  const json first = submit(R"({"num_samples": 12, "max_concurrent": 4})", "sub");
  CHECK(submit(R"({"num_samples": 12, "max_concurrent": 4})", "sub") == first);
  programs.search = SearchId(first.at("search").get<std::string>());
  const json warm = {{"num_samples", 1},
                     {"search", {{"algorithm", "tpe"}, {"n_startup_trials", 10}}},
                     {"warm_start", json::array({programs.search.str()})}};
  CHECK(refusal([&] { world.engine->submit_search("", wanted(warm.dump()), {}, nullptr); }) ==
        ErrorCode::conflict);
  programs.run();
  json cold = warm;
  cold.erase("warm_start");
  std::vector<json> params;
  for (const json& each : {warm, cold}) {
    programs.search = SearchId(submit(each.dump(), "").at("search").get<std::string>());
    programs.run();
    params.push_back(programs.trials().at(0).at("params"));
  }
  CHECK(params[0] != params[1]);
  CHECK(std::abs(params[0].at("lr").get<double>() - 0.3) < 0.25);
  world.restart();
  CHECK(submit(R"({"num_samples": 12})", "sub").at("search") == first.at("search"));
}

TEST_CASE("what a search cannot do is refused when it is submitted") {
  World world;
  Programs programs(world);
  const auto refused = [&](const std::string& text) {
    return refusal([&] { world.engine->submit_search("", wanted(text), {}, nullptr); });
  };
  CHECK(refused(R"({"warm_start": ["none-abcdef"]})") == ErrorCode::not_found);
  CHECK(refused(R"({"job": {"after": ["x"]}})") == ErrorCode::invalid);
  CHECK(refused(R"({"space": {"b": {"sample_from": "1 / 0"}}})") == ErrorCode::invalid);
  JobSpec job = World::spec();
  job.trial = TrialOfSearch{"mnist-abcdef", 0, 1, "{}"};
  CHECK(refusal([&] { world.engine->submit("", job, {}, nullptr); }) == ErrorCode::invalid);
  const json plan = world.engine->plan_search(wanted(R"({"num_samples": 5})"));
  CHECK(plan.at("fits") == true);
  CHECK(plan.at("total") == 5);
  CHECK(plan.at("params").contains("lr"));
}

TEST_CASE("a trial whose parameters cannot be computed fails by itself") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 6, "max_concurrent": 1, "fail_fast": false,
      "space": {"a": {"grid_search": [1, 0]}, "b": {"sample_from": "1 / a"}}})");
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.summary().at("counts").at("failed") == 6);
  CHECK(programs.summary().at("counts").at("complete") == 6);
  for (const json& trial : programs.trials()) {
    if (trial.at("state") == "failed") CHECK(trial.at("job").is_null());
  }
}

TEST_CASE("a full disk refuses a search, and loses none that is there") {
  World world;
  Programs programs(world);
  world.fill_disk(true);
  const json answer = programs.ask([&](Engine::Answer done) {
    world.engine->submit_search("", wanted(kAsha), {}, std::move(done));
  });
  CHECK(answer.contains("error"));
  CHECK(world.engine->searches(std::nullopt).at("searches").empty());
  world.fill_disk(false);
  programs.submit(kAsha);
  programs.step();
  programs.run();
  CHECK(programs.state() == "succeeded");
}

TEST_CASE("a trial for which there is no room waits for it") {
  World world;
  Programs programs(world);
  const fs::path secrets = world.options.root.root / "secrets";
  fs::create_directories(secrets);
  // For the search's and one trial's.
  const std::string room = "size=" + std::to_string(2 * ::sysconf(_SC_PAGESIZE));
  if (::geteuid() != 0 || ::mount("disk", secrets.c_str(), "tmpfs", 0, room.c_str()) != 0) {
    MESSAGE("skipped: no disk can be mounted");
    return;
  }
  struct Unmount {
    fs::path at;
    ~Unmount() { ::umount2(at.c_str(), MNT_DETACH); }
  } const unmount{secrets};
  programs.submit(R"({"num_samples": 2, "max_concurrent": 2, "job": {"secrets": ["TOKEN"]}})",
                  {{"TOKEN", "hush"}});
  const auto waits = [&] {
    return programs.summary().at("reason").get<std::string>().starts_with("waits for room: ");
  };
  world.until(waits);
  CHECK(programs.state() == "running");
  CHECK(programs.trials().size() == 1);
  programs.die();
  world.until(waits);
  CHECK(programs.trials().size() == 1);
  while (programs.trials().at(0).at("state") != "complete") programs.step();
  world.settle();
  world.advance(std::chrono::seconds(11));
  programs.run();
  CHECK(programs.state() == "succeeded");
  CHECK(programs.trials().size() == 2);
  CHECK(programs.summary().at("reason") == "");
}

TEST_CASE("with the cluster its searches stop, and go on under the next head when they are told") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 4, "max_concurrent": 2})");
  for (int i = 0; i < 5; ++i) programs.step();
  bool all = false;
  world.engine->stop_all([&](const json&) { all = true; });
  programs.run();
  CHECK(programs.state() == "stopped");
  CHECK(programs.summary().at("reason") == "the cluster is being shut down");
  world.until([&] { return all; });
  programs.die();
  programs.ask([&](Engine::Answer done) {
    world.engine->resume_search(programs.search, {}, std::move(done));
  });
  programs.run();
  CHECK(programs.state() == "succeeded");
}

TEST_CASE("a database that knows a search and not its jobs, or jobs and not their search") {
  World world;
  Programs programs(world);
  const SearchId id = programs.submit(R"({"num_samples": 4, "max_concurrent": 2,
                                          "fail_fast": false})");
  for (int i = 0; i < 4; ++i) programs.step();
  world.settle();
  const json trials = programs.trials();
  const std::string first = trials.at(0).at("job");
  const std::string second = trials.at(1).at("job");
  world.engine.reset();
  SUBCASE("the job of a trial is gone: the trial has failed, and others come") {
    Database(world.options.root.database())
        .run(("DELETE FROM jobs WHERE job = '" + first + "'").c_str());
    programs.die();
    programs.run();
    CHECK(programs.state() == "succeeded");
    const json now = programs.trials();
    CHECK(now.at(0).at("state") == "failed");
    CHECK(now.at(0).at("reason") == first + " is not known any more");
    CHECK(now.at(1).at("state") == "complete");
    CHECK(now.at(3).at("state") == "complete");
  }
  SUBCASE("its records are of before: a trial begins again, and its old job is ended") {
    Database(world.options.root.database())
        .run(("DELETE FROM search_records WHERE seq >= (SELECT seq FROM search_records WHERE job = "
              "'" +
              second + "')")
                 .c_str());
    programs.die();
    programs.run();
    CHECK(programs.state() == "succeeded");
    CHECK(programs.trials().at(1).at("params") == trials.at(1).at("params"));
    CHECK(programs.trials().at(1).at("job") != second);
    CHECK(programs.trials().at(1).at("state") == "complete");
    CHECK(world.state(JobId(second)) == "stopped");
  }
  SUBCASE("it is not there at all: its jobs are ended") {
    Database(world.options.root.database()).run("DELETE FROM searches");
    programs.die();
    programs.run_jobs();
    CHECK(world.state(JobId(first)) == "stopped");
    CHECK(world.engine->job(JobId(first)).at("reason").get<std::string>().find(id.str()) !=
          std::string::npos);
  }
  SUBCASE("it cannot be read: its jobs run on, and a head that can read it has all of it") {
    Database(world.options.root.database())
        .run("UPDATE search_records SET kind = kind + 100 WHERE seq = 1");
    programs.die();
    CHECK(programs.state() == "failed");
    CHECK(programs.summary().at("reason").get<std::string>().starts_with("it cannot be read"));
    programs.run_jobs();
    CHECK(world.state(JobId(first)) == "succeeded");
    world.engine.reset();
    Database(world.options.root.database())
        .run("UPDATE search_records SET kind = kind - 100 WHERE seq = 1");
    programs.die();
    programs.run();
    CHECK(programs.state() == "succeeded");
    CHECK(programs.summary().at("counts").at("complete") == 4);
  }
  SUBCASE("it has the end of a trial whose job is of before: the trial stays what it is") {
    programs.die();
    while (world.state(JobId(first)) != "succeeded") programs.step();
    world.settle();
    world.engine.reset();
    Database(world.options.root.database())
        .run(
            ("UPDATE jobs SET state = 'queued', ended = NULL WHERE job = '" + first + "'").c_str());
    programs.die();
    world.until([&] { return world.state(JobId(first)) == "stopped"; });
    programs.run();
    CHECK(programs.state() == "succeeded");
    CHECK(programs.summary().at("counts").at("complete") == 4);
  }
}

TEST_CASE("a head is back within seconds from a search of ten thousand trials") {
  World world;
  Programs programs(world);
  programs.submit(R"({"num_samples": 10001, "max_concurrent": 1,
                      "scheduler": {"algorithm": "asha", "max_t": 100}})");
  programs.ask([&](Engine::Answer done) {
    world.engine->stop_search(programs.search, std::nullopt, std::move(done));
  });
  programs.run();
  world.engine.reset();
  const std::string name = "'" + programs.search.str() + "'";
  {
    Database database(world.options.root.database());
    database.run(
        "BEGIN; DELETE FROM search_records; UPDATE searches SET state = 'running', "
        "ended = NULL;");
    // Of each trial: how it started, 30 reports, its end.
    const std::string numbers =
        "WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 9999), "
        "r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 31) ";
    database.run((numbers + "INSERT INTO search_records SELECT " + name +
                  ", n * 32 + i + 1, CASE i WHEN 0 THEN 1 WHEN 31 THEN 6 ELSE 3 END, n, "
                  "CASE i WHEN 31 THEN 6 ELSE i END, i, i, i, 0.5, 0.5, "
                  "CASE i WHEN 0 THEN 'job-' || n ELSE '' END, "
                  "CASE i WHEN 0 THEN '{\"lr\":0.5}' ELSE '' END FROM t, r")
                     .c_str());
    database.run("COMMIT");
  }
  const auto begin = std::chrono::steady_clock::now();
  programs.die();
  CHECK(programs.summary().at("counts").at("complete") == 10'000);
  const auto took = std::chrono::steady_clock::now() - begin;
  MESSAGE("320,000 records: ", std::chrono::duration_cast<std::chrono::milliseconds>(took).count(),
          " ms");
  CHECK(took < std::chrono::minutes(10));
  programs.length = 1;
  programs.run();
  CHECK(programs.summary().at("counts").at("complete") == 10'001);
  CHECK(programs.view(1000).at("trials").size() == 1000);
}
