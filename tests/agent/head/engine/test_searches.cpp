#include <sys/mount.h>
#include <unistd.h>

#include "agent/head/store/lineage.hpp"
#include "tests/agent/head/engine/search_programs.hpp"

// How the jobs of a search follow each other, and what else a person and a full cluster do to them.

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using nlohmann::json;

TEST_CASE("trials of a search run as jobs, and asha stops the worse ones") {
  World world;
  SearchPrograms programs(world);
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
  CHECK(world.engine->jobs_meant("").at("jobs").size() == 1);  // only to say that there are some
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

TEST_CASE("trials that run are shown first, then those that wait, then the others") {
  World world;
  SearchPrograms programs(world, 1);  // one runs at a time
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
    world.finish("node-0", job, 1, wire::NodeFinished::Outcome::stopped);
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
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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
    SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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

TEST_CASE("a search of more trials than are stopped and begun at once stops, and goes on") {
  World world;
  SearchPrograms programs(world, 110);
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

TEST_CASE("next legs that cannot begin end their trials, and none that is about to begin") {
  World world;
  SearchPrograms programs(world);
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

TEST_CASE("the job of a trial that a person stops is that trial's end") {
  World world;
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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

TEST_CASE("a time budget is over no later where the clock is set back") {
  World world;
  SearchPrograms programs(world);
  programs.submit(R"({"num_samples": 100, "max_concurrent": 2, "time_budget_s": 7200})");
  for (int i = 0; i < 5; ++i) programs.step();
  const auto pass = [&](int minutes) {
    for (int i = 0; i < 2 * minutes; ++i) {
      world.advance(std::chrono::seconds(15));
      world.engine->heard(NodeId("node-0"));
      world.advance(std::chrono::seconds(15));
      world.engine->heard(NodeId("node-0"));
    }
  };
  pass(30);
  world.clock.set_wall(std::chrono::hours(-1));
  pass(89);  // from the 60th minute on the clock shows when it began once more
  CHECK(programs.state() == "running");
  pass(2);
  CHECK(programs.state() == "stopping");
}

TEST_CASE("a time budget counts anew when a search that was stopped goes on") {
  World world;
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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

TEST_CASE("as many trials wait as run, and two at least") {
  World world;
  SearchPrograms programs(world);
  programs.submit(R"({"num_samples": 100})");
  world.until([&] { return programs.summary().at("begun") == 8; });
  world.settle();
  const json counts = programs.summary().at("counts");  // node-0 has four CPUs
  CHECK(counts.at("running") == 4);
  CHECK(counts.at("waiting") == 4);
}

TEST_CASE("the same submission is the same search, and a warm start learns from one that ended") {
  World world;
  SearchPrograms programs(world);
  const auto submit = [&](const std::string& text, const std::string& submission) {
    return programs.ask([&](Engine::Answer done) {
      world.engine->submit_search(submission, search_spec_of(text), {}, std::move(done));
    });
  };
  const json first = submit(R"({"num_samples": 12, "max_concurrent": 4})", "sub");
  CHECK(submit(R"({"num_samples": 12, "max_concurrent": 4})", "sub") == first);
  programs.search = SearchId(first.at("search").get<std::string>());
  const json warm = {{"num_samples", 1},
                     {"search", {{"algorithm", "tpe"}, {"n_startup_trials", 10}}},
                     {"warm_start", json::array({programs.search.str()})}};
  CHECK(refusal([&] {
          world.engine->submit_search("", search_spec_of(warm.dump()), {}, nullptr);
        }) == ErrorCode::conflict);
  programs.run();
  // What was best of another metric, or the other way round, is nothing to go by.
  for (const json& other : {json{{"metric", "loss"}}, json{{"mode", "min"}}}) {
    json unlike = warm;
    unlike.update(other);
    CHECK_THROWS_WITH_AS(
        world.engine->submit_search("", search_spec_of(unlike.dump()), {}, nullptr),
        doctest::Contains((programs.search.str() + ", which is for accuracy (max), by a").c_str()),
        Error);
  }
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
  SearchPrograms programs(world);
  const auto refused = [&](const std::string& text) {
    return refusal([&] { world.engine->submit_search("", search_spec_of(text), {}, nullptr); });
  };
  CHECK(refused(R"({"warm_start": ["none-abcdef"]})") == ErrorCode::not_found);
  CHECK(refused(R"({"job": {"after": ["x"]}})") == ErrorCode::invalid);
  CHECK(refused(R"({"space": {"b": {"sample_from": "1 / 0"}}})") == ErrorCode::invalid);
  JobSpec job = World::spec();
  job.trial = TrialOfSearch{"mnist-abcdef", 0, 1, "{}"};
  CHECK(refusal([&] { world.engine->submit("", job, {}, nullptr); }) == ErrorCode::invalid);
  const json plan = world.engine->plan_search(search_spec_of(R"({"num_samples": 5})"));
  CHECK(plan.at("fits") == true);
  CHECK(plan.at("total") == 5);
  CHECK(plan.at("params").contains("lr"));
}

TEST_CASE("a trial whose parameters cannot be computed fails by itself") {
  World world;
  SearchPrograms programs(world);
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

TEST_CASE("a trial for which there is no room waits for it") {
  World world;
  SearchPrograms programs(world);
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
