#include "launcher/tune/search_spec.hpp"

#include "launcher/tune/trial_job.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain;
using namespace dtrain::tune;
using dtrain::tune::test::lines;
using dtrain::tune::test::space_of;

namespace {

nlohmann::json small() {
  return nlohmann::json::parse(R"({
    "job": {"name": "mnist", "command": ["./train", "--lr={lr}"], "workdir": "/w"},
    "space": {"lr": {"loguniform": [1e-4, 1e-1]}},
    "metric": "accuracy", "mode": "max"})");
}

SearchSpec read(const nlohmann::json& json) {
  Problems problems;
  SearchSpec spec = search_spec_from_json(json, problems);
  problems.check();
  return spec;
}

std::string wrong(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = small();
  change(json);
  Problems problems;
  search_spec_from_json(json, problems);
  return lines(problems);
}

}  // namespace

TEST_CASE("a search has its defaults, and is written and read as the same") {
  const SearchSpec spec = read(small());
  CHECK(spec.name == "mnist");
  CHECK(spec.trials() == 1);
  CHECK(spec.search.algorithm == SamplerSpec::Algorithm::random);
  CHECK(spec.scheduler.algorithm == SchedulerSpec::Algorithm::fifo);
  CHECK_FALSE(spec.max_concurrent);
  CHECK(spec.fail_fast == FailFast{false, 10});
  CHECK(to_json(read(to_json(spec))) == to_json(spec));
}

TEST_CASE("every key of a search is written and read as the same") {
  nlohmann::json json = small();
  json.update(nlohmann::json::parse(R"({
    "name": "wide", "search": {"algorithm": "tpe", "seed": 3}, "num_samples": 40,
    "scheduler": {"algorithm": "asha", "max_t": 81}, "max_concurrent": 4, "time_budget_s": 60,
    "stop": {"accuracy": 0.99}, "fail_fast": true, "warm_start": ["mnist-abcdef"]})"));
  const SearchSpec spec = read(json);
  CHECK(spec.name == "wide");
  CHECK(spec.search.seed == 3);
  CHECK(spec.trials() == 40);
  CHECK(spec.scheduler.asha.max_t == 81);
  CHECK(spec.max_concurrent == 4);
  CHECK(spec.time_budget == std::chrono::seconds(60));
  CHECK(spec.stop.size() == 1);
  CHECK(spec.fail_fast == FailFast{true, 0});
  CHECK(spec.warm_start == std::vector<std::string>{"mnist-abcdef"});
  CHECK(to_json(read(to_json(spec))) == to_json(spec));
  for (const nlohmann::json& each : {nlohmann::json(false), nlohmann::json(3)}) {
    json["fail_fast"] = each;
    CHECK(to_json(read(json))["fail_fast"] == each);
  }
}

TEST_CASE("what is wrong with a search is said, all of it") {
  CHECK(wrong([](nlohmann::json& json) { json["num_sample"] = 3; }) ==
        "num_sample: is not known here\n");
  CHECK(wrong([](nlohmann::json& json) {
          json.erase("metric");
          json["mode"] = "best";
          json["max_concurrent"] = 0;
          json["fail_fast"] = "no";
          json["warm_start"] = nlohmann::json::array({"../x"});
        }) ==
        "metric: the metric's name is wanted, as trials report it\n"
        "mode: must be min or max, not \"best\"\n"
        "max_concurrent: must be a whole number from 1 to 10000, not 0\n"
        "fail_fast: must be true, false or a number of trials, not \"no\"\n"
        "warm_start[0]: \"../x\" is no id of a search\n");
  CHECK(wrong([](nlohmann::json& json) { json["num_samples"] = 100'001; }).find("100000") !=
        std::string::npos);
  CHECK(wrong([](nlohmann::json& json) {
          json["space"]["seed"]["grid_search"] = nlohmann::json::array({1, 2, 3, 4});
          json["num_samples"] = 50'000;
        }) == "num_samples: makes 200000 trials; at most 100000 are possible\n");
  CHECK(wrong([](nlohmann::json& json) { json["job"]["resumes"] = "a-b"; }) ==
        "resumes: a trial cannot go on with another job\n");
  CHECK(wrong([](nlohmann::json& json) {
          json["job"]["after"] = nlohmann::json::array({"a-b"});
        }) == "after: a search comes after no job\n");
  CHECK(wrong([](nlohmann::json& json) { json["name"] = 5; }) == "name: must be a text, not 5\n");
  // Once, though it is the job's and the search's.
  CHECK(wrong([](nlohmann::json& json) { json["job"]["name"] = "a b"; }) ==
        "name: 'a b' is no name: 1 to 40 of a-z A-Z 0-9 . _ -, not beginning with . or -\n");
  CHECK(wrong([](nlohmann::json& json) { json["space"] = nlohmann::json::object(); }) ==
        "space: has no parameter\n");
  nlohmann::json json = small();
  json["job"]["trail"] = 1;
  Problems problems;
  CHECK_THROWS_AS(search_spec_from_json(json, problems), Error);
}

TEST_CASE("parameters stand where their names do") {
  const SearchSpace space = space_of(R"({
    "lr": {"uniform": [0, 1]}, "words": {"choice": ["a b", "c"]}, "model.layers": {"randint": 9},
    "flag": {"choice": [true, false]}, "sizes": {"choice": [[1, 2]]},
    "momentum": {"uniform": [0, 1], "when": {"words": "c"}}})");
  const Params params{{"lr", 0.1},
                      {"words", "it's"},
                      {"model.layers", 3},
                      {"flag", true},
                      {"sizes", nlohmann::json::array({1, 2})}};
  const auto plain = [&](const char* text) { return filled(text, space, params, false); };
  CHECK(plain("--lr={lr}") == "--lr=0.1");
  CHECK(plain("{lr}{model.layers}") == "0.13");
  CHECK(plain("{flag} {sizes} {words}") == "true [1,2] it's");
  CHECK(filled("x {words} {sizes}", space, params, true) == "x 'it'\\''s' '[1,2]'");
  CHECK(plain("{} {other} {\"lr\": 1} ${lr} {lr") == "{} {other} {\"lr\": 1} ${lr} {lr");
  CHECK(plain("{{lr}}") == "{0.1}");
  CHECK(plain("{momentum:0.9}|{momentum:}|{lr:7}") == "0.9||0.1");
  CHECK_THROWS_AS(plain("{momentum}"), Error);
  const std::string braces(200'000, '{');
  CHECK(plain(braces.c_str()) == braces);
  CHECK(plain((braces + "lr}").c_str()) == braces.substr(1) + "0.1");
  const double exact = 0.1 + 0.2;
  CHECK(std::stod(filled("{lr}", space, {{"lr", exact}}, false)) == exact);
  CHECK(std::stod(filled("{lr}", space, {{"lr", 1e-7}}, false)) == 1e-7);
}

TEST_CASE("what cannot be replaced in every trial is a problem") {
  CHECK(wrong([](nlohmann::json& json) {
          json["space"]["momentum"] =
              nlohmann::json::parse(R"({"uniform": [0, 1], "when": "lr > 0.01"})");
          json["space"]["model"]["layers"]["randint"] = nlohmann::json::array({1, 9});
          json["job"]["command"] =
              nlohmann::json::array({"x", "{momentum}", "{momentums:3}", "{model}", "{other}"});
          json["job"]["env"]["A"] = "{model.layer}";
        }) ==
        "command[1]: {momentum} is not there in every trial\n"
        "command[2]: there is no parameter \"momentums\" in the space\n"
        "command[3]: {model} is a group of parameters, not one of them\n"
        "env.A: there is no parameter \"model.layer\" in the space\n");
  const auto in_shell = [](const char* command) {
    return wrong([&](nlohmann::json& json) { json["job"]["command"] = command; });
  };
  CHECK(in_shell("x {lr} 'a b'{lr} \\'{lr} \"it's\" {lr}") == "");
  for (const char* quoted : {"x \"{lr}\"", "x 'a {lr}'", "x `y {lr}`", R"(x "\"{lr}")"}) {
    CAPTURE(quoted);
    CHECK(in_shell(quoted) == "command: {lr} stands between quotes\n");
  }
}

TEST_CASE("a trial's job has its parameters in command and env") {
  JobSpec job;
  job.command = {"./train", "{lr}"};
  job.env["LR"] = "is {lr}";
  const SearchSpace space = space_of(R"({"lr": {"uniform": [0, 1]}})");
  const JobSpec made = trial_job(job, space, {{"lr", 0.5}});
  CHECK(made.command == std::vector<std::string>{"./train", "0.5"});
  CHECK(made.env.at("LR") == "is 0.5");
  job.shell = true;
  job.command = {"./train {lr}; echo ${lr}"};
  CHECK(trial_job(job, space, {{"lr", "a b"}}).command.front() == "./train 'a b'; echo ${lr}");
}

TEST_CASE("the trial that a job is of is kept with it") {
  JobSpec job;
  job.name = "mnist";
  job.command = {"true"};
  job.workdir = "/w";
  CHECK_FALSE(dtrain::to_json(job).contains("trial"));
  job.trial = TrialOfSearch{"mnist-abcdef", 3, 1, R"({"lr":0.1})"};
  CHECK(job_spec_from_json(dtrain::to_json(job), UnknownKeys::refuse) == job);
  CHECK(dtrain::validate(job).empty());
  job.trial->params = std::string(128 * 1024, 'x');
  CHECK_FALSE(dtrain::validate(job).empty());
}
