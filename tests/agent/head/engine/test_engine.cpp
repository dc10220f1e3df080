#include <doctest/doctest.h>

#include "agent/head/store/sqlite.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;
using namespace std::chrono_literals;

TEST_CASE("a job from submit to its end") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec("env"));
  CHECK(id.str().starts_with("env-"));
  const wire::AttemptSpec spec = world.started("node-0", id, 1);
  CHECK(spec.world_size == 1);
  CHECK(spec.master_addr == "127.0.0.1");
  CHECK(spec.node_ips == std::vector<std::string>{"10.0.0.0"});
  CHECK(spec.token.size() > 32);
  CHECK_FALSE(spec.checkpoint.has_value());
  CHECK(world.state(id) == "starting");
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  CHECK(world.state(id) == "running");
  world.exit_rank("node-0", id, 1, 0, 0);
  CHECK(world.state(id) == "running");
  world.finish("node-0", id, 1, Outcome::succeeded);
  world.until([&] { return world.state(id) == "succeeded"; });
  world.settle();
  const auto job = world.engine->job(id);
  CHECK(job.at("exit_code") == 0);
  CHECK(job.at("error").is_null());
  CHECK(job.at("attempts").size() == 1);
  CHECK(job.at("attempts")[0].at("state") == "succeeded");
  CHECK(world.acknowledged("node-0", id, 1) == 4);
  CHECK_FALSE(world.engine->may_write(id));
  // The frames came in order, and the end came last.
  std::vector<std::string> states;
  for (const JobNews& each : world.news) {
    if (each.frame.at("type") == "state") states.push_back(each.frame.at("state"));
    if (each.frame.at("type") == "end") states.emplace_back("end");
  }
  CHECK(states == std::vector<std::string>{"starting", "running", "succeeded", "end"});
}

TEST_CASE("nothing is answered or started before it is durable") {
  World world;
  world.join("node-0");
  world.settle();
  world.shut_door();
  bool answered = false;
  world.engine->submit("s", World::spec(), {}, [&](const nlohmann::json&) { answered = true; });
  world.settle();
  CHECK_FALSE(answered);
  CHECK(world.engine->status().at("jobs").empty());
  world.open_door();
  world.until([&] { return answered; });
  const JobId id(world.engine->status().at("jobs")[0].at("job").get<std::string>());
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  world.settle();
  world.shut_door();
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, Outcome::succeeded);
  world.settle();
  CHECK(world.state(id) == "running");
  CHECK(world.acknowledged("node-0", id, 1) == 2);
  world.open_door();
  world.until([&] { return world.state(id) == "succeeded"; });
  world.settle();
  CHECK(world.acknowledged("node-0", id, 1) == 4);
}

TEST_CASE("a start waits for its record") {
  World world;
  const JobId id = world.submit(World::spec());
  world.settle();
  world.shut_door();
  world.join("node-0");
  world.until([&] { return world.waiting_at_door("starting"); });
  world.settle();
  CHECK(world.starts.empty());
  world.open_door();
  world.started("node-0", id, 1);
}

TEST_CASE("a full disk refuses a submit, and the head goes on") {
  World world;
  world.join("node-0");
  world.fill_disk(true);
  const auto refused = world.answer_to_submit(World::spec(), "once");
  CHECK(refused.at("error").at("code") == "exhausted");
  CHECK(world.engine->status().at("jobs").empty());
  world.fill_disk(false);
  const auto taken = world.answer_to_submit(World::spec(), "once");
  CHECK(taken.contains("job"));
}

TEST_CASE("the same submission is the same job, also after a restart of the head") {
  World world;
  world.join("node-0");
  const JobId first = world.submit(World::spec(), "abc");
  CHECK(world.submit(World::spec(), "abc") == first);
  world.restart();
  CHECK(world.submit(World::spec(), "abc") == first);
  CHECK(world.submit(World::spec(), "abd") != first);
}

TEST_CASE("a failure names its root cause, and other nodes are stopped at once") {
  World world(2);
  world.join("node-0");
  world.join("node-1");
  JobSpec spec = World::spec();
  spec.nnodes = {2, 2};
  spec.nproc_per_node.number = 2;
  const JobId id = world.submit(spec);
  const wire::AttemptSpec first = world.started("node-0", id, 1);
  CHECK(first.master_addr == "10.0.0.0");
  CHECK(first.nnodes == 2);
  world.settle();
  CHECK(world.starts.size() == 1);  // the second waits for the port
  world.say("node-0", id, 1, wire::MasterReady{29511});
  const wire::AttemptSpec second = world.started("node-1", id, 1);
  CHECK(second.master_port == 29511);
  CHECK(second.first_rank == 2);
  CHECK(second.world_size == 4);
  world.start_ranks("node-0", id, 1, 0, 2);
  CHECK(world.state(id) == "starting");
  world.start_ranks("node-1", id, 1, 2, 2);
  CHECK(world.state(id) == "running");
  world.exit_rank("node-1", id, 1, 3, 7);
  CHECK(world.stops("node-0", id, 1) == 1);
  CHECK(world.stops("node-1", id, 1) == 0);
  world.exit_rank("node-1", id, 1, 2, 143, true);
  world.finish("node-1", id, 1, Outcome::failed, "rank 3: exit code 7");
  world.exit_rank("node-0", id, 1, 0, 143, true);
  world.exit_rank("node-0", id, 1, 1, 143, true);
  world.finish("node-0", id, 1, Outcome::stopped, "another rank failed");
  world.until([&] { return world.state(id) == "failed"; });
  const auto job = world.engine->job(id);
  CHECK(job.at("exit_code") == 7);
  CHECK(job.at("error").at("rank") == 3);
  CHECK(job.at("error").at("node") == "node-1");
  CHECK(job.at("error").at("error_message") == "boom");
  CHECK(job.at("error").at("last_lines").size() == 2);
  CHECK(job.at("reason") == "rank 3 on node-1: exit code 7");
}

TEST_CASE("restarts, and no more than asked for") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.run_through("node-0", id, 1, 3);
  const wire::AttemptSpec again = world.started("node-0", id, 2);
  CHECK(again.attempt == 2);
  CHECK(again.token != world.starts.front().spec.token);
  world.run_through("node-0", id, 2, 3);
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.engine->job(id).at("attempts").size() == 2);
  CHECK(world.said(id, "restart 1 of 1 after rank 0 on node-0: exit code 3"));
}

TEST_CASE("repeats and old epochs have no effect, but are acknowledged") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.run_through("node-0", id, 1, 3);
  world.started("node-0", id, 2);
  world.say("node-0", id, 2, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 2, 0, 1);
  world.settle();
  const auto before = world.messages(id);
  world.sent.clear();
  world.repeat("node-0", id, 1, 4, wire::NodeFinished{Outcome::failed, "again", {}, 0});
  world.repeat("node-0", id, 2, 2, wire::RanksStarted{});
  world.repeat("node-0", id, 1, 9, wire::AttemptWarning{std::nullopt, "late"});
  world.settle();
  CHECK(world.acknowledged("node-0", id, 1) == 9);
  CHECK(world.acknowledged("node-0", id, 2) == 2);
  CHECK(world.messages(id) == before);
  CHECK(world.state(id) == "running");
  CHECK(world.stops("node-0", id, 1) == 0);  // its end is known: nothing of it lives
}

TEST_CASE("after a look at the queue that took long the next one waits, and comes") {
  World world;
  world.join("node-0");
  JobSpec all = World::spec("all");
  all.nproc_per_node.number = 4;
  const JobId first = world.submit(all);
  world.started("node-0", first, 1);
  world.say("node-0", first, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", first, 1, 0, 4);
  world.settle();
  // That the second one waits is told within the look.
  world.on_news = [&] { world.clock.advance(std::chrono::milliseconds(100)); };
  const JobId second = world.submit(all);
  world.settle();
  world.on_news = nullptr;
  for (int rank = 0; rank < 4; ++rank) world.exit_rank("node-0", first, 1, rank, 0);
  world.finish("node-0", first, 1, Outcome::succeeded);
  world.settle();
  CHECK(world.state(first) == "succeeded");
  CHECK_FALSE(world.was_started(second, 1));
  world.advance(std::chrono::seconds(2));  // the most that it waits
  world.started("node-0", second, 1);
}

TEST_CASE("a status of a few jobs has those first that have ranks, then those that wait") {
  World world;
  world.join("node-0");
  const JobId ended = world.submit(World::spec());
  world.run_through("node-0", ended, 1, 0);
  JobSpec wide = World::spec();
  wide.resources.cpu = 4;
  wide.resources_given = true;
  const JobId runs = world.submit(wide);
  world.started("node-0", runs, 1);
  const JobId first = world.submit(wide);
  const JobId second = world.submit(wide);
  world.settle();
  const auto ids = [&](std::optional<std::size_t> most) {
    std::vector<std::string> names;
    const nlohmann::json status = world.engine->status(most);
    for (const nlohmann::json& job : status.at("jobs")) names.push_back(job.at("job"));
    CHECK(status.at("job_counts") ==
          nlohmann::json({{"succeeded", 1}, {"starting", 1}, {"queued", 2}}));
    return names;
  };
  using Ids = std::vector<std::string>;
  CHECK(ids(std::nullopt) == Ids{second.str(), first.str(), runs.str(), ended.str()});
  CHECK(ids(4) == ids(std::nullopt));
  CHECK(ids(3) == Ids{runs.str(), second.str(), first.str()});
  CHECK(ids(1) == Ids{runs.str()});
  CHECK(ids(0).empty());
}

TEST_CASE("restart.backoff_s: nothing is placed before, also after a restart of the head") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 2;
  spec.restart.backoff = 20s;
  const JobId id = world.submit(spec);
  world.run_through("node-0", id, 1, 3);
  world.until([&] { return world.state(id) == "restarting"; });
  world.settle();
  CHECK(world.engine->job(id).at("reason").get<std::string>().find("waits until ") == 0);
  world.advance(15s);
  CHECK_FALSE(world.was_started(id, 2));
  SUBCASE("the head goes on") {
    world.advance(5s);
  }
  SUBCASE("it is started anew") {
    world.restart();
    world.join("node-0");
    world.settle();
    CHECK_FALSE(world.was_started(id, 2));
    world.advance(5s);
  }
  world.run_through("node-0", id, 2, 3);
  world.until([&] { return world.state(id) == "restarting"; });
  for (int i = 0; i < 3; ++i) {
    world.advance(13s);
    world.engine->heard(NodeId("node-0"));
  }
  CHECK_FALSE(world.was_started(id, 3));
  world.advance(1s);
  world.run_through("node-0", id, 3, 0);
  world.until([&] { return world.state(id) == "succeeded"; });
}

TEST_CASE("stop: waiting, running, and racing the end") {
  World world;
  world.join("node-0", {}, 1);
  const JobId first = world.submit(World::spec("first"));
  const JobId second = world.submit(World::spec("second"));
  world.started("node-0", first, 1);
  world.settle();
  CHECK(world.state(second) == "queued");
  CHECK(world.engine->job(second).at("reason") ==
        "needs 1 CPU on a node; node-0 has 0 of 1 CPU free");

  std::optional<nlohmann::json> answer;
  world.engine->stop(second, std::nullopt, [&](nlohmann::json json) { answer = json; });
  world.until([&] { return answer.has_value(); });
  CHECK(answer->at("state") == "stopped");

  world.say("node-0", first, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", first, 1, 0, 1);
  SUBCASE("running") {
    world.engine->stop(first, 5s, nullptr);
    world.until([&] { return world.stops("node-0", first, 1) > 0; });
    CHECK(world.state(first) == "stopping");
    world.exit_rank("node-0", first, 1, 0, 143, true);
    world.finish("node-0", first, 1, Outcome::stopped);
    world.until([&] { return world.state(first) == "stopped"; });
    CHECK(world.engine->job(first).at("reason") == "stopped by the user");
  }
  SUBCASE("it was done before the stop reached it") {
    world.engine->stop(first, std::nullopt, nullptr);
    world.exit_rank("node-0", first, 1, 0, 0);
    world.finish("node-0", first, 1, Outcome::succeeded);
    world.until([&] { return world.state(first) == "succeeded"; });
    world.settle();
    CHECK(world.state(first) == "succeeded");
  }
  SUBCASE("the head dies while it stops") {
    world.engine->stop(first, std::nullopt, nullptr);
    world.settle();
    world.sent.clear();
    world.restart();
    world.join("node-0", {{first, 1}}, 1);
    world.settle();
    CHECK(world.stops("node-0", first, 1) == 1);
    world.exit_rank("node-0", first, 1, 0, 143, true);
    world.finish("node-0", first, 1, Outcome::stopped);
    world.until([&] { return world.state(first) == "stopped"; });
  }
}

TEST_CASE("a job's state alone is what its details say of it") {
  World world;
  const JobId id = world.submit(World::spec());
  const auto check = [&] {
    const nlohmann::json all = world.engine->job(id);
    CHECK(world.engine->job_state(id) == nlohmann::json{{"state", all.at("state")},
                                                        {"reason", all.at("reason")},
                                                        {"exit_code", all.at("exit_code")}});
  };
  check();
  world.join("node-0");
  world.run_through("node-0", id, 1, 7);
  world.until([&] { return world.state(id) == "failed"; });
  check();
  CHECK(world.engine->job_state(id).at("exit_code") == 7);
  CHECK_THROWS_AS(world.engine->job_state(JobId("other-abcdef")), Error);
}

TEST_CASE("a stop while the start is being written") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  std::optional<nlohmann::json> answer;
  world.engine->stop(id, std::nullopt, [&](nlohmann::json json) { answer = json; });
  world.until([&] { return answer.has_value(); });
  world.until([&] { return world.state(id) == "stopped" || world.was_started(id, 1); });
  if (world.was_started(id, 1)) {
    CHECK(world.stops("node-0", id, 1) > 0);
  } else {
    CHECK(world.state(id) == "stopped");
  }
}

TEST_CASE("priorities, and jobs that come after others") {
  World world;
  world.join("node-0", {}, 1);
  const JobId running = world.submit(World::spec("running"));
  world.started("node-0", running, 1);
  JobSpec low = World::spec("low");
  const JobId low_id = world.submit(low);
  JobSpec high = World::spec("high");
  high.priority = 5;
  const JobId high_id = world.submit(high);
  JobSpec child = World::spec("child");
  child.priority = 9;
  child.after = {running.str()};
  const JobId child_id = world.submit(child);
  world.settle();
  CHECK(world.engine->job(low_id).at("reason") ==
        "waits behind " + high_id.str() + " (priority 5)");
  CHECK(world.engine->job(child_id).at("reason") == "waits for " + running.str() + " to succeed");
  SUBCASE("it succeeds") {
    world.run_through("node-0", running, 1, 0);
    world.run_through("node-0", high_id, 1, 0);
    world.run_through("node-0", child_id, 1, 0);
    world.run_through("node-0", low_id, 1, 0);
    world.until([&] { return world.state(low_id) == "succeeded"; });
  }
  SUBCASE("it fails") {
    world.run_through("node-0", running, 1, 1);
    world.until([&] { return world.state(child_id) == "failed"; });
    CHECK(world.engine->job(child_id).at("reason") ==
          "the job it comes after, " + running.str() + ", failed");
  }
}

TEST_CASE("timeouts") {
  World world;
  world.join("node-0", {}, 1);
  JobSpec spec = World::spec();
  spec.timeout = 10s;
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  JobSpec waiting = World::spec();
  waiting.queue_timeout = 5s;
  const JobId waiting_id = world.submit(waiting);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.advance(6s);
  CHECK(world.state(waiting_id) == "failed");
  CHECK(world.engine->job(waiting_id).at("reason").get<std::string>().find("queue_timeout_s") !=
        std::string::npos);
  CHECK(world.state(id) == "running");
  world.advance(5s);
  CHECK(world.state(id) == "stopping");
  CHECK(world.stops("node-0", id, 1) == 1);
  world.exit_rank("node-0", id, 1, 0, 143, true);
  world.finish("node-0", id, 1, Outcome::stopped);
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.engine->job(id).at("reason") == "it ran longer than timeout_s (10 s)");
}

TEST_CASE("secrets lie beside the database and go with the job") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.secrets = {{"TOKEN", std::nullopt}};
  CHECK_THROWS_AS(world.engine->submit("", spec, {}, nullptr), Error);
  const JobId id = world.submit(spec, "", {{"TOKEN", "hush-hush"}});
  const fs::path file = world.options.root.secrets(id);
  CHECK((fs::status(file).permissions() & fs::perms::mask) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  world.started("node-0", id, 1);
  CHECK(world.starts.front().secrets.at("TOKEN") == "hush-hush");
  world.settle();
  for (const auto& entry : fs::directory_iterator(world.options.root.root)) {
    if (!entry.is_regular_file()) continue;
    CHECK(read_file(entry.path()).find("hush-hush") == std::string::npos);
  }
  world.run_through("node-0", id, 1, 0);
  world.until([&] { return world.state(id) == "succeeded"; });
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("metrics and progress") {
  World world;
  const JobId id = world.begin("node-0", World::spec("job", 2));
  const auto metrics = [](int step, double loss, bool ack) {
    return nlohmann::json{
        {"type", "metrics"}, {"step", step}, {"metrics", {{"loss", loss}}}, {"ack", ack}};
  };
  world.say("node-0", id, 1, wire::RankReport{0, metrics(1, 0.5, false)});
  world.say("node-0", id, 1, wire::RankReport{1, metrics(1, 0.9, false)});
  world.say("node-0", id, 1, wire::RankReport{0, metrics(2, 0.4, true)});
  world.say("node-0", id, 1,
            wire::RankReport{1, {{"type", "progress"}, {"step", 2}, {"total", 9}}});
  world.until([&] { return world.answer("node-0", id, 1, 4).has_value(); });
  CHECK(*world.answer("node-0", id, 1, 4) == nlohmann::json{{"ok", true}});
  CHECK(world.engine->job(id).at("metrics").at("loss") == 0.4);
  CHECK(world.engine->job(id).at("step") == 2);
  CHECK(world.engine->job(id).at("progress").at("total") == 9);
  CHECK(world.metrics(id).size() == 3);
  world.settle();
  world.restart();
  world.join("node-0", {{id, 1}});
  world.repeat("node-0", id, 1, 4, wire::RankReport{0, metrics(2, 0.4, true)});
  world.settle();
  CHECK(world.metrics(id).size() == 3);
  CHECK(world.engine->job(id).at("metrics").at("loss") == 0.4);
}

TEST_CASE("of a job's metrics the first 4096 names have last values, the history all") {
  World world;
  const JobId id = world.begin("node-0");
  constexpr int kReports = 18;
  constexpr int kNames = 256;  // of a report
  for (int epoch = 0; epoch < kReports; ++epoch) {
    nlohmann::json values = {{"loss", epoch}};
    while (values.size() < kNames) {
      values["loss/epoch-" + std::to_string(epoch) + "/" + std::to_string(values.size())] = 1;
    }
    world.say("node-0", id, 1,
              wire::RankReport{0, {{"type", "metrics"}, {"step", epoch}, {"metrics", values}}});
  }
  world.settle();
  const nlohmann::json kept = world.engine->job(id).at("metrics");
  CHECK(kept.size() == 4096);
  CHECK(kept.at("loss") == kReports - 1);
  CHECK(world.said(id, "more than 4096 names") == 1);
  const nlohmann::json history = world.metrics(id);
  REQUIRE(history.size() == kReports);
  CHECK(history.back().at("metrics").size() == kNames);
}

TEST_CASE("a job whose last values cannot be read is there without them, and goes on") {
  World world;
  const JobId id = world.begin("node-0");
  world.settle();
  world.engine.reset();
  {
    Database database(world.options.root.database());
    Statement(database.handle(), "UPDATE jobs SET metrics = ? WHERE job = ?")
        .run("{\"" + std::string(std::size_t{17} << 20, 'x') + "\": 1}", id.str());
  }
  world.restart();
  world.join("node-0", {{id, 1}});
  CHECK(world.state(id) == "running");
  CHECK(world.engine->job(id).at("metrics").empty());
  world.say("node-0", id, 1,
            wire::RankReport{0, {{"type", "metrics"}, {"step", 1}, {"metrics", {{"loss", 0.5}}}}});
  CHECK(world.engine->job(id).at("metrics").at("loss") == 0.5);
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, Outcome::succeeded);
  world.until([&] { return world.state(id) == "succeeded"; });
}

TEST_CASE("a dry run") {
  World world;
  world.join("node-0", {}, 2);
  world.settle();
  JobSpec spec = World::spec();
  spec.nproc_per_node.number = 2;
  auto plan = world.engine->plan(spec);
  CHECK(plan.at("fits") == true);
  CHECK(plan.at("now") == true);
  CHECK(plan.at("placement")[0].at("ranks") == nlohmann::json{0, 1});
  spec.nnodes = {2, 2};
  plan = world.engine->plan(spec);
  CHECK(plan.at("fits") == false);
  CHECK(plan.at("now") == false);
  CHECK(plan.at("reason").get<std::string>().starts_with("cannot fit even on the empty cluster"));
}

TEST_CASE("stop_all ends everything, and refuses what comes then") {
  World world;
  world.join("node-0", {}, 1);
  const JobId first = world.submit(World::spec());
  const JobId second = world.submit(World::spec());
  world.started("node-0", first, 1);
  world.start_ranks("node-0", first, 1, 0, 1);
  bool done = false;
  world.engine->stop_all([&](const nlohmann::json&) { done = true; });
  world.settle();
  CHECK_FALSE(done);
  CHECK(world.state(second) == "stopped");
  CHECK_THROWS_AS(world.engine->submit("", World::spec(), {}, nullptr), Error);
  world.finish("node-0", first, 1, Outcome::stopped);
  world.until([&] { return done; });
  CHECK(world.state(first) == "stopped");
}

TEST_CASE("a job that is removed is gone, from the nodes too") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec(), "sub");
  CHECK_THROWS_AS(world.engine->remove(id, nullptr), Error);
  world.run_through("node-0", id, 1, 0);
  world.until([&] { return world.state(id) == "succeeded"; });
  bool removed = false;
  world.engine->remove(id, [&](const nlohmann::json&) { removed = true; });
  world.until([&] { return removed; });
  CHECK_THROWS_AS(world.engine->job(id), Error);
  CHECK(world.forgotten.size() == 1);
  world.restart();
  CHECK(world.engine->status().at("jobs").empty());
}

TEST_CASE("the head may die after any step") {
  // A script of what nodes and users do; the head is killed after step `cut`, and the supervisor
  // sends again what was not acknowledged.
  for (int cut = -1; cut < 8; ++cut) {
    CAPTURE(cut);
    World world;
    world.join("node-0");
    const JobId id = world.submit(World::spec(), "one");
    const auto die = [&](int step, bool known_to_node) {
      if (cut != step) return;
      world.restart();
      std::vector<std::pair<JobId, int>> attempts;
      if (known_to_node) attempts.emplace_back(id, 1);
      world.join("node-0", attempts);
    };
    die(0, false);
    world.started("node-0", id, 1);
    die(1, true);
    const std::vector<wire::AttemptEventBody> script = {
        wire::MasterReady{29500},
        wire::RanksStarted{{{0, 4711}}, world.clock.wall()},
        wire::RankReport{0, {{"type", "metrics"}, {"step", 3}, {"metrics", {{"loss", 0.25}}}}},
        wire::RankExited{0, {}, world.clock.wall(), false, "", 0, {}, false},
        wire::NodeFinished{},
    };
    std::uint64_t seq = 0;
    for (std::size_t i = 0; i < script.size(); ++i) {
      world.repeat("node-0", id, 1, ++seq, script[i]);
      if (cut == static_cast<int>(i) + 2) {
        // Without waiting: what was not durable is lost with the head.
        world.restart();
        world.join("node-0", {{id, 1}});
        for (std::uint64_t again = world.acknowledged("node-0", id, 1) + 1; again <= seq; ++again) {
          world.repeat("node-0", id, 1, again, script[again - 1]);
        }
      }
    }
    world.until([&] { return world.state(id) == "succeeded"; });
    world.until([&] { return world.acknowledged("node-0", id, 1) == 5; });
    world.settle();
    if (cut == 7) world.restart();
    const auto job = world.engine->job(id);
    CHECK(job.at("exit_code") == 0);
    CHECK(job.at("attempts").size() == 1);
    CHECK(job.at("metrics").at("loss") == 0.25);
    CHECK(world.metrics(id).size() == 1);
    CHECK(world.submit(World::spec(), "one") == id);
  }
}

TEST_CASE("a head finds the jobs that a reference may mean") {
  World world;
  const auto submit = [&](const std::string& name) {
    JobSpec spec = World::spec();
    spec.name = name;
    return world.submit(spec).str();
  };
  const std::string old = submit("mnist");
  const std::string other = submit("cifar");
  const std::string young = submit("mnist");
  world.settle();
  const auto meant = [&](const std::string& reference) {
    std::vector<std::string> ids;
    const nlohmann::json answer = world.engine->jobs_meant(reference);
    for (const auto& job : answer.at("jobs")) {
      ids.push_back(job.at("job").get<std::string>());
    }
    return ids;
  };
  using Ids = std::vector<std::string>;
  CHECK(meant("mnist") == Ids{young, old});
  CHECK(meant("mnist-") == Ids{young, old});
  CHECK(meant("cif") == Ids{other});
  CHECK(meant(old) == Ids{old});
  CHECK(meant("") == Ids{young, other, old});
  CHECK(meant("none").empty());
}
