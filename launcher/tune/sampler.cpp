#include "launcher/tune/sampler.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "launcher/tune/keys.hpp"
#include "launcher/tune/sobol.hpp"
#include "launcher/tune/tpe.hpp"

namespace dtrain::tune {
namespace {

using SamplerAlgorithm = SamplerSpec::Algorithm;

constexpr int kMostStartup = 100'000;
constexpr int kMostCandidates = static_cast<int>(SamplerSpec::kMostDraws);

// Each dimension of the sequence is one parameter, by name.
class SobolSampler : public Sampler {
 public:
  SobolSampler(const SearchSpace& space, const SamplerSpec& spec)
      : Sampler(space, spec), sequence_(names(space).size(), seed_) {
    for (const std::string& name : names(space)) dimensions_.emplace(name, dimensions_.size());
  }

 protected:
  Params sample(TrialNumber trial, std::uint64_t index, const Params& fixed) const override {
    // The same point for each combination of a grid would leave the rest of the space unseen.
    return space_.fill(fixed, seed_, trial, [&](const Parameter& parameter, const Params&) {
      const std::uint32_t place = sequence_.at(index, dimensions_.at(parameter.name));
      return parameter.domain.at((place + 0.5) * 0x1p-30);
    });
  }

 private:
  static std::vector<std::string> names(const SearchSpace& space) {
    std::vector<std::string> names;
    for (const Parameter& each : space.parameters()) {
      if (each.domain.sampled()) names.push_back(each.name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Sobol sequence_;
  std::map<std::string, std::size_t> dimensions_;
};

class RandomSampler : public Sampler {
 public:
  RandomSampler(const SearchSpace& space, const SamplerSpec& spec) : Sampler(space, spec) {}
};

void check_algorithm(const SamplerSpec& spec, const SearchSpace& space, const Path& path,
                     Problems& problems) {
  std::size_t sampled = 0;
  for (const Parameter& each : space.parameters()) {
    const Domain::Kind kind = each.domain.kind;
    sampled += each.domain.sampled() ? 1 : 0;
    if (spec.algorithm == SamplerAlgorithm::grid && each.domain.sampled()) {
      problems.add(path, "grid has no value for " + each.name + ", which is " + to_string(kind),
                   "make it a grid_search, or say algorithm: random");
    }
    if (spec.algorithm == SamplerAlgorithm::tpe && kind == Domain::Kind::grid_search) {
      problems.add(path, "tpe does not take grid_search, which " + each.name + " is",
                   "make it a choice");
    }
  }
  const auto candidates = static_cast<std::size_t>(spec.n_ei_candidates);
  if (spec.algorithm == SamplerAlgorithm::tpe && candidates * sampled > SamplerSpec::kMostDraws) {
    problems.add(with(path, "n_ei_candidates"),
                 std::to_string(candidates) + " candidates of " + std::to_string(sampled) +
                     " parameters are more than " + std::to_string(SamplerSpec::kMostDraws) +
                     " draws",
                 "n_ei_candidates: " + std::to_string(SamplerSpec::kMostDraws / sampled));
  }
  if (spec.algorithm == SamplerAlgorithm::sobol && sampled > Sobol::kMostDimensions) {
    problems.add(path, "sobol takes " + std::to_string(Sobol::kMostDimensions) +
                           " parameters at most, not " + std::to_string(sampled));
  }
}

}  // namespace

const char* to_string(SamplerAlgorithm algorithm) noexcept {
  return SamplerSpec::kNames[static_cast<std::size_t>(algorithm)];
}

SamplerSpec sampler_spec_from_json(const nlohmann::json& json, const SearchSpace& space,
                                   const Path& path, Problems& problems) {
  SamplerSpec spec;
  const nlohmann::json object = spelled_out(json);
  Keys keys(object, path, problems);
  keys.one_of("algorithm", spec.algorithm, SamplerSpec::kNames);
  if (const nlohmann::json* seed = keys.find("seed"); seed && !seed->is_null()) {
    if (seed->is_number_unsigned() || (seed->is_number_integer() && *seed >= 0)) {
      spec.seed = seed->get<std::uint64_t>();
    } else {
      keys.wrong("seed", "must be a whole number from 0, not " + shown(*seed));
    }
  }
  if (spec.algorithm == SamplerAlgorithm::tpe) {
    keys.whole("n_startup_trials", spec.n_startup_trials, 0, kMostStartup);
    keys.whole("n_ei_candidates", spec.n_ei_candidates, 1, kMostCandidates);
    keys.flag("constant_liar", spec.constant_liar);
  }
  if (const nlohmann::json* points = keys.find("points_to_evaluate")) {
    const Path at = keys.path("points_to_evaluate");
    if (!points->is_array() || points->size() > SamplerSpec::kMostPoints) {
      problems.add(at, "must be a list of at most " + std::to_string(SamplerSpec::kMostPoints) +
                           " points, not " + shown(*points));
    } else {
      for (std::size_t i = 0; i < points->size(); ++i) {
        spec.points_to_evaluate.push_back(
            space.point_from_json((*points)[i], with(at, "[" + std::to_string(i) + "]"), problems));
      }
    }
  }
  keys.finish();
  check_algorithm(spec, space, path, problems);
  return spec;
}

nlohmann::json to_json(const SamplerSpec& spec) {
  nlohmann::json object = nlohmann::json::object();
  object["algorithm"] = to_string(spec.algorithm);
  if (spec.seed) object["seed"] = *spec.seed;
  if (spec.algorithm == SamplerAlgorithm::tpe) {
    object["n_startup_trials"] = spec.n_startup_trials;
    object["n_ei_candidates"] = spec.n_ei_candidates;
    object["constant_liar"] = spec.constant_liar;
  }
  if (!spec.points_to_evaluate.empty()) {
    nlohmann::json points = nlohmann::json::array();
    for (const Params& point : spec.points_to_evaluate) points.push_back(nlohmann::json(point));
    object["points_to_evaluate"] = std::move(points);
  }
  return object;
}

std::uint64_t trial_count(const SearchSpace& space, const SamplerSpec& spec,
                          std::uint64_t num_samples) noexcept {
  const std::uint64_t points = spec.points_to_evaluate.size();
  const std::uint64_t rest = num_samples > points ? num_samples - points : 0;
  const std::uint64_t grid = space.grid_size();
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - points;
  return points + (rest > most / grid ? most : rest * grid);
}

Sampler::Sampler(const SearchSpace& space, SamplerSpec spec)
    : space_(space), spec_(std::move(spec)), seed_(spec_.seed.value_or(0)) {}

Params Sampler::suggest(TrialNumber trial) const {
  const std::uint64_t points = spec_.points_to_evaluate.size();
  if (trial < points) {
    return at_random(trial, spec_.points_to_evaluate[static_cast<std::size_t>(trial)]);
  }
  const std::uint64_t index = trial - points;
  return sample(trial, index, space_.grid_point(index % space_.grid_size()));
}

void Sampler::learn(const Params&, const Outcome&) {}
void Sampler::started(TrialNumber, const Params&) {}
void Sampler::ended(TrialNumber, const Outcome&) {}

Params Sampler::sample(TrialNumber trial, std::uint64_t, const Params& fixed) const {
  return at_random(trial, fixed);
}

Params Sampler::at_random(TrialNumber trial, const Params& fixed) const {
  return space_.fill(fixed, seed_, trial, [&](const Parameter& parameter, const Params&) {
    return parameter.domain.at(Stream(seed_, trial, parameter.name).uniform());
  });
}

std::unique_ptr<Sampler> make_sampler(const SearchSpace& space, const SamplerSpec& spec,
                                      Mode mode) {
  switch (spec.algorithm) {
    case SamplerAlgorithm::sobol:
      return std::make_unique<SobolSampler>(space, spec);
    case SamplerAlgorithm::tpe:
      return std::make_unique<Tpe>(space, spec, mode);
    case SamplerAlgorithm::random:
    case SamplerAlgorithm::grid:
      break;
  }
  return std::make_unique<RandomSampler>(space, spec);
}

}  // namespace dtrain::tune
