#include <algorithm>
#include <set>

#include "launcher/core/text.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/tune/space.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::tune {
namespace {

nlohmann::json condition_json(const Condition& condition) {
  if (condition.expression) return condition.expression->text();
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, values] : condition.values) {
    nlohmann::json list = nlohmann::json::array();
    for (const nlohmann::json& value : values) list.push_back(value);
    object[name] = std::move(list);
  }
  return object;
}

// One as it is, several as a list.
nlohmann::json conditions_json(const std::vector<Condition>& conditions) {
  if (conditions.size() == 1) return condition_json(conditions[0]);
  nlohmann::json list = nlohmann::json::array();
  for (const Condition& condition : conditions) list.push_back(condition_json(condition));
  return list;
}

}  // namespace

class SpaceReader {
 public:
  SpaceReader(SearchSpace& space, Problems& problems) : space_(space), problems_(problems) {}

  void read(const nlohmann::json& json, const Path& path) {
    const std::size_t before = problems_.list().size();
    const auto fine = [&] { return problems_.list().size() == before && before < Problems::kMost; };
    read_object(json, "", path, {}, 0);
    if (fine()) check_names();
    if (fine()) order(path);
    if (!fine()) return;
    for (std::size_t i = 0; i < space_.parameters_.size(); ++i) {
      space_.index_[space_.parameters_[i].name] = i;
    }
    list_grid();
  }

 private:
  void read_object(const nlohmann::json& json, const std::string& prefix, const Path& path,
                   std::vector<Condition> when, int depth) {
    if (!json.is_object()) {
      problems_.add(path, "must be an object of parameters, not " + shown(json));
      return;
    }
    if (depth > SearchSpace::kDeepest) {
      problems_.add(path, "is nested deeper than " + std::to_string(SearchSpace::kDeepest));
      return;
    }
    if (depth > 0) read_when(json, path, when);
    for (const auto& [key, value] : json.items()) {
      if (depth > 0 && key == "when") continue;
      const std::string name = prefix.empty() ? key : prefix + "." + key;
      const Path at = with(path, key);
      if (!valid_parameter_name(name) || key == "when") {
        problems_.add(at, "is no name of a parameter",
                      "names are letters, digits and _, as Python's, up to 128 bytes in all");
      } else if (!value.is_object()) {
        Domain domain = value.is_string()
                            ? domain_from_line(value.get_ref<const std::string&>(), at, problems_)
                            : domain_from_json(Domain::Kind::constant, value, at, problems_);
        add(name, std::move(domain), when, at);
      } else {
        read_parameter(value, name, at, when, depth);
      }
    }
  }

  // An object with a kind's name is a domain, any other one a space in the space.
  void read_parameter(const nlohmann::json& json, const std::string& name, const Path& path,
                      std::vector<Condition> when, int depth) {
    std::vector<std::string> kinds;
    std::vector<std::string> others;
    for (const auto& [key, value] : json.items()) {
      if (domain_kind(key)) {
        kinds.push_back(key);
      } else if (key != "when") {
        others.push_back(key);
      }
    }
    if (kinds.empty()) {
      const std::vector<std::string> names = domain_names();
      const auto near = others.size() == 1 && json[others[0]].is_array() ? nearest(others[0], names)
                                                                         : std::nullopt;
      if (others.empty() || near) {
        problems_.add(
            path, others.empty() ? "is empty" : "\"" + others[0] + "\" is not known here",
            near ? "did you mean \"" + *near + "\"?" : "domains are " + join(names, ", "));
      } else {
        read_object(json, name, path, std::move(when), depth + 1);
      }
      return;
    }
    if (kinds.size() > 1 || !others.empty()) {
      problems_.add(path, "has " + join(kinds, ", ") + (others.empty() ? "" : " beside ") +
                              join_some(others, 3) + "; one domain is wanted, and when");
      return;
    }
    read_when(json, path, when);
    add(name,
        domain_from_json(*domain_kind(kinds[0]), json[kinds[0]], with(path, kinds[0]), problems_),
        when, path);
  }

  void read_when(const nlohmann::json& json, const Path& path, std::vector<Condition>& when) {
    const auto found = json.find("when");
    if (found == json.end()) return;
    const Path at = with(path, "when");
    if (found->is_array()) {
      for (std::size_t i = 0; i < found->size(); ++i) {
        read_condition((*found)[i], with(at, "[" + std::to_string(i) + "]"), when);
      }
    } else {
      read_condition(*found, at, when);
    }
  }

  void read_condition(const nlohmann::json& json, const Path& path, std::vector<Condition>& when) {
    Condition condition;
    if (json.is_string()) {
      try {
        condition.expression.emplace(json.get_ref<const std::string&>());
        if (condition.expression->draws()) problems_.add(path, "a condition cannot draw numbers");
      } catch (const Error& error) {
        problems_.add(path, error.message());
      }
    } else if (json.is_object() && !json.empty()) {
      for (const auto& [name, value] : json.items()) {
        auto& values = condition.values[name];
        if (value.is_array()) {
          values.assign(value.begin(), value.end());
        } else {
          values = {value};
        }
      }
    } else {
      problems_.add(path,
                    "must be {parameter: value or values} or an expression, not " + shown(json));
    }
    when.push_back(std::move(condition));
  }

  void add(const std::string& name, Domain domain, const std::vector<Condition>& when,
           const Path& path) {
    if (space_.parameters_.size() == SearchSpace::kMostParameters) {
      if (!full_) {
        problems_.add(path, "a space has at most " + std::to_string(SearchSpace::kMostParameters) +
                                " parameters");
      }
      full_ = true;
      return;
    }
    if (!paths_.emplace(name, path).second) {
      problems_.add(path, "is there twice, nested and with a dot");
      return;
    }
    const std::string group = when.empty() ? "" : wire::dump(conditions_json(when));
    space_.parameters_.push_back({name, std::move(domain), when, group});
  }

  // All that expressions and conditions name is there, and no parameter is a space as well.
  void check_names() {
    std::vector<std::string> names;
    for (const auto& [name, path] : paths_) names.push_back(name);
    for (const auto& [name, path] : paths_) {
      const auto below = paths_.upper_bound(name + ".");
      if (below != paths_.end() && below->first.starts_with(name + ".")) {
        problems_.add(path, "is a parameter, and has parameters below it");
      }
    }
    for (const Parameter& parameter : space_.parameters_) {
      for (const std::string& name : needed(parameter)) {
        if (paths_.contains(name)) continue;
        const auto near = nearest(name, names);
        problems_.add(paths_.at(parameter.name), "there is no parameter \"" + name + "\"",
                      near ? "did you mean \"" + *near + "\"?" : "");
      }
    }
  }

  static std::set<std::string> needed(const Parameter& parameter) {
    std::set<std::string> names;
    if (parameter.domain.expression) names = parameter.domain.expression->names();
    for (const Condition& condition : parameter.when) {
      for (const std::string& name : condition.names()) names.insert(name);
    }
    return names;
  }

  // Behind what they need, else by name; what is left over needs itself.
  void order(const Path& path) {
    std::map<std::string, Parameter> waiting;
    std::map<std::string, std::size_t> missing;               // how many it needs yet
    std::map<std::string, std::vector<std::string>> needers;  // who needs it
    std::set<std::string> ready;
    for (Parameter& parameter : space_.parameters_) {
      const std::set<std::string> names = needed(parameter);
      missing[parameter.name] = names.size();
      if (names.empty()) ready.insert(parameter.name);
      for (const std::string& name : names) needers[name].push_back(parameter.name);
      waiting.emplace(parameter.name, std::move(parameter));
    }
    space_.parameters_.clear();
    while (!ready.empty()) {
      const auto next = waiting.extract(*ready.begin());
      ready.erase(ready.begin());
      space_.parameters_.push_back(std::move(next.mapped()));
      for (const std::string& name : needers[next.key()]) {
        if (--missing[name] == 0) ready.insert(name);
      }
    }
    if (!waiting.empty()) problems_.add(path, "parameters that need each other: " + cycle(waiting));
  }

  // One of the circles: "a, b, a".
  static std::string cycle(const std::map<std::string, Parameter>& waiting) {
    std::vector<std::string> way;
    std::string at = waiting.begin()->first;
    while (std::find(way.begin(), way.end(), at) == way.end()) {
      way.push_back(at);
      for (const std::string& name : needed(waiting.at(at))) {
        if (waiting.contains(name)) at = name;
      }
    }
    way.erase(way.begin(), std::find(way.begin(), way.end(), at));
    way.push_back(at);
    return join_some(way, 20);
  }

  void list_grid() {
    decide();
    std::uint64_t size = 1;
    bool conditional = false;
    for (const auto& [name, index] : space_.index_) {
      const Parameter& parameter = space_.parameters_[index];
      if (parameter.domain.kind != Domain::Kind::grid_search) continue;
      space_.grid_parameters_.push_back(index);
      size *= parameter.domain.values.size();
      if (size > SearchSpace::kMostGrid) {
        problems_.add(paths_.at(name), "grid_search makes more than " +
                                           std::to_string(SearchSpace::kMostGrid) +
                                           " combinations");
        return;
      }
      conditional = conditional || !parameter.when.empty();
      if (!decided_.contains(name)) {
        problems_.add(paths_.at(name),
                      "a grid_search can depend on grid_search and constants alone");
        return;
      }
    }
    if (space_.grid_parameters_.empty()) return;
    space_.grid_.resize(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < space_.grid_.size(); ++i) {
      space_.grid_[i] = static_cast<std::uint32_t>(i);
    }
    if (!conditional) return;
    SearchSpace plain;  // of what decides which are there
    for (const Parameter& parameter : space_.parameters_) {
      if (decided_.contains(parameter.name)) plain.parameters_.push_back(parameter);
    }
    std::erase_if(space_.grid_, [&](std::uint32_t code) { return doubled(code, plain); });
  }

  // Which are there, and with which value, by the grid's point alone. Each stands behind what it
  // needs.
  void decide() {
    for (const Parameter& parameter : space_.parameters_) {
      const Domain::Kind kind = parameter.domain.kind;
      if (kind != Domain::Kind::grid_search && kind != Domain::Kind::constant) continue;
      const std::set<std::string> names = needed(parameter);
      if (std::includes(decided_.begin(), decided_.end(), names.begin(), names.end())) {
        decided_.insert(parameter.name);
      }
    }
  }

  // Whether some parameter that is not there has another value than its first.
  bool doubled(std::uint32_t code, const SearchSpace& plain) const {
    Params given;
    for (const std::size_t each : space_.grid_parameters_) {
      const Parameter& parameter = space_.parameters_[each];
      const auto count = static_cast<std::uint32_t>(parameter.domain.values.size());
      given[parameter.name] = parameter.domain.values[code % count];
      code /= count;
    }
    const Params here = plain.fill(given, 0, 0, nullptr);
    return std::any_of(given.begin(), given.end(), [&](const auto& each) {
      return !here.contains(each.first) &&
             each.second != space_.find(each.first)->domain.values.front();
    });
  }

  SearchSpace& space_;
  Problems& problems_;
  std::map<std::string, Path> paths_;
  std::set<std::string> decided_;
  bool full_ = false;
};

SearchSpace SearchSpace::from_json(const nlohmann::json& json, const Path& path,
                                   Problems& problems) {
  SearchSpace space;
  SpaceReader(space, problems).read(json, path);
  return space;
}

nlohmann::json SearchSpace::to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const Parameter& parameter : parameters_) {
    nlohmann::json domain = tune::to_json(parameter.domain);
    if (!parameter.when.empty()) {
      if (!domain.is_object()) {
        nlohmann::json constant = nlohmann::json::object();
        constant["constant"] = std::move(domain);
        domain = std::move(constant);
      }
      domain["when"] = conditions_json(parameter.when);
    }
    object[parameter.name] = std::move(domain);
  }
  return object;
}

}  // namespace dtrain::tune
