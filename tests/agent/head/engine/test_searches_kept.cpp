#include <chrono>
#include <fstream>

#include "agent/head/store/sqlite.hpp"
#include "tests/agent/head/engine/search_programs.hpp"

// What of a search is on the disk: over a real database, for a head that comes after one that died.

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using nlohmann::json;

TEST_CASE("a head that dies after whatever happened loses no trial, and decides the same") {
  for (const char* text : {kAsha, kPromoting, kPbt, kTpe}) {
    CAPTURE(text);
    const bool checkpoints = text == kPromoting || text == kPbt;
    std::string whole;
    {
      World world;
      SearchPrograms programs(world);
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
      SearchPrograms programs(world);
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

TEST_CASE("a second stop of a search hurries it, also under another head") {
  World world;
  SearchPrograms programs(world);
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

TEST_CASE("while a search runs its jobs cannot be removed; with it all of them go") {
  World world;
  SearchPrograms programs(world);
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

TEST_CASE("the job that a search's trials start from cannot be removed before it has ended") {
  World world;
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
  const std::string tree(64, 'a');
  programs.submit(R"({"num_samples": 1})", {}, StartCheckpoint{"", 0, "/model", tree});
  CHECK(world.engine->content_trees().contains(tree));
  world.restart();
  CHECK(world.engine->content_trees().contains(tree));
  programs.run();
  CHECK_FALSE(world.engine->content_trees().contains(tree));
}

TEST_CASE("jobs of a search that has ended go by retention, the search stays until it is removed") {
  World world;
  SearchPrograms programs(world);
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

TEST_CASE("a search's secrets go to each of its trials, and end with it") {
  World world;
  SearchPrograms programs(world);
  const std::string text = R"({"num_samples": 2, "max_concurrent": 1,
                               "job": {"secrets": ["TOKEN"]}})";
  CHECK(refusal([&] { world.engine->submit_search("", search_spec_of(text), {}, nullptr); }) ==
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
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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

TEST_CASE("a full disk refuses a search, and loses none that is there") {
  World world;
  SearchPrograms programs(world);
  world.fill_disk(true);
  const json answer = programs.ask([&](Engine::Answer done) {
    world.engine->submit_search("", search_spec_of(kAsha), {}, std::move(done));
  });
  CHECK(answer.contains("error"));
  CHECK(world.engine->searches(std::nullopt).at("searches").empty());
  world.fill_disk(false);
  programs.submit(kAsha);
  programs.step();
  programs.run();
  CHECK(programs.state() == "succeeded");
}

TEST_CASE("with the cluster its searches stop, and go on under the next head when they are told") {
  World world;
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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
  SearchPrograms programs(world);
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
