#include "tests/agent/head/engine/search_programs.hpp"

#include <fstream>

#include "launcher/core/files.hpp"

namespace dtrain::head::testing {

using nlohmann::json;
using Outcome = wire::NodeFinished::Outcome;

tune::SearchSpec search_spec_of(const std::string& more) {
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

SearchId SearchPrograms::submit(const std::string& more,
                                const std::map<std::string, std::string>& secrets,
                                const std::optional<StartCheckpoint>& start) {
  const json answer = ask([&](Engine::Answer done) {
    tune::SearchSpec spec = search_spec_of(more);
    spec.job.start = start;
    world_.engine->submit_search("", std::move(spec), secrets, std::move(done));
  });
  REQUIRE(answer.contains("search"));
  search = SearchId(answer.at("search").get<std::string>());
  return search;
}

StartCheckpoint SearchPrograms::trained() {
  checkpoints = true;
  submit(R"({"num_samples": 1})");
  run();
  checkpoints = false;
  const std::string job = trials().at(0).at("job");
  const json last = world_.engine->job(JobId(job)).at("checkpoints").back();
  return {job, last.at("number").get<int>(), "", ""};
}

json SearchPrograms::summary() {
  const json all = world_.engine->searches(std::nullopt);
  for (const json& each : all.at("searches")) {
    if (each.at("search") == search.str()) return each;
  }
  return {};
}

void SearchPrograms::die() {
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

void SearchPrograms::step() {
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
    world_.until(
        [&] { return world_.starts.size() != starts || world_.sent.size() != sent || is_over(); });
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

void SearchPrograms::take() {
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

void SearchPrograms::report(const JobId& id, Program& program) {
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

void SearchPrograms::finish(const JobId& id, Program& program, Outcome outcome) {
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

}  // namespace dtrain::head::testing
