#include <doctest/doctest.h>

#include <algorithm>

#include "agent/head/store/copies.hpp"
#include "agent/head/store/sqlite.hpp"
#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using dtrain::testing::write;
using Outcome = wire::NodeFinished::Outcome;

// A head whose database is a copy of an earlier time.
namespace {

// In which the node goes on to speak.
void pass(World& world, std::chrono::seconds time) {
  for (; time.count() > 0; time -= std::chrono::seconds(10)) {
    world.engine->heard(NodeId("node-1"));
    world.advance(std::min(time, std::chrono::seconds(10)));
  }
}

void copy_now(World& world) {
  world.settle();
  std::optional<nlohmann::json> answer;
  world.engine->make_copy([&](const nlohmann::json& json) { answer = json; });
  world.until([&] { return answer.has_value(); });
  REQUIRE(answer->contains("path"));
}

// The head dies, and of its database nothing is left but the copy.
void lose_database(World& world) {
  world.settle();
  world.engine.reset();
  fs::resize_file(world.options.root.database(), 0);
  world.sent.clear();
  world.starts.clear();
  world.restart();
  world.settle();
}

nlohmann::json store_of(const World& world) {
  return world.engine->status()["cluster"]["store"];
}

// With the folders of jobs that it has.
void join(World& world, const std::string& node, std::vector<std::pair<JobId, int>> attempts,
          std::vector<JobId> jobs) {
  NodeInfo info = World::info_of(node);
  info.attempts = std::move(attempts);
  info.jobs = std::move(jobs);
  world.engine->joined(info);
}

JobId run(World& world, const JobSpec& spec) {
  const JobId job = world.submit(spec);
  world.started("node-1", job, 1);
  world.start_ranks("node-1", job, 1, 0, 1);
  world.settle();
  return job;
}

JobId run(World& world) {
  return run(world, World::spec());
}

fs::path committed(World& world, const JobId& job, int attempt, int step) {
  const fs::path folder = world.folder / ("made-" + std::to_string(step));
  write(folder / "model", "weights");
  wire::RankReport report;
  report.rank = 0;
  report.body = {{"type", "checkpoint"}, {"step", step}, {"path", folder.string()}, {"ack", true}};
  world.say("node-1", job, attempt, report);
  const std::uint64_t seq = world.seqs.at({"node-1", job.str(), attempt});
  world.until([&] { return world.answer("node-1", job, attempt, seq).has_value(); });
  const nlohmann::json answer = *world.answer("node-1", job, attempt, seq);
  REQUIRE(answer.value("ok", false));
  return answer.value("path", "");
}

}  // namespace

TEST_CASE("restored: an attempt that ran in the copy, and runs, goes on") {
  World world;
  world.join("node-1");
  const JobId job = run(world);
  copy_now(world);
  wire::RankReport said;
  said.body = {{"type", "metrics"}, {"step", 7}, {"metrics", {{"loss", 1.0}}}};
  world.say("node-1", job, 1, said);
  lose_database(world);
  CHECK(store_of(world)["restored"]["why"] == "it is empty");
  CHECK(store_of(world)["backup"]["age_s"].is_number());
  join(world, "node-1", {{job, 1}}, {job});
  CHECK(world.state(job) == "running");
  CHECK(world.stops("node-1", job, 1) == 0);
  world.exit_rank("node-1", job, 1, 0, 0);
  world.finish("node-1", job, 1, Outcome::succeeded);
  world.until([&] { return world.state(job) == "succeeded"; });
  CHECK(world.said(job, "was restored from a copy") == 1);
}

TEST_CASE("restored: an attempt that the copy does not know is ended, and its number not used") {
  World world;
  const JobId job = world.submit(World::spec());
  copy_now(world);
  world.join("node-1");
  world.started("node-1", job, 1);
  world.start_ranks("node-1", job, 1, 0, 1);
  lose_database(world);
  CHECK(world.state(job) == "queued");
  join(world, "node-1", {{job, 7}}, {job});
  CHECK(world.stops("node-1", job, 7) == 1);
  wire::NodeFinished end;
  end.outcome = Outcome::stopped;
  world.repeat("node-1", job, 7, 100, end);
  pass(world, std::chrono::seconds(50));
  CHECK(world.starts.empty());
  CHECK(world.engine->job(job)["reason"].get<std::string>().find("attempts may run") !=
        std::string::npos);
  pass(world, std::chrono::seconds(10));
  world.started("node-1", job, 7 + 1001);
  // The next one follows on that.
  world.start_ranks("node-1", job, 1008, 0, 1);
  world.settle();
  CHECK(world.engine->job(job)["attempt"] == 1008);
  world.restart();
  CHECK(store_of(world)["restored"]["settled"] == true);
  CHECK(world.said(job, "was restored from a copy") == 1);
}

TEST_CASE("restored: a job waits for the lease anew when the head dies meanwhile") {
  World world;
  const JobId job = world.submit(World::spec());
  copy_now(world);
  lose_database(world);
  world.advance(std::chrono::seconds(50));
  world.restart();
  world.join("node-1");
  pass(world, std::chrono::seconds(50));
  CHECK(world.starts.empty());
  pass(world, std::chrono::seconds(10));
  world.started("node-1", job, 1001);
  CHECK(world.said(job, "was restored from a copy") == 1);
  // What is submitted from now on waits for nothing.
  CHECK(world.started("node-1", world.submit(World::spec()), 1).nproc == 1);
}

TEST_CASE("restored: an end that is lost is named, and counts as a lost node does") {
  World world;
  world.join("node-1");
  const JobId job = run(world);
  copy_now(world);
  world.exit_rank("node-1", job, 1, 0, 0);
  world.finish("node-1", job, 1, Outcome::succeeded);
  world.until([&] { return world.state(job) == "succeeded"; });
  lose_database(world);
  CHECK(world.state(job) == "running");
  join(world, "node-1", {}, {job});
  world.settle();
  CHECK(world.state(job) == "restarting");
  const nlohmann::json first = world.engine->job(job)["attempts"][0];
  CHECK(first["state"] == "lost");
  CHECK(first["failure"] == "node_lost");
  CHECK(first["reason"].get<std::string>().find("how attempt 1 ended on node-1 is not known") == 0);
  CHECK(world.engine->job(job)["restarts"] == 0);
  pass(world, std::chrono::seconds(60));
  world.started("node-1", job, 1002);
}

TEST_CASE("restored: an attempt that was starting in the copy") {
  World world;
  world.join("node-1");
  const JobId job = world.submit(World::spec());
  world.started("node-1", job, 1);
  copy_now(world);
  world.start_ranks("node-1", job, 1, 0, 1);
  world.settle();
  lose_database(world);
  SUBCASE("runs: its ranks have started, whatever is not said again") {
    join(world, "node-1", {{job, 1}}, {job});
    CHECK(world.stops("node-1", job, 1) == 0);
    wire::RankReport said;
    said.body = {{"type", "metrics"}, {"step", 7}, {"metrics", {{"loss", 1.0}}}};
    world.say("node-1", job, 1, said);
    CHECK(world.state(job) == "running");
    world.exit_rank("node-1", job, 1, 0, 0);
    world.finish("node-1", job, 1, Outcome::succeeded);
    world.until([&] { return world.state(job) == "succeeded"; });
  }
  SUBCASE("has ended: it is not started again by its number") {
    join(world, "node-1", {}, {job});
    world.settle();
    CHECK(world.state(job) == "restarting");
    pass(world, std::chrono::seconds(60));
    world.started("node-1", job, 1002);
    CHECK_FALSE(world.was_started(job, 1));
  }
  CHECK(world.starts.size() <= 1);
}

TEST_CASE("restored: jobs that are not known stay where they are until somebody removes them") {
  World world;
  world.join("node-1");
  copy_now(world);
  JobSpec spec = World::spec("later");
  const JobId job = run(world, spec);
  const fs::path checkpoint = committed(world, job, 1, 5);
  REQUIRE(fs::exists(checkpoint));
  const fs::path secrets = world.options.root.secrets(job);
  fs::create_directories(secrets.parent_path());
  write(secrets, "{}");
  lose_database(world);
  CHECK_THROWS_AS((void)world.engine->job(job), Error);
  join(world, "node-1", {{job, 1}}, {job});
  CHECK(world.stops("node-1", job, 1) == 1);  // it holds what others are told is free
  world.until(
      [&] { return store_of(world)["unknown_jobs"].dump().find("head") != std::string::npos; });
  CHECK(store_of(world)["unknown_jobs"] ==
        nlohmann::json::parse(R"([{"job": ")" + job.str() + R"(", "where": ["head", "node-1"]}])"));
  CHECK(world.engine->restored_lately());
  // Nothing is placed there before it is over.
  const JobId other = world.submit(World::spec());
  world.settle();
  CHECK(world.starts.empty());
  std::string refused;
  try {
    world.engine->remove(job, nullptr);
  } catch (const Error& error) {
    refused = error.message();
  }
  CHECK(refused.find("still runs on node-1") != std::string::npos);
  wire::NodeFinished end;
  end.outcome = Outcome::stopped;
  world.repeat("node-1", job, 1, 100, end);
  world.started("node-1", other, 1);
  world.advance(std::chrono::hours(2));
  world.restart();
  join(world, "node-1", {}, {job, other});
  world.until(
      [&] { return store_of(world)["unknown_jobs"].dump().find("head") != std::string::npos; });
  CHECK(world.forgotten.empty());
  CHECK(fs::exists(checkpoint));
  CHECK(fs::exists(secrets));
  std::optional<nlohmann::json> answer;
  world.engine->remove(job, [&](const nlohmann::json& json) { answer = json; });
  world.until([&] { return answer.has_value() && !fs::exists(checkpoint); });
  CHECK(world.forgotten == std::vector<std::pair<NodeId, JobId>>{{NodeId("node-1"), job}});
  CHECK_FALSE(fs::exists(secrets));
  CHECK(store_of(world)["unknown"] == 0);
}

TEST_CASE("restored: checkpoints of after the copy are found, and none is overwritten") {
  World world;
  world.join("node-1");
  const JobId job = run(world);
  committed(world, job, 1, 5);
  copy_now(world);
  const fs::path later = committed(world, job, 1, 10);
  const std::uint64_t said = world.seqs.at({"node-1", job.str(), 1});
  lose_database(world);
  world.until([&] { return world.engine->job(job)["checkpoints"].size() == 2; });
  CHECK(world.said(job, "was found in the storage") == 1);
  join(world, "node-1", {{job, 1}}, {job});
  SUBCASE("its report is said again") {
    wire::RankReport report;
    report.body = {{"type", "checkpoint"},
                   {"step", 10},
                   {"path", (world.folder / "made-10").string()},
                   {"ack", true}};
    world.sent.clear();
    world.repeat("node-1", job, 1, said, report);
    world.until([&] { return world.answer("node-1", job, 1, said).has_value(); });
    CHECK((*world.answer("node-1", job, 1, said))["path"] == later.string());
  }
  SUBCASE("the next one") {
    world.seqs[{"node-1", job.str(), 1}] = said + 10;
  }
  const fs::path next = committed(world, job, 1, 15);
  CHECK(next.filename().string() > later.filename().string());
  world.exit_rank("node-1", job, 1, 0, 1);
  world.finish("node-1", job, 1, Outcome::failed);
  world.settle();
  std::string steps;
  const nlohmann::json all = world.engine->job(job);
  for (const nlohmann::json& each : all["checkpoints"]) {
    steps += each["step"].dump() + " ";
  }
  CHECK(steps == "5 10 15 ");
}

TEST_CASE("restored: events have ids that nobody was told before") {
  World world;
  world.join("node-1");
  copy_now(world);
  const JobId told = run(world);
  world.settle();
  const auto last = [&](const JobId& job) {
    std::optional<nlohmann::json> answer;
    world.engine->job_events(job, [&](const nlohmann::json& json) { answer = json; });
    world.until([&] { return answer.has_value(); });
    return (*answer)["events"].back()["event"].get<std::int64_t>();
  };
  const std::int64_t before = last(told);
  lose_database(world);
  world.restart();
  world.join("node-1");
  const JobId job = world.submit(World::spec());
  world.settle();
  CHECK(last(job) > before);
}

TEST_CASE("a job that cannot be read costs no other") {
  World world;
  const JobId good = world.submit(World::spec());
  const JobId bad = world.submit(World::spec());
  world.settle();
  world.engine.reset();
  {
    Database database(world.options.root.database());
    Statement(database.handle(), "UPDATE jobs SET spec = '{\"nnodes\": []}' WHERE job = ?")
        .run(bad.str());
  }
  world.restart();
  CHECK(world.state(good) == "queued");
  CHECK(store_of(world)["unknown_jobs"].dump().find("database") != std::string::npos);
  CHECK(store_of(world)["restored"].is_null());
}

// A head that finds this as the job's spec. Gives what it was.
std::string restart_with(World& world, const JobId& job, const std::string& spec) {
  world.engine.reset();
  Database database(world.options.root.database());
  std::string before = database.text("SELECT spec FROM jobs ORDER BY created LIMIT 1");
  Statement(database.handle(), "UPDATE jobs SET spec = ? WHERE job = ?").run(spec, job.str());
  world.sent.clear();
  world.starts.clear();
  world.restart();
  return before;
}

TEST_CASE("a job that cannot be read runs on, and a head that can read it hears all of it") {
  World world;
  world.join("node-1");
  const JobId job = run(world);
  const fs::path secrets = world.options.root.secrets(job);
  fs::create_directories(secrets.parent_path());
  write(secrets, "{}");
  const std::string spec = restart_with(world, job, R"({"launcher": "later"})");
  CHECK(world.engine->has_unread_jobs());
  CHECK(world.engine->is_open(job));
  CHECK(world.engine->open_job() == job);
  join(world, "node-1", {{job, 1}}, {job});
  CHECK(world.engine->nodes_in_use().contains(NodeId("node-1")));
  CHECK(world.engine->knows_share(NodeId("node-1"), job, 1));
  const JobId other = world.submit(World::spec());
  world.settle();
  CHECK(world.starts.empty());
  CHECK_THROWS_WITH_AS(world.engine->remove(job, nullptr), doctest::Contains("still runs on"),
                       Error);
  // It ends meanwhile, and nobody is told that this was heard.
  const std::tuple node_attempt("node-1", job.str(), 1);
  const std::uint64_t heard = world.seqs.at(node_attempt);
  world.exit_rank("node-1", job, 1, 0, 0);
  world.finish("node-1", job, 1, Outcome::succeeded);
  world.started("node-1", other, 1);
  CHECK(world.stops("node-1", job, 1) == 0);
  CHECK(world.acknowledged("node-1", job, 1) == 0);
  CHECK(world.forgotten.empty());
  CHECK(fs::exists(secrets));
  restart_with(world, job, spec);
  CHECK_FALSE(world.engine->has_unread_jobs());
  CHECK(world.state(job) == "running");
  join(world, "node-1", {{job, 1}}, {job, other});
  world.seqs[node_attempt] = heard;
  world.exit_rank("node-1", job, 1, 0, 0);
  world.finish("node-1", job, 1, Outcome::succeeded);
  world.until([&] { return world.state(job) == "succeeded"; });
}

TEST_CASE("a person may end a job that cannot be read, and remove it then") {
  World world;
  world.join("node-1");
  const JobId job = run(world);
  restart_with(world, job, R"({"launcher": "later"})");
  join(world, "node-1", {{job, 1}}, {job});
  nlohmann::json answer;
  world.engine->stop(job, std::nullopt, [&](nlohmann::json said) { answer = std::move(said); });
  world.settle();
  CHECK(answer.at("state") == "stopping");
  CHECK(world.stops("node-1", job, 1) == 1);
  world.exit_rank("node-1", job, 1, 0, 0, true);
  world.finish("node-1", job, 1, Outcome::stopped);
  world.engine->remove(job, [&](nlohmann::json said) { answer = std::move(said); });
  world.settle();
  CHECK_FALSE(world.engine->has_unread_jobs());
  world.started("node-1", world.submit(World::spec()), 1);
}

TEST_CASE("restored: a node that only a job's rows name is awaited, and lost if it does not come") {
  World world(2);
  world.join("node-1");
  JobSpec spec = World::spec();
  spec.max_restarts = 0;
  const JobId job = run(world, spec);
  world.engine.reset();
  Database(world.options.root.database()).run("DELETE FROM nodes");
  world.starts.clear();
  world.restart();
  world.settle();
  nlohmann::json nodes = world.engine->status()["nodes"];
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0]["node"] == "node-1");
  CHECK(nodes[0]["state"] == "joining");
  world.join("node-2");
  for (int i = 0; i < 20; ++i) {
    world.engine->heard(NodeId("node-2"));
    world.advance(std::chrono::seconds(10));
  }
  world.started("node-2", job, 2);
  CHECK(world.engine->job(job).at("attempts")[0].at("failure") == "node_lost");
}
