#include "launcher/tune/space.hpp"

#include <algorithm>

#include "launcher/core/text.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::tune {
namespace {

bool there(const Parameter& parameter, const Params& params) {
  Stream none(0, 0, "when");  // conditions draw nothing
  const auto look = [&](const std::string& name) -> const nlohmann::json* {
    const auto found = params.find(name);
    return found == params.end() ? nullptr : &found->second;
  };
  return std::all_of(parameter.when.begin(), parameter.when.end(), [&](const Condition& condition) {
    for (const auto& [name, values] : condition.values) {
      const nlohmann::json* value = look(name);
      if (!value || std::find(values.begin(), values.end(), *value) == values.end()) {
        return false;
      }
    }
    if (!condition.expression) return true;
    const auto& names = condition.expression->names();
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return !look(name); })) {
      return false;
    }
    return condition.expression->holds(look, none);
  });
}

void flatten(const SearchSpace& space, const nlohmann::json& json, const std::string& prefix,
             const Path& path, Params& params, Problems& problems) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (space.find(name)) {
      params[name] = value;
    } else if (value.is_object()) {
      flatten(space, value, name, with(path, key), params, problems);
    } else {
      std::vector<std::string> names;
      for (const Parameter& each : space.parameters()) names.push_back(each.name);
      const auto near = nearest(name, names);
      problems.add(with(path, key), "is no parameter of the space",
                   near ? "did you mean \"" + *near + "\"?" : "");
    }
  }
}

}  // namespace

nlohmann::json nested(const Params& params) {
  nlohmann::json top = nlohmann::json::object();
  for (const auto& [name, value] : params) {
    nlohmann::json* at = &top;
    const std::vector<std::string> steps = split(name, '.');
    for (const std::string& step : steps) at = &(*at)[step];
    *at = value;
  }
  return top;
}

std::vector<std::string> Condition::names() const {
  std::vector<std::string> all;
  for (const auto& [name, values_of] : values) all.push_back(name);
  if (expression) all.insert(all.end(), expression->names().begin(), expression->names().end());
  return all;
}

const Parameter* SearchSpace::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

Params SearchSpace::grid_point(std::uint64_t index) const {
  Params point;
  if (grid_.empty()) return point;
  std::uint32_t code = grid_[index % grid_.size()];
  for (const std::size_t each : grid_parameters_) {
    const Parameter& parameter = parameters_[each];
    const auto count = static_cast<std::uint32_t>(parameter.domain.values.size());
    point[parameter.name] = parameter.domain.values[code % count];
    code /= count;
  }
  return point;
}

Params SearchSpace::fill(const Params& fixed, std::uint64_t seed, std::uint64_t trial,
                         const Choose& choose) const {
  Params params;
  const auto look = [&](const std::string& name) -> const nlohmann::json* {
    const auto found = params.find(name);
    return found == params.end() ? nullptr : &found->second;
  };
  for (const Parameter& parameter : parameters_) {
    try {
      if (!there(parameter, params)) continue;
      const auto given = fixed.find(parameter.name);
      if (given != fixed.end()) {
        params[parameter.name] = given->second;
      } else if (parameter.domain.sampled()) {
        params[parameter.name] = choose(parameter, params);
      } else if (parameter.domain.kind == Domain::Kind::sample_from) {
        Stream chance(seed, trial, parameter.name);
        params[parameter.name] = parameter.domain.expression->value(look, chance);
      } else {
        params[parameter.name] = parameter.domain.values.at(0);
      }
    } catch (Error& error) {
      error.while_doing("computing the parameter " + parameter.name);
      throw;
    }
  }
  return params;
}

Params SearchSpace::point_from_json(const nlohmann::json& json, const Path& path,
                                    Problems& problems) const {
  Params params;
  if (!json.is_object()) {
    problems.add(path, "must be an object of parameters, not " + shown(json));
    return params;
  }
  flatten(*this, json, "", path, params, problems);
  for (const auto& [name, value] : params) {
    const Domain& domain = find(name)->domain;
    if (domain.kind != Domain::Kind::sample_from && !domain.position(value)) {
      problems.add(with(path, name), shown(value) + " is not of " + shown(tune::to_json(domain)));
    }
  }
  for (const std::size_t each : grid_parameters_) {
    const Parameter& parameter = parameters_[each];
    if (!params.contains(parameter.name) && parameter.when.empty()) {
      problems.add(with(path, parameter.name), "is missing, and a grid has no value of its own");
    }
  }
  return params;
}

std::pair<std::string, nlohmann::json> param_from_flag(std::string_view flag) {
  const std::size_t sign = flag.find('=');
  const std::string name(flag.substr(0, sign));
  if (sign == std::string_view::npos || !valid_parameter_name(name)) {
    throw Error(ErrorCode::usage, "\"" + printable(flag.substr(0, 60), false) +
                                      "\" is no NAME=DOMAIN as in lr=loguniform:1e-4:1e-1");
  }
  const std::string_view text = flag.substr(sign + 1);
  if (text.starts_with('{') || text.starts_with('[')) {
    return {name, wire::parse_json(text, "what " + name + " is given", std::size_t{1} << 20, 32)};
  }
  Problems problems;
  const Domain domain = domain_from_line(text, {name}, problems);
  problems.check();
  return {name, to_json(domain)};
}

}  // namespace dtrain::tune
