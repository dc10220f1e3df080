#include "launcher/tune/search_yaml.hpp"

#include "launcher/spec/limits.hpp"
#include "launcher/spec/readers.hpp"
#include "launcher/spec/table.hpp"

namespace dtrain::tune {
namespace {

using nlohmann::json;
using spec::Shape;

template <typename Names>
json one_of(const Names& names) {
  json schema;
  schema["enum"] = names;
  return schema;
}

json typed(json type) {
  json schema;
  schema["type"] = std::move(type);
  return schema;
}

json whole(std::int64_t most) {
  json schema = typed("integer");
  schema["minimum"] = 1;
  schema["maximum"] = most;
  return schema;
}

Shape whole_shape(std::int64_t most) {
  return Shape::special(Shape::whole(1, static_cast<double>(most)).in_words(), whole(most));
}

// A name, or an object whose `algorithm` it is; what else that has depends on it.
template <typename Names>
json algorithm(const Names& names) {
  json object = typed("object");
  object["properties"]["algorithm"] = one_of(names);
  json schema;
  schema["anyOf"] = json::array({one_of(names), std::move(object)});
  return schema;
}

json fail_fast() {
  json schema;
  schema["anyOf"] = json::array({typed("boolean"), whole(SearchSpec::kMostTrials)});
  return schema;
}

json texts() {
  json schema = typed("array");
  schema["items"] = typed("string");
  return schema;
}

std::vector<spec::Key> search_keys() {
  json space = typed("object");
  space["minProperties"] = 1;
  json name = typed("string");
  name["minLength"] = 1;
  return {
      example(
          required(key("space", Shape::special("mapping of parameters", std::move(space)), nullptr,
                       "The parameters, and what values each may have: `uniform`, `choice` and "
                       "so on, as in Ray Tune.")),
          "space: {lr: {loguniform: [1e-4, 1e-1]}}"),
      example(required(key("metric", Shape::special("text", std::move(name)), nullptr,
                           "What is to become best, as rank 0 reports it.")),
              "metric: val_accuracy"),
      example(required(key("mode", Shape::special("min or max", one_of(std::array{"min", "max"})),
                           nullptr, "Whether less of it is better, or more.")),
              "mode: max"),
      example(
          key("search",
              Shape::special("name, or mapping with `algorithm`", algorithm(SamplerSpec::kNames)),
              nullptr,
              "How parameters are found: `random` (the default), `grid`, `sobol` or `tpe`; "
              "with `seed`, `points_to_evaluate` and what the algorithm has."),
          "search: {algorithm: tpe, seed: 1}"),
      example(
          key("scheduler",
              Shape::special("name, or mapping with `algorithm`", algorithm(SchedulerSpec::kNames)),
              nullptr,
              "What becomes of trials while they run: `fifo` (the default: nothing), `asha`, "
              "`median_stopping`, `pbt` or `pbt_replay`; with `time_attr` and what the algorithm "
              "has."),
          "scheduler: {algorithm: asha, max_t: 81}"),
      example(key("num_samples", whole_shape(SearchSpec::kMostTrials), 1,
                  "How many trials, of each combination of `grid_search`."),
              "num_samples: 30"),
      example(key("max_concurrent", whole_shape(SearchSpec::kMostConcurrent), nullptr,
                  "How many trials run or wait in the queue at a time. Absent: as many wait as "
                  "run, and two at least, so that machines can be asked for."),
              "max_concurrent: 8"),
      example(key("time_budget_s", whole_shape(limits::kTimeoutSeconds), nullptr,
                  "Seconds after which no trial begins and those that run are stopped. Absent: no "
                  "limit."),
              "time_budget_s: 3600"),
      example(key("stop", Shape::special("mapping of metrics to bounds", typed("object")), nullptr,
                  "When a trial is complete though its program goes on: `loss: \"<= 0.1\"`; a "
                  "plain number is `>=`."),
              "stop: {training_iteration: 100}"),
      example(key("fail_fast", Shape::special("true, false or a number of trials", fail_fast()), 10,
                  "`true`: the first failed trial ends the search; `false`: none does; N: N of "
                  "them do, where none has ended well."),
              "fail_fast: true"),
      example(
          key("warm_start", Shape::special("list of searches", texts()), nullptr,
              "Ids of 100 searches at most that have ended, of the same `metric` and `mode`, from "
              "which `tpe` learns before it begins."),
          "warm_start: [mnist-abc234]"),
  };
}

const spec::Table& search_table() {
  static const spec::Table table = [] {
    spec::Table all{"a search's YAML", spec::job_table().keys, false};
    for (spec::Key& key : search_keys()) all.keys.push_back(std::move(key));
    return all;
  }();
  return table;
}

std::string explain_key(const std::string& key) {
  if (key == "time_budget") return "did you mean time_budget_s?";
  if (key == "param_space" || key == "config") return "the parameters are space";
  if (key == "search_alg") return "how parameters are found is search";
  if (key == "max_concurrent_trials") return "did you mean max_concurrent?";
  return spec::explain_job_key(key);
}

}  // namespace

Read<SearchSpec> parse_search_yaml(std::string_view text, const std::string& file,
                                   const Environment& environment) {
  spec::Report report(file);
  const spec::Document document = spec::parse_document(text, report);
  spec::report_repeated(document, report, false);
  spec::Expander expander(environment, file);
  const spec::Source source{report, expander};
  spec::Mapping top(&document.root(), search_table(), {}, source, explain_key);
  SearchSpec spec;
  spec.job = spec::read_job_keys(top, source);
  spec.name = spec.job.name;
  json own = json::object();
  for (const spec::Key& each : search_keys()) {
    const spec::Node* node = top.special(each.name.c_str());
    if (node != nullptr) own[each.name] = top.json(*node, {each.name}, false);
  }
  top.finish();
  Problems problems;
  read_search_keys(own, spec, problems);
  // Of a space that is wrong nothing else can be said.
  validate(spec, problems);
  spec::report_problems(problems.list(), document, report);
  report.finish();
  return {std::move(spec), report.take_warnings()};
}

Read<SearchSpec> read_search_yaml(const std::string& path, const Environment& environment) {
  return parse_search_yaml(spec::read_text(path), path, environment);
}

bool looks_like_search_yaml(const std::string& path) {
  const std::string text = spec::read_text(path);
  spec::Report report(path);
  try {
    return spec::parse_document(text, report).root().find("space") != nullptr;
  } catch (const SpecError&) {
    return false;
  }
}

nlohmann::json search_schema() {
  return spec::file_schema(search_table(), "dtrain search",
                           "https://dtrain.invalid/search.schema.json");
}

std::string search_keys_markdown() {
  return spec::keys_markdown("The search", search_keys());
}

}  // namespace dtrain::tune
