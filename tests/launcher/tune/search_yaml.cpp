#include "launcher/tune/search_yaml.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

#include "launcher/core/text.hpp"
#include "launcher/tune/expression_functions.hpp"
#include "launcher/tune/sobol.hpp"
#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using tune::SearchSpec;

namespace {

const std::filesystem::path kRoot = DTRAIN_SOURCE_ROOT;

SearchSpec search(std::string_view text) {
  return tune::parse_search_yaml(text, "/work/search.yaml", environment()).spec;
}

std::vector<std::string> search_problems(std::string_view text) {
  return problems_in([&] { search(text); });
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// `DTRAIN_ACCEPT=1 tune_tests` writes them anew.
void check_written(const std::filesystem::path& path, const std::string& expected) {
  const char* accept = std::getenv("DTRAIN_ACCEPT");
  if (accept != nullptr && std::string(accept) == "1") {
    std::ofstream(path, std::ios::binary) << expected;
  }
  CAPTURE(path.string());
  const bool equal = text_of(path) == expected;
  CHECK_MESSAGE(equal, "differs from the tables; DTRAIN_ACCEPT=1 writes it anew");
}

}  // namespace

TEST_CASE("a search is a job and what is searched for") {
  const SearchSpec spec = search(R"(
command: [./train, --lr, {lr}, "--momentum={momentum:0.9}", {momentum:0.5}]
env: {LR: {lr}, OTHER: "x{lr}"}
nproc_per_node: 2
resources: {CPU: 1}
space:
  lr: {loguniform: [1e-4, 1e-1]}
  momentum: {uniform: [0, 1], when: "lr > 0.01"}
  model: {layers: choice:2:3}
search: {algorithm: tpe, seed: 7}
scheduler: asha
metric: val_accuracy
mode: max
num_samples: 30
max_concurrent: 4
time_budget_s: 60
stop: {training_iteration: 100, loss: "<= 0.1"}
fail_fast: false
)");
  CHECK(spec.name == "train");
  CHECK(spec.job.command == std::vector<std::string>{"./train", "--lr", "{lr}",
                                                     "--momentum={momentum:0.9}",
                                                     "{momentum:0.5}"});
  CHECK(spec.job.env.at("LR") == "{lr}");
  CHECK(spec.job.nproc_per_node.number == 2);
  CHECK(spec.job.workdir == "/work");
  CHECK(spec.space.parameters().size() == 3);
  CHECK(spec.search.seed == 7);
  CHECK(spec.scheduler.algorithm == tune::SchedulerSpec::Algorithm::asha);
  CHECK(spec.objective.mode == tune::Mode::max);
  CHECK(spec.num_samples == 30);
  CHECK(spec.max_concurrent == 4);
  CHECK(spec.stop.size() == 2);
  CHECK(spec.fail_fast.without_success == 0);
}

TEST_CASE("what is wrong with a search's YAML is told with its place") {
  const auto many = search_problems(R"(command: [./train, "{ls}"]
space:
  lr: {loguniform: [0, 1]}
  width: {randit: [1, 2]}
metric: accuracy
mode: best
scheduler: {algorithm: asha, max_t: 81, brakets: 2}
num_samples: 0
max_restarts: many
stop: {loss: low}
time_budget: 3
)");
  CHECK(join(many, "\n") ==
        join(
            std::vector<std::string>{
                "3:8 space.lr.loguniform: low must be above 0, for a logarithm",
                "4:3 space.width: \"randit\" is not known here [did you mean \"randint\"?]",
                "6:7 mode: must be min or max, not \"best\"",
                "7:50 scheduler.brakets: is not known here [did you mean \"brackets\"?]",
                "8:14 num_samples: must be a whole number from 1 to 100000, not 0",
                "9:15 max_restarts: must be a whole number of 0 to 1000000, not the text 'many'",
                "10:14 stop.loss: must be a number, or one behind >=, <=, > or <, not \"low\"",
                "11:1 time_budget: no such key in a search's YAML [did you mean time_budget_s?]"},
            "\n"));
  CHECK(search_problems("command: [./train, '{ls}']\nspace: {lr: {uniform: [0, 1]}}\n"
                        "metric: a\nmode: min\n") ==
        std::vector<std::string>{
            "1:20 command[1]: there is no parameter \"ls\" in the space [did you mean {lr}?]"});
  const auto missing = search_problems("command: [x]\n");
  CHECK(missing.size() == 3);
  CHECK(contains(missing, "space: is missing"));
  CHECK(contains(missing, "metric: is missing"));
  CHECK(contains(missing, "mode: is missing"));
  // In a job's YAML braces are what they are to YAML.
  CHECK(job_problems("command: [./train, {lr}]\n").size() == 1);
}

TEST_CASE("the schema and the page of searches are those of the table") {
  check_written(kRoot / "configs/search.schema.json", tune::search_schema().dump(2) + "\n");
  const std::filesystem::path page = kRoot / "docs/search_yaml.md";
  const std::string begin = "<!-- keys -->\n";
  const std::string text = text_of(page);
  const std::size_t from = text.find(begin) + begin.size();
  check_written(page, text.substr(0, from) + "\n" + tune::search_keys_markdown() +
                          text.substr(text.find("<!-- end of keys -->")));
}

TEST_CASE("the page has every domain, every function, and every key of an algorithm") {
  const std::string page = text_of(kRoot / "docs/search_yaml.md");
  const auto has = [&](const std::string& words) {
    CAPTURE(words);
    CHECK(page.find(words) != std::string::npos);
  };
  for (const std::string& name : tune::domain_names()) has("`" + name + ": ");
  for (const tune::ExpressionFunction& each : tune::expression_functions()) {
    has("`" + std::string(each.name) + (each.draws ? "(" : "`"));
  }
  const auto has_keys = [&](const nlohmann::json& spec) {
    for (const auto& [key, value] : spec.items()) has("`" + key + "`");
  };
  const SearchSpec spec = search(
      "command: [x]\nspace: {lr: {uniform: [0, 1]}}\nmetric: a\nmode: min\n"
      "search: {algorithm: tpe, seed: 1, points_to_evaluate: [{lr: 0.5}]}\n");
  has_keys(tune::to_json(spec.search));
  tune::SchedulerSpec scheduler;
  for (int i = 0; i <= static_cast<int>(tune::SchedulerSpec::Algorithm::pbt_replay); ++i) {
    scheduler.algorithm = static_cast<tune::SchedulerSpec::Algorithm>(i);
    has("`" + std::string(tune::to_string(scheduler.algorithm)) + "`");
    has_keys(tune::to_json(scheduler));
  }
}

TEST_CASE("the page has the limits of a search") {
  const std::string page = text_of(kRoot / "docs/search_yaml.md");
  const auto has = [&](std::uint64_t limit, const std::string& before, const std::string& behind) {
    std::string number = std::to_string(limit);
    for (std::size_t at = number.size(); at > 3;) number.insert(at -= 3, ",");
    CAPTURE(before + number + behind);
    CHECK(page.find(before + number + behind) != std::string::npos);
  };
  has(tune::Domain::kMostValues, "one of a list of 1 to ", ", all different");
  has(tune::Domain::kMostValues, "each of them, 1 to ", ", ");
  has(tune::SearchSpace::kMostParameters, "at most ", " parameters");
  has(tune::SearchSpace::kMostGrid, "", " combinations of `grid_search`");
  has(tune::Sobol::kMostDimensions, "", " parameters at most");
  has(tune::SamplerSpec::kMostPoints, "for the first trials, ", " at most");
  has(tune::SamplerSpec::kMostDraws, "", " at most");
  has(tune::SchedulerSpec::kMostBrackets, "1 to ", ", of which each begins a rung later");
  has(SearchSpec::kMostWarmStarts, "Ids of ", " searches at most");
}
