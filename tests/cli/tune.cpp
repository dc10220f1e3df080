// What is said, drawn and written of a search; no head is asked.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/job_flags.hpp"
#include "cli/render.hpp"
#include "cli/searches.hpp"
#include "cli/tune_flags.hpp"
#include "cli/tune_follow.hpp"
#include "cli/tune_plot.hpp"
#include "cli/tune_result.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;
using nlohmann::json;

namespace {

json trial_row(int number, const std::string& state, json value = nullptr, double lr = 0.1) {
  json row = {{"trial", number},     {"state", state},
              {"reason", ""},        {"step", nullptr},
              {"iteration", 3},      {"time", 3},
              {"value", value},      {"best", value},
              {"best_iteration", 3}, {"legs", json::array({"m-" + std::to_string(number)})}};
  row["params"] = {{"lr", lr}, {"model", {{"layers", number}}}, {"kind", "a,\"b\""}};
  row["metrics"] = value.is_null() ? json::object() : json{{"acc", value}, {"step", 1}};
  row["job"] = "m-" + std::to_string(number);
  return row;
}

JobSpec template_of(std::vector<std::string> command) {
  JobSpec job;
  job.name = "train";
  job.command = std::move(command);
  job.workdir = "/w";
  return job;
}

json search_of(std::vector<json> trials,
               const JobSpec& job = template_of({"./train", "--lr={lr}"})) {
  json search = {{"search", "m-abc234"}, {"state", "running"}, {"reason", ""},
                 {"metric", "acc"},      {"mode", "max"},      {"total", 100},
                 {"begun", 40},          {"created", ""},      {"ended", nullptr}};
  search["counts"] = {{"running", 2}, {"complete", 38}, {"failed", 0}};
  search["best"] = {{"trial", 1}, {"value", 0.75}, {"iteration", 3}, {"params", {{"lr", 0.1}}}};
  search["spec"]["job"] = to_json(job);
  search["spec"]["space"] = json::parse(R"({"lr": {"loguniform": [1e-4, 1]},
      "model.layers": {"randint": [0, 1000]}, "kind": {"choice": ["a,\"b\"", "c"]}, "fixed": 7})");
  search["trials"] = std::move(trials);
  return search;
}

std::string problems_of(const SearchFlags& flags) {
  tune::SearchSpec spec;
  spec.job = template_of({"./train", "--lr", "{lr}"});
  try {
    with_search_flags(spec, flags);
  } catch (const Error& error) {
    return error_text(error, false, false);
  }
  return {};
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a search by flags") {
  SearchFlags flags;
  flags.params = {"lr=loguniform:1e-4:1e-1", "model.layers={\"randint\": [1, 4]}", "epochs=3"};
  flags.metric = "acc";
  flags.mode = "max";
  flags.num_samples = 30;
  flags.search = "tpe:n_startup_trials=5";
  flags.seed = 4;
  flags.points = {"lr=0.01,model.layers=2", R"({"model": {"layers": 1}})"};
  flags.scheduler = "asha:max_t=27:reduction_factor=3";
  flags.stop = {"loss<=0.1", "training_iteration=100"};
  flags.fail_fast = "true";
  flags.max_concurrent = 4;
  flags.time_budget_s = 60;
  flags.warm_start = {"old-abc234"};
  tune::SearchSpec base;
  base.job = template_of({"./train", "--lr", "{lr}"});
  const tune::SearchSpec spec = with_search_flags(base, flags);
  CHECK(spec.name == "train");
  CHECK(spec.space.parameters().size() == 3);
  CHECK(spec.search.algorithm == tune::SamplerSpec::Algorithm::tpe);
  CHECK(spec.search.n_startup_trials == 5);
  CHECK(spec.search.seed == 4);
  REQUIRE(spec.search.points_to_evaluate.size() == 2);
  CHECK(spec.search.points_to_evaluate[0].at("model.layers") == 2);
  CHECK(spec.scheduler.algorithm == tune::SchedulerSpec::Algorithm::asha);
  CHECK(spec.scheduler.asha.max_t == 27);
  REQUIRE(spec.stop.size() == 2);
  CHECK(spec.stop[0].metric == "loss");
  CHECK(spec.stop[0].sign == tune::StopCondition::Sign::at_most);
  CHECK(spec.stop[1].sign == tune::StopCondition::Sign::at_least);
  CHECK(spec.stop[1].bound == 100);
  CHECK(spec.fail_fast.first);
  CHECK(spec.max_concurrent == 4);
  CHECK(spec.time_budget == std::chrono::seconds(60));
  CHECK(spec.trials() == 30);

  // Over a YAML: what is said anew replaces, all else stays.
  SearchFlags more;
  more.params = {"lr=choice:0.01:0.2"};
  more.search = "random";
  more.scheduler = "fifo";
  more.num_samples = 2;
  const tune::SearchSpec changed = with_search_flags(spec, more);
  CHECK(changed.space.parameters().size() == 3);
  CHECK(changed.space.find("lr")->domain.listed());
  CHECK(changed.objective.metric == "acc");
  CHECK(changed.search.algorithm == tune::SamplerSpec::Algorithm::random);
  CHECK(changed.search.seed == 4);  // which is no algorithm's own
  CHECK(changed.scheduler.algorithm == tune::SchedulerSpec::Algorithm::fifo);
}

TEST_CASE("what mutates follows from the space as --param leaves it, unless it was said") {
  SearchFlags yaml;
  yaml.params = {"lr=loguniform:1e-4:1e-1", "momentum=uniform:0:1"};
  yaml.metric = "acc";
  yaml.mode = "max";
  yaml.num_samples = 4;
  yaml.scheduler = "pbt";
  tune::SearchSpec base;
  base.job = template_of({"./train", "--lr", "{lr}"});
  SearchFlags flags;
  flags.params = {"lr=loguniform:0.1:10", "momentum=0.9", "wd=uniform:0:2"};
  const auto mutations = [&] {
    return tune::to_json(with_search_flags(with_search_flags(base, yaml), flags).scheduler)
        .at("hyperparam_mutations");
  };
  const json derived = mutations();
  CHECK(derived.size() == 2);
  CHECK(derived.at("lr") == json::parse(R"({"loguniform": [0.1, 10.0]})"));
  CHECK(derived.at("wd") == json::parse(R"({"uniform": [0.0, 2.0]})"));
  yaml.scheduler =
      R"({"algorithm": "pbt", "hyperparam_mutations": {"lr": {"uniform": [0.0, 1.0]}}})";
  CHECK(mutations() == json::parse(R"({"lr": {"uniform": [0.0, 1.0]}})"));
}

TEST_CASE("what is wrong with a search's flags names them") {
  SearchFlags flags;
  CHECK(holds(problems_of(flags), "--param: is missing"));
  CHECK(holds(problems_of(flags), "--metric: "));
  CHECK(holds(problems_of(flags), "--mode: must be min or max"));
  flags.metric = "acc";
  flags.mode = "max";
  flags.params = {"lr"};
  CHECK(holds(problems_of(flags), "--param"));
  flags.params = {"lrr=uniform:0:1"};
  CHECK(holds(problems_of(flags), "did you mean {lrr}?"));
  flags.params = {"lr=uniform:0:1"};
  flags.scheduler = "asha:max_tt=3";
  CHECK(holds(problems_of(flags), "--scheduler max_tt"));
  flags.scheduler = "asha:max_t";
  CHECK(holds(problems_of(flags), "is no KEY=VALUE"));
  flags.scheduler = std::nullopt;
  flags.stop = {"loss"};
  CHECK(holds(problems_of(flags), "--stop: \"loss\" is no bound"));
  flags.stop = {};
  flags.num_samples = 1'000'000;
  CHECK(holds(problems_of(flags), "--num-samples: must be"));
  flags.num_samples = 3;
  CHECK(problems_of(flags) == "");
}

TEST_CASE("news: each trial's states once, its end, and only what can have changed is asked for") {
  SearchNews news;
  CHECK(news.wanted(0, false).empty());
  CHECK((news.wanted(3, false) == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 3}}));
  CHECK(news.trial(trial_row(0, "running"))->at("state") == "running");
  CHECK(!news.trial(trial_row(0, "running", 0.5)));
  CHECK(news.trial(trial_row(1, "complete", 0.5))->at("value") == 0.5);
  CHECK(!news.trial(trial_row(1, "complete", 0.5)));
  news.begin_look();
  CHECK((news.wanted(2, false) == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 1}}));
  for (int i = 2; i < 10'000; ++i) {
    const bool open = i == 30 || i == 9000 || i == 9999;
    const bool paused = i % 10 == 5;  // which are asked for at the end alone
    news.trial(trial_row(i, open ? "running" : paused ? "paused" : "stopped", 0.5));
  }
  news.begin_look();
  CHECK((news.wanted(10'007, false) == std::vector<std::pair<std::uint64_t, std::uint64_t>>{
                                           {0, 31}, {9000, 1}, {9999, 1}, {10'000, 7}}));
  CHECK(news.knows(9000));
  CHECK(!news.trial(trial_row(9000, "running", 0.6)));
  CHECK(news.wanted(10'000, false).size() == 2);  // that one was told by this look
  CHECK((news.wanted(10'000, true) ==
         std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 10'000}}));
  json search = search_of({});
  CHECK(news.best(search)->at("value") == 0.75);
  search["best"]["value"] = 0.7;  // it reported once more
  CHECK(!news.best(search));
  search["best"]["value"] = 0.8;
  CHECK(news.best(search));
  search["best"]["value"] = "nan";
  CHECK(!news.best(search));
  CHECK(news.state(search)->at("state") == "running");
  CHECK(!news.state(search));
}

TEST_CASE("a line for each event") {
  SearchNews news;
  CHECK(news_line(*news.trial(trial_row(4, "running")), "acc", false) ==
        "trial 4 running: kind a,\"b\"  lr 0.1  model.layers 4  (m-4)");
  json ended = trial_row(4, "stopped", 0.25);
  ended["reason"] = "asha: below 0.3\x1b[2J";
  CHECK(news_line(*news.trial(ended), "acc", true) ==
        "trial 4 stopped after 3 iterations, acc 0.25: asha: below 0.3\\x1b[2J");
  CHECK(news_line(*news.best(search_of({})), "acc", false) ==
        "best so far: trial 1, acc 0.75: lr 0.1");
  // C1 controls, which drive terminals too, are in no list either.
  json listed = trial_row(5, "running");
  listed["params"] = {{"layers", json::array({"\u009b2J", 3})}};
  CHECK(holds(news_line(*news.trial(listed), "acc", false), R"(layers ["\xc2\x9b2J",3])"));
}

TEST_CASE("the picture keeps within the terminal, and shows what runs and the best") {
  std::vector<json> trials;
  for (int i = 0; i < 30; ++i) {
    trials.push_back(trial_row(i, i < 12 ? "running" : i < 20 ? "waiting" : "complete", 0.5));
  }
  const json search = search_of(trials);
  for (const std::size_t rows : {8, 12, 24, 60}) {
    for (const std::size_t columns : {20, 40, 120}) {
      const std::string text = search_picture(search, columns, rows, false);
      const std::vector<std::string> lines = split(text, '\n');
      CAPTURE(text);
      CHECK(lines.size() <= rows);  // the last is empty: the cursor's
      for (const std::string& line : lines) CHECK(display_width(line) < columns);
    }
  }
  // A reason is one line more, and not as wide as a tab would make it.
  json waits = search;
  waits["reason"] = "waits for room:\tno node has 4 GPUs";
  for (std::size_t rows = 1; rows < 14; ++rows) {
    const std::string small = search_picture(waits, 60, rows, false);
    CAPTURE(small);
    CHECK(split(small, '\n').size() <= rows);
    CHECK(!holds(small, "\t"));
  }
  const std::string text = search_picture(search, 120, 24, false);
  CHECK(holds(text, "m-abc234  running  40 of 100 trials"));
  CHECK(holds(text, "2 running, 38 complete\n"));
  CHECK(holds(text, "best so far: trial 1, acc 0.75: lr 0.1\n"));
  CHECK(holds(text, "TRIAL  STATE"));
  CHECK(holds(text, "kind"));
  CHECK(!holds(text, "fixed"));
  CHECK(holds(text, "complete  3"));  // though more run than half of the rows
  CHECK(holds(text, " more\n"));
  CHECK(!holds(text, "waiting  "));  // there is no room for all others
  CHECK(!holds(search_picture(search, 0, 0, false), "and 0 more"));
  CHECK(holds(search_picture(search, 0, 0, false, true), "JOB"));
}

TEST_CASE("csv: a row for each trial, flat, quoted, numbers to the last bit") {
  std::vector<json> trials = {trial_row(0, "complete", 0.1 + 0.2, 1e-4), trial_row(1, "failed")};
  trials[1]["reason"] = "exit code 1\nboom";
  const std::string csv = trials_csv(search_of(trials));
  CHECK(csv ==
        "trial,state,iteration,step,best,best_iteration,job,config/kind,config/lr,"
        "config/model.layers,acc,metrics/step,reason\n"
        "0,complete,3,,0.30000000000000004,3,m-0,\"a,\"\"b\"\"\",0.0001,0,0.30000000000000004,1,\n"
        "1,failed,3,,,3,m-1,\"a,\"\"b\"\"\",0.1,1,,,\"exit code 1\nboom\"\n");
}

TEST_CASE(
    "csv: the metric's value though its job says nothing of it, and no two columns of a name") {
  // Its newest job has not reported yet, or was removed.
  std::vector<json> trials = {trial_row(0, "waiting", 0.5), trial_row(1, "complete", 0.25)};
  trials[0]["metrics"] = json::object();
  trials[1]["metrics"] = {{"config/lr", 7}, {"metrics/step", 8}, {"step", 9}};
  const std::vector<std::string> lines = split(trials_csv(search_of(trials)), '\n');
  CHECK(lines[0] ==
        "trial,state,iteration,step,best,best_iteration,job,config/kind,config/lr,"
        "config/model.layers,acc,metrics/config/lr,metrics/step,metrics/metrics/step,reason");
  CHECK(lines[1].ends_with(",0,0.5,,,,"));
  CHECK(lines[2].ends_with(",1,0.25,7,8,9,"));
}

TEST_CASE("the command that trains a trial again") {
  const auto words = [](const json& search, const std::string& folder = "/w") {
    return shell_join(train_again(search, trial_row(2, "complete", 0.5), folder).words);
  };
  const json whole =
      search_of({}, template_of({"./train", "--lr={lr}", "{kind}", "{model.layers}"}));
  CHECK(words(whole) == "dtrain submit -- ./train --lr=0.1 'a,\"b\"' 2");
  CHECK(words(whole, "/else") == "dtrain submit --workdir /w -- ./train --lr=0.1 'a,\"b\"' 2");
  // What stands nowhere in it the program has from DTRAIN_PARAMS: submit could not give it any.
  CHECK(words(search_of({})) ==
        "dtrain tune --param 'kind=a,\"b\"' --param lr=0.1 --param model.layers=2 --metric acc "
        "--mode max -- ./train '--lr={lr}'");
  CHECK(holds(shell_join(train_again(whole, trial_row(2, "complete"), "/w", "other").words),
              "dtrain submit -c other -- "));

  JobSpec job = template_of({"./train --lr {lr} --kind {kind} --l {model.layers} | tee log"});
  job.shell = true;
  job.name = "mine";
  job.env = {{"A", "b c"}};
  job.secrets = {{"TOKEN", std::nullopt}};
  job.nproc_per_node = {ProcsKind::number, 2};
  job.nnodes = {2, 3};
  job.resources.gpu = 1;
  job.resources_given = true;
  job.max_restarts = 3;
  job.restart.backoff = std::chrono::seconds(3);
  const json search = search_of({}, job);
  const std::string again = words(search);
  for (const char* part : {"--secret TOKEN", "--env 'A=b c'", "--gpus 1", "--name mine",
                           "--nnodes 2:3", "--nproc-per-node 2", "--max-restarts 3",
                           R"( './train --lr 0.1 --kind '\''a,"b"'\'' --l 2 | tee log')"}) {
    CAPTURE(again);
    CHECK(holds(again, part));
  }
  CHECK(!holds(again, " -- "));
  CHECK(train_again(search, trial_row(2, "complete"), "/w").unsaid ==
        std::vector<std::string>{"restart"});

  // A line for the shell of one word would be taken for a file's name.
  JobSpec word = template_of({"./train"});
  word.shell = true;
  CHECK(words(search_of({}, word)) ==
        "dtrain tune --param 'kind=a,\"b\"' --param lr=0.1 --param model.layers=2 --metric acc "
        "--mode max --name train -- /bin/sh -c ./train");
}

TEST_CASE("what the flags of a job make is what they are made from") {
  JobSpec job = template_of({"./train", "--x"});
  job.name = "n";
  job.env = {{"A", "1=2"}};
  job.custom_resources = {{"tpu", 2}};
  job.label_selector = {{"zone", "!b"}};
  job.setup = "echo a\necho b";
  job.resources = {2.5, 1, 1 << 30};
  job.resources_given = true;
  job.storage_path = "/s";
  job.checkpoint.num_to_keep = 2;
  job.checkpoint.score_attribute = "acc";
  job.stop_grace = std::chrono::seconds(3);
  job.timeout = std::chrono::seconds(60);
  job.priority = 7;
  job.on_head_lost = OnHeadLost::stop;
  job.log_limit = 4096;
  const JobWords words = words_of_job(job, "/w");
  CHECK(words.unsaid.empty());
  CHECK(words.command == std::vector<std::string>{"--", "./train", "--x"});
  JobFlags flags;
  CLI::App app;
  add_job_flags(app, flags);
  app.parse(std::vector<std::string>(words.flags.rbegin(), words.flags.rend()));
  JobSpec made;
  apply_job_flags(made, flags, CommandWords{job.command, false}, "/w",
                  [](const std::string&) { return std::nullopt; });
  CHECK(made == job);
}

TEST_CASE("pictures of parameters, importance and descent are what gnuplot draws") {
  std::vector<json> trials;
  for (int i = 0; i < 12; ++i) {
    trials.push_back(trial_row(i, "complete", i / 12.0, 0.001 * (i + 1)));
  }
  trials.push_back(trial_row(12, "complete", "nan"));
  const json search = search_of(trials);
  const std::vector<ParameterChart> charts = parameter_charts(space_of(search), trials);
  REQUIRE(charts.size() == 3);
  CHECK(charts[0].name == "kind");
  CHECK(charts[0].words == std::vector<std::string>{"a,\"b\""});
  CHECK(charts[1].logarithmic);
  CHECK(charts[1].points.size() == 12);
  CHECK(!charts[2].logarithmic);
  const json moved = json::parse(R"([{"trial": 1, "time": 4, "value": 0.1, "donor": 3,
                                      "donor_time": 3, "donor_value": 0.4, "params": {}}])");
  tune::Importances importances;
  importances.parameters = {{"lr", 0.9}, {"model.layers", 0.1}};
  CHECK(holds(importance_lines(importances, 60), "lr            90 %  ####"));
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    MESSAGE("gnuplot is not installed");
    return;
  }
  const testing::TemporaryFolder folder;
  const auto drawn = [&](const std::string& name, const std::string& script) {
    draw_picture(script, folder.path() / name);
    return text_of(folder.path() / name);
  };
  const std::string params =
      drawn("p.svg", parameters_script(charts, "acc", PlotKind::svg, {80, 24}));
  CHECK(holds(params, "<svg"));
  CHECK(holds(params, "model.layers"));
  CHECK(holds(drawn("i.svg", importance_script(importances, "what", PlotKind::svg, {80, 24})),
              "model.layers"));
  CHECK(
      holds(drawn("f.svg", family_script(moved, trials, "acc", PlotKind::svg, {80, 24})), "trial"));
}
