#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/head/store/checkpoints.hpp"
#include "tests/agent/head/engine/world.hpp"
#include "tests/agent/head/store/sample_checkpoint.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;
using dtrain::head::testing::model_at;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;

namespace {

nlohmann::json checkpoint_line(const fs::path& path, int step, double acc, int shard = 0,
                               int shards = 1) {
  return {{"type", "checkpoint"}, {"step", step},     {"path", path.string()},
          {"shard", shard},       {"shards", shards}, {"metrics", {{"acc", acc}}},
          {"ack", true}};
}

// A job of one rank, which has started.
JobId begin_training(World& world, std::optional<int> num_to_keep = std::nullopt) {
  JobSpec spec = World::spec();
  spec.workdir = (world.folder / "work").string();
  spec.checkpoint.num_to_keep = num_to_keep;
  return world.begin("node-0", spec);
}

// What the head has said last of an event behind one that is not through; null: nothing.
const wire::EventHeard* heard(const World& world, std::uint64_t seq) {
  const wire::EventHeard* last = nullptr;
  for (const auto& each : world.sent) {
    const auto* one = std::get_if<wire::EventHeard>(&each.command);
    if (one != nullptr && one->seq == seq) last = one;
  }
  return last;
}

}  // namespace

TEST_CASE("reported, committed, answered, resumed from") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  spec.nproc_per_node.number = 2;
  spec.workdir = (world.folder / "work").string();
  const JobId id = world.submit(spec);
  const std::string storage = world.started("node-0", id, 1).storage_path;
  world.start_ranks("node-0", id, 1, 0, 2);
  const fs::path a = model_at(world.folder / "a");
  const fs::path b = model_at(world.folder / "b");
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(a, 4, 0.8, 0, 2)});
  world.settle();
  CHECK_FALSE(world.answer("node-0", id, 1, 2).has_value());
  world.say("node-0", id, 1, wire::RankReport{1, checkpoint_line(b, 4, 0.1, 1, 2)});
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  const auto answer = *world.answer("node-0", id, 1, 2);
  CHECK(answer.at("ok") == true);
  const std::string path = answer.at("path");
  CHECK(path == storage + "/checkpoints/checkpoint_000000");
  CHECK(fs::exists(fs::path(path) / "shard-00001-of-00002" / "model.safetensors"));
  auto job = world.engine->job(id);
  CHECK(job.at("checkpoints").size() == 1);
  CHECK(job.at("best_checkpoint").at("metrics").at("acc") == 0.8);
  CHECK(world.engine->checkpoints(id).size() == 1);

  SUBCASE("the next attempt starts from it") {
    world.exit_rank("node-0", id, 1, 0, 1);
    world.finish("node-0", id, 1, Outcome::failed);
    CHECK(world.started("node-0", id, 2).checkpoint == path);
  }
  SUBCASE("unless it is not whole any more") {
    fs::remove(fs::path(path) / "shard-00001-of-00002" / "model.safetensors");
    world.exit_rank("node-0", id, 1, 0, 1);
    world.finish("node-0", id, 1, Outcome::failed);
    CHECK_FALSE(world.started("node-0", id, 2).checkpoint.has_value());
    bool warned = false;
    for (const std::string& message : world.messages(id)) {
      warned = warned || message.starts_with("checkpoint_000000 is not whole");
    }
    CHECK(warned);
    CHECK(world.engine->job(id).at("checkpoints").empty());
  }
  SUBCASE("a repeat after a restart of the head gets the same answer") {
    world.settle();
    world.restart();
    world.sent.clear();
    world.join("node-0", {{id, 1}});
    world.repeat("node-0", id, 1, 2, wire::RankReport{0, checkpoint_line(a, 4, 0.8, 0, 2)});
    world.settle();
    CHECK(world.answer("node-0", id, 1, 2)->at("path") == path);
    CHECK(world.engine->job(id).at("checkpoints").size() == 1);
  }
}

TEST_CASE(
    "what is durable behind a checkpoint that is not whole is heard, and need not come again") {
  World world;
  const JobId id = world.begin("node-0", World::spec("job", 2));
  world.settle();
  const auto shard = [&](int step, int number) {
    const fs::path at = world.folder / (std::to_string(step) + "-" + std::to_string(number));
    return wire::RankReport{number, checkpoint_line(model_at(at), step, 0.8, number, 2)};
  };
  const wire::RankReport metrics{
      0, {{"type", "metrics"}, {"step", 5}, {"metrics", {{"loss", 0.5}}}, {"ack", true}}};
  const wire::RankReport second = shard(5, 0);
  world.say("node-0", id, 1, shard(4, 0));  // 2
  world.say("node-0", id, 1, second);       // 3
  world.say("node-0", id, 1, metrics);      // 4
  world.settle();
  CHECK(world.acknowledged("node-0", id, 1) == 1);
  REQUIRE(heard(world, 4) != nullptr);
  CHECK(heard(world, 4)->answer == nlohmann::json{{"ok", true}});
  // It had not come there.
  world.sent.clear();
  world.repeat("node-0", id, 1, 4, metrics);
  REQUIRE(heard(world, 4) != nullptr);
  CHECK(heard(world, 4)->answer == nlohmann::json{{"ok", true}});
  CHECK(world.metrics(id).size() == 1);
  CHECK(world.acknowledged("node-0", id, 1) == 0);

  // The rank waits for this answer before it reports its shard of the next.
  world.say("node-0", id, 1, shard(4, 1));  // 5
  world.until([&] { return heard(world, 5) != nullptr; });
  CHECK(heard(world, 5)->answer->at("ok") == true);
  CHECK(world.answer("node-0", id, 1, 2)->at("ok") == true);
  CHECK(world.acknowledged("node-0", id, 1) == 2);
  // The first of these goes with the second, and is heard still.
  for (int i = 0; i < 2; ++i) world.say("node-0", id, 1, metrics);  // 6 and 7
  world.settle();
  world.sent.clear();
  world.repeat("node-0", id, 1, 6, metrics);
  REQUIRE(heard(world, 6) != nullptr);
  CHECK(heard(world, 6)->answer == nlohmann::json{{"ok", true}});
  CHECK(world.acknowledged("node-0", id, 1) == 0);
  SUBCASE("by one head") {}
  SUBCASE("by the head after that, which hears of the rest alone") {
    world.settle();
    world.restart();
    world.join("node-0", {{id, 1}});
    CHECK(world.metrics(id).size() == 3);
    world.repeat("node-0", id, 1, 3, second);
  }
  world.say("node-0", id, 1, shard(5, 1));  // 8
  world.until([&] { return world.acknowledged("node-0", id, 1) == 8; });
  CHECK(world.answer("node-0", id, 1, 3)->at("ok") == true);
  CHECK(world.answer("node-0", id, 1, 8)->at("ok") == true);
  CHECK(world.engine->job(id).at("checkpoints").size() == 2);
  CHECK(world.metrics(id).size() == 3);
}

TEST_CASE("to a node that does not know it nothing is said of events behind a checkpoint") {
  World world;
  NodeInfo older = World::info_of("node-0");
  std::erase(older.features, "beats");
  world.engine->joined(older);
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  const fs::path at = model_at(world.folder / "a");
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(at, 4, 0.8, 0, 2)});
  world.say("node-0", id, 1,
            wire::RankReport{0, {{"type", "metrics"}, {"metrics", {{"loss", 0.5}}}}});
  world.settle();
  CHECK(world.acknowledged("node-0", id, 1) == 1);
  CHECK(std::none_of(world.sent.begin(), world.sent.end(), [](const auto& each) {
    return std::holds_alternative<wire::EventHeard>(each.command);
  }));
}

TEST_CASE("a checkpoint whose other shards never come is answered") {
  World world;
  const JobId id = world.begin("node-0", World::spec("job", 2));
  const auto shard = [&](int number, const fs::path& at) {
    return wire::RankReport{number, checkpoint_line(at, 4, 0.8, number, 2)};
  };
  world.say("node-0", id, 1, shard(0, model_at(world.folder / "a")));  // 2
  world.say("node-0", id, 1, shard(1, world.folder / "missing"));      // 3
  world.until([&] { return heard(world, 3) != nullptr; });
  CHECK(heard(world, 3)->answer->contains("error"));
  const auto pass = [&](std::chrono::minutes time) {
    for (auto passed = 0s; passed < time; passed += 10s) {
      world.engine->heard(NodeId("node-0"));
      world.advance(10s);
    }
    world.settle();
  };
  pass(29min);
  CHECK_FALSE(world.answer("node-0", id, 1, 2).has_value());
  SUBCASE("none comes") {
    pass(2min);
    CHECK(world.answer("node-0", id, 1, 2)->at("error") ==
          "not all of its shards came within 30 m 00 s");
    CHECK(world.engine->job(id).at("state") == "running");
  }
  SUBCASE("it comes late") {
    world.say("node-0", id, 1, shard(1, model_at(world.folder / "b")));  // 4
    world.until([&] { return world.answer("node-0", id, 1, 4).has_value(); });
    CHECK(world.answer("node-0", id, 1, 2)->at("ok") == true);
    CHECK(world.answer("node-0", id, 1, 4)->at("ok") == true);
  }
}

TEST_CASE("what was refused is refused again to who did not hear it") {
  World world;
  const JobId id = begin_training(world);
  const wire::RankReport refused{0, checkpoint_line(world.folder / "missing", 4, 0.8)};
  world.say("node-0", id, 1, refused);
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  REQUIRE(world.answer("node-0", id, 1, 2)->contains("error"));
  world.settle();
  SUBCASE("the link broke") {}
  SUBCASE("the head died") {
    world.restart();
    world.join("node-0", {{id, 1}});
  }
  world.sent.clear();
  world.repeat("node-0", id, 1, 2, refused);
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  CHECK_FALSE(world.answer("node-0", id, 1, 2)->contains("ok"));
  CHECK(world.answer("node-0", id, 1, 2)->at("error") ==
        "no checkpoint of step 4 is kept: it was refused, or deleted since");
}

TEST_CASE("the end of a job waits for its checkpoint") {
  World world;
  const JobId id = begin_training(world);
  world.say("node-0", id, 1,
            wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), 4, 0.8)});
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, Outcome::succeeded);
  world.until([&] { return world.state(id) == "succeeded"; });
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
  world.until([&] { return world.acknowledged("node-0", id, 1) == 4; });
}

TEST_CASE("a head that dies between rename and record takes the checkpoint in") {
  World world;
  const JobId id = begin_training(world);
  world.settle();
  const fs::path a = model_at(world.folder / "a");
  world.shut_door();
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(a, 4, 0.8)});
  const fs::path committed = world.options.root.storage(id) / "checkpoints" / "checkpoint_000000";
  world.until([&] { return fs::exists(committed); });
  world.restart();
  CHECK(world.engine->job(id).at("checkpoints").empty());
  world.join("node-0", {{id, 1}});
  world.repeat("node-0", id, 1, 2, wire::RankReport{0, checkpoint_line(a, 4, 0.8)});
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  CHECK(world.answer("node-0", id, 1, 2)->at("path") == committed.string());
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
}

TEST_CASE("shards of what a dead head had renamed are reported again one after the other") {
  World world;
  const JobId id = begin_training(world);
  world.settle();
  const fs::path a = model_at(world.folder / "a");
  const fs::path b = model_at(world.folder / "b");
  world.shut_door();
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(a, 4, 0.8, 0, 2)});
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(b, 4, 0.8, 1, 2)});
  const fs::path committed = world.options.root.storage(id) / "checkpoints" / "checkpoint_000000";
  world.until([&] { return fs::exists(committed); });
  world.restart();
  world.join("node-0", {{id, 1}});
  world.repeat("node-0", id, 1, 2, wire::RankReport{0, checkpoint_line(a, 4, 0.8, 0, 2)});
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  CHECK(world.answer("node-0", id, 1, 2)->at("path") == committed.string());
  SUBCASE("to one head") {}
  SUBCASE("the second to the head after that, which reads nothing that is on record") {
    world.settle();
    fs::remove(committed / "manifest.json");
    world.restart();
    world.sent.clear();
    world.join("node-0", {{id, 1}});
  }
  world.repeat("node-0", id, 1, 3, wire::RankReport{0, checkpoint_line(b, 4, 0.8, 1, 2)});
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  CHECK(world.answer("node-0", id, 1, 3)->at("path") == committed.string());
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
}

TEST_CASE("what num_to_keep lets go, on record, goes from the disk when the head is back") {
  World world;
  const JobId id = begin_training(world, 1);
  const fs::path storage = world.options.root.storage(id);
  const fs::path old = checkpoint_folder(storage, 0);
  const auto newest = [&] { return world.engine->job(id).at("checkpoints").at(0).at("number"); };
  world.say("node-0", id, 1,
            wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), 1, 0.5)});
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  world.settle();
  world.shut_door();
  world.say("node-0", id, 1,
            wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), 2, 0.5)});
  world.until([&] { return newest() == 1; });
  CHECK(fs::exists(old));
  SUBCASE("it was killed when that was durable") {
    world.open_door();
    world.restart();
    CHECK(world.engine->job(id).at("checkpoints").size() == 1);
    CHECK(newest() == 1);
    world.until([&] { return !fs::exists(old); });
    CHECK(fs::exists(checkpoint_folder(storage, 1)));
    world.settle();
    world.restart();
    CHECK(newest() == 1);
  }
  SUBCASE("before: nothing is known of it") {
    world.restart();
    world.settle();
    CHECK(newest() == 0);
    CHECK(fs::exists(old));
  }
}

TEST_CASE("a checkpoint that one scan could not read is back with the next, not deleted") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 9;
  spec.workdir = (world.folder / "work").string();
  spec.checkpoint.num_to_keep = 2;
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  for (int step = 1; step <= 2; ++step) {
    world.say("node-0", id, 1,
              wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), step, 0.5)});
    world.until([&] {
      return world.answer("node-0", id, 1, static_cast<std::uint64_t>(step) + 1).has_value();
    });
  }
  const fs::path first = checkpoint_folder(world.options.root.storage(id), 0);
  fs::rename(first / "manifest.json", world.folder / "away");
  world.exit_rank("node-0", id, 1, 0, 1);
  world.finish("node-0", id, 1, Outcome::failed);
  world.started("node-0", id, 2);
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
  fs::rename(world.folder / "away", first / "manifest.json");
  world.settle();
  world.restart();
  world.join("node-0", {{id, 2}});
  world.start_ranks("node-0", id, 2, 0, 1);
  world.exit_rank("node-0", id, 2, 0, 1);
  world.finish("node-0", id, 2, Outcome::failed);
  world.started("node-0", id, 3);
  CHECK(fs::exists(first));
  CHECK(world.engine->job(id).at("checkpoints").size() == 2);
}

TEST_CASE("no attempt begins while a storage with checkpoints on record is not there") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  spec.workdir = (world.folder / "work").string();
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.say("node-0", id, 1,
            wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), 4, 0.8)});
  world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
  const fs::path storage = world.options.root.storage(id);
  fs::rename(storage, world.folder / "away");
  world.exit_rank("node-0", id, 1, 0, 1);
  world.finish("node-0", id, 1, Outcome::failed);
  world.until([&] { return world.said(id, "waits for its storage") == 1; });
  CHECK_FALSE(world.was_started(id, 2));
  CHECK_FALSE(fs::exists(storage));
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
  const std::string reason = world.engine->job(id).at("reason");
  CHECK(reason.find(checkpoints_folder(storage).string() + " is not there") != std::string::npos);
  SUBCASE("mounted again") {
    fs::rename(world.folder / "away", storage);
    world.advance(10s);
    CHECK(world.started("node-0", id, 2).checkpoint == checkpoint_folder(storage, 0).string());
    CHECK(world.engine->job(id).at("checkpoints").size() == 1);
  }
  SUBCASE("mounted again, and the head was started anew") {
    world.restart();
    world.join("node-0");
    world.until([&] { return world.engine->job(id).at("reason") == reason; });
    CHECK_FALSE(world.was_started(id, 2));
    fs::rename(world.folder / "away", storage);
    world.advance(10s);
    CHECK(world.started("node-0", id, 2).checkpoint == checkpoint_folder(storage, 0).string());
  }
  SUBCASE("still away when it is looked for again: it stays held, and who comes after it runs") {
    world.advance(10s);
    const JobId other = world.submit(World::spec());
    world.started("node-0", other, 1);
    world.advance(10s);
    CHECK(world.engine->job(id).at("reason") == reason);
    CHECK(world.said(id, "waits for its storage") == 1);
  }
  SUBCASE("made anew by who has deleted it") {
    fs::create_directories(checkpoints_folder(storage));
    world.advance(10s);
    CHECK_FALSE(world.started("node-0", id, 2).checkpoint.has_value());
    CHECK(world.engine->job(id).at("checkpoints").empty());
  }
}

TEST_CASE("a storage of which nothing comes back holds up its own job alone") {
  World world;
  const fs::path stuck = world.folder / "stuck";
  JobSpec spec = World::spec("first");
  spec.storage_path = stuck.string();
  const JobId first = world.submit(spec);
  // Who opens that waits for its other end.
  const fs::path manifest = checkpoint_folder(stuck / first.str(), 0) / "manifest.json";
  fs::create_directories(manifest.parent_path());
  REQUIRE(::mkfifo(manifest.c_str(), 0600) == 0);
  struct Ends {  // also where the test fails
    const fs::path& path;
    ~Ends() { const UniqueFd other(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)); }
  } const ends{manifest};
  spec = World::spec("second");
  spec.storage_path = (world.folder / "well").string();
  const JobId second = world.submit(spec);
  const JobId third = world.submit(World::spec("third"));
  world.join("node-0");
  for (const JobId& id : {second, third}) {
    world.started("node-0", id, 1);
    world.start_ranks("node-0", id, 1, 0, 1);
    const fs::path at = model_at(world.folder / id.str());
    world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line(at, 4, 0.8)});
    world.until([&] { return world.answer("node-0", id, 1, 2).has_value(); });
    CHECK(world.answer("node-0", id, 1, 2)->at("ok") == true);
    world.exit_rank("node-0", id, 1, 0, 0);
    world.finish("node-0", id, 1, Outcome::succeeded);
    world.until([&] { return world.state(id) == "succeeded"; });
  }
  CHECK_FALSE(world.was_started(first, 1));
  // Once it is there again, its job goes on.
  CHECK(open_file(manifest, O_WRONLY));
  world.started("node-0", first, 1);
}

TEST_CASE("num_to_keep by score, on disk too; what is refused is answered") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.workdir = (world.folder / "work").string();
  spec.checkpoint = {1, "acc", ScoreOrder::max};
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  std::uint64_t seq = 1;
  for (const double acc : {0.3, 0.9, 0.5}) {
    world.say("node-0", id, 1,
              wire::RankReport{
                  0, checkpoint_line(model_at(world.folder / "a"), static_cast<int>(seq), acc)});
    ++seq;
    world.until([&] { return world.answer("node-0", id, 1, seq).has_value(); });
  }
  world.say("node-0", id, 1, wire::RankReport{0, checkpoint_line("/", 9, 1.0)});
  world.until([&] { return world.answer("node-0", id, 1, 5).has_value(); });
  CHECK(world.answer("node-0", id, 1, 5)->contains("error"));
  const auto job = world.engine->job(id);
  REQUIRE(job.at("checkpoints").size() == 2);
  CHECK(job.at("checkpoints")[0].at("number") == 1);
  CHECK(job.at("checkpoints")[1].at("number") == 2);
  CHECK(job.at("best_checkpoint").at("number") == 1);
  // The files go on the worker's thread; its next task shows that it is done.
  world.say("node-0", id, 1,
            wire::RankReport{0, checkpoint_line(model_at(world.folder / "a"), 20, 0.1)});
  world.until([&] { return world.answer("node-0", id, 1, 6).has_value(); });
  const fs::path storage = world.options.root.storage(id);
  CHECK_FALSE(fs::exists(checkpoint_folder(storage, 0)));
  CHECK(fs::exists(checkpoint_folder(storage, 1)));
}
