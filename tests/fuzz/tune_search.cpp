// Any JSON is a search without problems, which can be asked and written, or has at least one
// problem of bounded length; any text is an expression or an error. Nothing else is thrown.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/tune/sampler.hpp"
#include "launcher/tune/scheduler.hpp"
#include "launcher/wire/json.hpp"

namespace {

using namespace dtrain;
using namespace dtrain::tune;

void compute(std::string_view text) {
  try {
    const Expression expression(text);
    Stream chance(1, 2, "fuzz");
    static const nlohmann::json kValue = 3;
    expression.value([](const std::string& name) { return name.size() % 2 ? &kValue : nullptr; },
                     chance);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid || error.message().size() > 1000) std::abort();
  }
}

void run(const SearchSpace& space, const SamplerSpec& sampling, const SchedulerSpec& scheduling) {
  const auto sampler = make_sampler(space, sampling, Mode::max);
  const auto scheduler = make_scheduler(scheduling, space, Mode::max, 1, 8);
  for (TrialNumber trial = 0; trial < 8; ++trial) {
    Params params;
    try {
      params = sampler->suggest(trial);
    } catch (const Error& error) {  // an expression of the space
      if (error.code() != ErrorCode::invalid) std::abort();
    }
    sampler->started(trial, params);
    scheduler->added(trial, params);
    scheduler->checkpointed(trial, 1);
    try {
      for (const double time : {1.0, 10.0, 100.0}) {
        scheduler->reported({trial, time, static_cast<double>(trial % 3)});
      }
      scheduler->resume();
    } catch (const Error& error) {  // the same, of parameters that PBT explored
      if (error.code() != ErrorCode::invalid) std::abort();
    }
    sampler->ended(trial, {Outcome::State::complete, static_cast<double>(trial), 1});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!text.starts_with('{')) {
    compute(text);
    return 0;
  }
  nlohmann::json json;
  try {
    json = wire::parse_json(text, "the search", 65536, 32);
  } catch (const Error&) {
    return 0;
  }
  Problems problems;
  const nlohmann::json none;
  const auto part = [&](const char* key) -> const nlohmann::json& {
    return json.contains(key) ? json[key] : none;
  };
  const SearchSpace space =
      SearchSpace::from_json(json.contains("space") ? json["space"] : json, {"space"}, problems);
  if (problems.empty()) {
    const SamplerSpec sampling =
        sampler_spec_from_json(part("search"), space, {"search"}, problems);
    const SchedulerSpec scheduling =
        scheduler_spec_from_json(part("scheduler"), space, {"scheduler"}, problems);
    if (problems.empty()) {
      Problems again;
      if (SearchSpace::from_json(space.to_json(), {}, again).to_json() != space.to_json() ||
          !again.empty()) {
        std::abort();
      }
      wire::dump(to_json(sampling));
      wire::dump(to_json(scheduling));
      run(space, sampling, scheduling);
    }
  }
  for (const Problem& problem : problems.list()) {
    if (problem.error().message().size() > 4000) std::abort();
  }
  return 0;
}
