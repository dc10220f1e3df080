#include <doctest/doctest.h>

#include <fstream>

#include "agent/head/store/lineage.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/agent/head/engine/world.hpp"

// Jobs that go on with an ended one, or start from a checkpoint of another.

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;

namespace {

void begin(World& world, const JobId& id) {
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
}

// Rank 0 reports a checkpoint of one file; gives its committed folder.
fs::path commit(World& world, const JobId& id, std::int64_t step, const std::string& weights) {
  const fs::path folder = world.folder / ("shard-" + std::to_string(step));
  fs::create_directories(folder);
  std::ofstream(folder / "model") << weights;
  const nlohmann::json line = {
      {"type", "checkpoint"}, {"step", step}, {"path", folder.string()}, {"ack", true}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
  const auto seq = world.seqs.at({"node-0", id.str(), 1});
  world.until([&] { return world.answer("node-0", id, 1, seq).has_value(); });
  return world.answer("node-0", id, 1, seq)->at("path").get<std::string>();
}

void measure(World& world, const JobId& id, std::int64_t step, double loss) {
  const nlohmann::json line = {
      {"type", "metrics"}, {"step", step}, {"metrics", {{"loss", loss}}}, {"ack", true}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
}

void end(World& world, const JobId& id, int code) {
  world.exit_rank("node-0", id, 1, 0, code);
  world.finish("node-0", id, 1, code == 0 ? Outcome::succeeded : Outcome::failed, "it failed");
  world.until([&] { return world.state(id) == (code == 0 ? "succeeded" : "failed"); });
  world.settle();
}

// A job that failed at step 7 with checkpoints of steps 3 and 6.
JobId failed_job(World& world) {
  JobSpec spec = World::spec("first");
  const JobId id = world.submit(spec);
  begin(world, id);
  measure(world, id, 3, 0.9);
  commit(world, id, 3, "three");
  commit(world, id, 6, "six");
  measure(world, id, 7, 0.7);
  end(world, id, 1);
  return id;
}

JobSpec resumed(const JobId& old) {
  JobSpec spec = World::spec("first");
  spec.resumes = old.str();
  return spec;
}

std::string weights(const fs::path& checkpoint) {
  return read_file(checkpoint / "shard-00000-of-00001" / "model");
}

std::vector<std::int64_t> steps_of(World& world, const JobId& id) {
  std::vector<std::int64_t> steps;
  for (const auto& row : world.metrics(id)) steps.push_back(row.at("step"));
  return steps;
}

ErrorCode refusal(World& world, const JobSpec& spec) {
  try {
    world.engine->submit("", spec, {}, [](const nlohmann::json&) {});
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

void break_checkpoints(World& world, const JobId& id) {
  const nlohmann::json job = world.engine->job(id);
  for (const nlohmann::json& each : job.at("checkpoints")) {
    fs::remove(fs::path(each.at("path").get<std::string>()) / "manifest.json");
  }
}

}  // namespace

TEST_CASE("a resumed job goes on with checkpoints, numbers, metrics and step") {
  World world;
  world.join("node-0");
  const JobId old = failed_job(world);
  const nlohmann::json before = world.engine->job(old);
  JobSpec spec = resumed(old);
  spec.checkpoint.num_to_keep = 1;
  const JobId id = world.submit(spec);
  const std::string path = world.started("node-0", id, 1).checkpoint.value_or("");
  CHECK(path == checkpoint_folder(world.options.root.storage(id), 1).string());
  CHECK(weights(path) == "six");
  CHECK(world.said(id, "goes on with " + old.str() + " from step 6"));
  CHECK(world.said(id, "from checkpoint_000001 (step 6)"));

  nlohmann::json job = world.engine->job(id);
  CHECK(job.at("resumed_from") == old.str());
  CHECK(job.at("step") == 7);
  CHECK(job.at("metrics").at("loss") == 0.7);
  CHECK(job.at("checkpoints").size() == 2);
  CHECK(world.engine->job(old).at("resumed_by") == nlohmann::json::array({id.str()}));

  begin(world, id);
  measure(world, id, 9, 0.5);
  CHECK(commit(world, id, 9, "nine").filename() == "checkpoint_000002");
  // Another rank may be slow to read what the attempt began from: it stays to the attempt's end.
  CHECK(world.engine->job(id).at("checkpoints").size() == 2);
  CHECK(weights(path) == "six");
  end(world, id, 0);
  job = world.engine->job(id);
  CHECK(job.at("checkpoints").size() == 1);  // num_to_keep, over the whole line
  world.until([&] { return !fs::exists(path); });
  CHECK(steps_of(world, id) == std::vector<std::int64_t>{3, 7, 9});

  // Nothing of the old one has changed, and each outlives the other.
  nlohmann::json after = world.engine->job(old);
  after["resumed_by"] = before.at("resumed_by");
  CHECK(after == before);
  CHECK(weights(before.at("checkpoints")[1].at("path").get<std::string>()) == "six");
  bool removed = false;
  world.engine->remove(old, [&](const nlohmann::json&) { removed = true; });
  world.until([&] { return removed; });
  world.restart();
  job = world.engine->job(id);
  CHECK(job.at("resumed_from") == old.str());
  CHECK(weights(job.at("checkpoints")[0].at("path").get<std::string>()) == "nine");
  CHECK(world.metrics(id).size() == 3);
}

TEST_CASE("a job can be resumed again and again, and before its first attempt") {
  World world;
  world.join("node-0");
  const JobId first = failed_job(world);
  JobSpec one_kept = resumed(first);
  one_kept.checkpoint.num_to_keep = 1;
  const JobId second = world.submit(one_kept);
  begin(world, second);
  measure(world, second, 8, 0.6);
  end(world, second, 1);
  // It has made none of its own: what was before stays.
  CHECK(world.engine->job(second).at("checkpoints").size() == 2);
  const JobId third = world.submit(resumed(second));
  CHECK(weights(world.started("node-0", third, 1).checkpoint.value_or("")) == "six");
  CHECK(steps_of(world, third) == std::vector<std::int64_t>{3, 7, 8});
}

TEST_CASE("what cannot be resumed is refused, with the reason") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  begin(world, id);
  CHECK(refusal(world, resumed(id)) == ErrorCode::conflict);
  CHECK(refusal(world, resumed(JobId("nothing-aaaaaa"))) == ErrorCode::not_found);
  end(world, id, 1);
  JobSpec both = resumed(id);
  both.start = StartCheckpoint{id.str(), 0, {}, {}};
  CHECK(refusal(world, both) == ErrorCode::invalid);
  JobSpec none = World::spec();
  none.start = StartCheckpoint{id.str(), 0, {}, {}};
  CHECK(refusal(world, none) == ErrorCode::not_found);
  // One without a checkpoint begins at the start, and says so.
  const JobId again = world.submit(resumed(id));
  CHECK_FALSE(world.started("node-0", again, 1).checkpoint.has_value());
  CHECK(world.said(again, "has no checkpoint"));
}

TEST_CASE("a resume whose checkpoints cannot be taken over leaves no job and no files") {
  World world;
  world.join("node-0");
  const JobId old = failed_job(world);
  JobSpec spec = resumed(old);
  std::ofstream(world.folder / "file") << "in the way";
  spec.storage_path = (world.folder / "file").string();
  const nlohmann::json answer = world.answer_to_submit(spec, "once");
  CHECK(answer.contains("error"));
  CHECK(world.engine->status().at("jobs").size() == 1);
  spec.storage_path.clear();
  CHECK(world.answer_to_submit(spec, "once").contains("job"));
}

TEST_CASE("a resume without one whole checkpoint of those on record is refused") {
  World world;
  world.join("node-0");
  const JobId old = failed_job(world);
  break_checkpoints(world, old);
  const nlohmann::json answer = world.answer_to_submit(resumed(old), "once");
  REQUIRE(answer.contains("error"));
  CHECK(answer["error"]["message"].get<std::string>().find("2 on record") != std::string::npos);
  CHECK(world.engine->status().at("jobs").size() == 1);
}

TEST_CASE("what a submission takes over from cannot be removed meanwhile") {
  World world;
  world.join("node-0");
  const JobId old = failed_job(world);
  bool submitted = false;
  world.engine->submit("once", resumed(old), {},
                       [&](const nlohmann::json& answer) { submitted = answer.contains("job"); });
  CHECK_THROWS_AS(world.engine->remove(old, [](const nlohmann::json&) {}), Error);
  // A shutdown waits for it, and stops it.
  bool drained = false;
  world.engine->stop_all([&](const nlohmann::json&) { drained = true; });
  world.until([&] { return submitted && drained; });
}

TEST_CASE("a shutdown does not wait for a submission that is refused") {
  World world;
  world.join("node-0");
  const JobId old = failed_job(world);
  break_checkpoints(world, old);
  bool refused = false;
  world.engine->submit("once", resumed(old), {},
                       [&](const nlohmann::json& answer) { refused = answer.contains("error"); });
  bool drained = false;
  world.engine->stop_all([&](const nlohmann::json&) { drained = true; });
  world.until([&] { return refused && drained; });
}

TEST_CASE("a warm start: the first attempt has the checkpoint, and nothing else goes on") {
  World world;
  world.join("node-0");
  const JobId source = failed_job(world);
  JobSpec spec = World::spec("warm");
  spec.max_restarts = 1;
  spec.start = StartCheckpoint{source.str(), 0, {}, {}};
  const JobId id = world.submit(spec);
  const std::string path = world.started("node-0", id, 1).checkpoint.value_or("");
  CHECK(path == start_folder(world.options.root.storage(id)).string());
  CHECK(weights(path) == "three");
  nlohmann::json job = world.engine->job(id);
  CHECK(job.at("checkpoints").empty());
  CHECK(job.at("step").is_null());
  CHECK(job.at("resumed_from").is_null());
  CHECK(job.at("started_from") == "checkpoint 0 of " + source.str());
  CHECK(world.metrics(id).empty());
  // The source may go; the next attempt starts from the job's own.
  bool removed = false;
  world.engine->remove(source, [&](const nlohmann::json&) { removed = true; });
  world.until([&] { return removed; });
  CHECK(weights(path) == "three");
  begin(world, id);
  const fs::path own = commit(world, id, 1, "one");
  CHECK(own.filename() == "checkpoint_000000");
  world.exit_rank("node-0", id, 1, 0, 1);
  world.finish("node-0", id, 1, Outcome::failed, "it failed");
  CHECK(world.started("node-0", id, 2).checkpoint == own.string());
}

TEST_CASE("what began with a checkpoint of a job that is gone can be resumed") {
  World world;
  world.join("node-0");
  const JobId source = failed_job(world);
  JobSpec spec = World::spec("warm");
  spec.start = StartCheckpoint{source.str(), 0, {}, {}};
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  begin(world, id);
  world.exit_rank("node-0", id, 1, 0, 1);
  world.finish("node-0", id, 1, Outcome::failed, "it failed");
  bool removed = false;
  world.engine->remove(source, [&](const nlohmann::json&) { removed = true; });
  world.until([&] { return removed; });
  JobSpec again = resumed(id);
  again.start = spec.start;
  const JobId next = world.submit(again);
  CHECK(weights(world.started("node-0", next, 1).checkpoint.value_or("")) == "three");
}

TEST_CASE("a warm start from a folder of this machine, in place and by content") {
  World world;
  world.options.provider = "local";
  world.restart();
  world.join("node-0");
  const JobId source = failed_job(world);
  const fs::path mine = world.folder / "mine";
  fs::copy(world.options.root.storage(source) / "checkpoints" / "checkpoint_000001", mine,
           fs::copy_options::recursive);
  JobSpec spec = World::spec("warm");
  spec.start = StartCheckpoint{{}, 0, mine.string(), {}};
  SUBCASE("in place") {
    CHECK(world.started("node-0", world.submit(spec), 1).checkpoint == mine.string());
    fs::remove(mine / "shard-00000-of-00001" / "model");
    CHECK(world.answer_to_submit(spec).at("error").at("message").get<std::string>().find("model") !=
          std::string::npos);
  }
  SUBCASE("not in place on other machines") {
    world.options.provider = "ssh";
    world.restart();
    CHECK(refusal(world, spec) == ErrorCode::invalid);
    spec.storage_path = world.folder.path().string();
    CHECK(refusal(world, spec) == ErrorCode::internal);  // taken
  }
  SUBCASE("by content") {
    const ContentStore store(world.options.root.content());
    ContentTree tree;
    for (const char* name :
         {"manifest.json", "shard-00000-of-00001/model", "shard-00000-of-00001/shard.json"}) {
      const std::string bytes = read_file(mine / name);
      const FileSum sum = sum_file(mine / name);
      store.put(sum.sha256, bytes);
      ContentEntry entry;
      entry.path = name;
      entry.sha256 = sum.sha256;
      entry.size = sum.size;
      tree.entries.push_back(entry);
    }
    Sha256 sum;
    sum.add(to_text(tree));
    spec.start->tree = sum.hex();
    store.put(spec.start->tree, to_text(tree));
    CHECK(world.engine->content_wanted(spec) == std::vector<std::string>{spec.start->tree});
    const std::string path = world.started("node-0", world.submit(spec), 1).checkpoint.value_or("");
    CHECK(path != mine.string());
    CHECK(weights(path) == "six");
  }
}

TEST_CASE("a node that does not see the head's storage is brought the warm start too") {
  World world;
  world.join("node-0");
  const JobId source = failed_job(world);
  world.options.machine = "machine-head";
  world.restart();
  world.join("node-0");
  JobSpec spec = World::spec("warm");
  spec.start = StartCheckpoint{source.str(), 1, {}, {}};
  const JobId id = world.submit(spec);
  world.until([&] { return world.prepares.size() == 1; });
  CHECK(world.prepares[0].second.checkpoint == kStartNumber);
  CHECK(weights(world.engine->checkpoint(id, kStartNumber).value_or("")) == "six");
  world.engine->attempt_prepared(NodeId("node-0"), id, 1, std::nullopt);
  CHECK(world.started("node-0", id, 1).checkpoint == "/roots/node-0/jobs/" + id.str() +
                                                         "/checkpoints/checkpoint_" +
                                                         std::to_string(kStartNumber));
}
