#include "launcher/tune/trial_job.hpp"

#include <algorithm>
#include <optional>

#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::tune {
namespace {

// "{name}" or "{name:text}", anywhere in a text.
struct Placeholder {
  std::size_t begin = 0;
  std::size_t end = 0;  // behind the brace
  std::string name;
  std::optional<std::string> otherwise;
};

std::optional<Placeholder> placeholder_at(std::string_view text, std::size_t begin) {
  if (begin > 0 && text[begin - 1] == '$') return std::nullopt;
  const std::size_t end = text.find_first_of(":{}", begin + 1);
  if (end == std::string_view::npos || text[end] == '{') return std::nullopt;
  const std::string_view name = text.substr(begin + 1, end - begin - 1);
  if (!valid_parameter_name(name)) return std::nullopt;
  if (text[end] == '}') return Placeholder{begin, end + 1, std::string(name), std::nullopt};
  const std::size_t close = text.find('}', end);
  if (close == std::string_view::npos) return std::nullopt;
  return Placeholder{begin, close + 1, std::string(name),
                     std::string(text.substr(end + 1, close - end - 1))};
}

// Each that has the form of one, whether there is such a parameter or not.
template <typename Each>
void each_placeholder(std::string_view text, Each each) {
  std::size_t at = 0;
  while ((at = text.find('{', at)) != std::string_view::npos) {
    const auto found = placeholder_at(text, at);
    if (found) each(*found);
    // What looks like one and is none may have one in it.
    ++at;
  }
}

// Whether a shell reads what stands at a place as part of a quoted text.
class Quotes {
 public:
  explicit Quotes(std::string_view text) : text_(text) {}

  // Not before the place that was asked for last.
  bool around(std::size_t at) {
    for (; next_ < at; ++next_) {
      const char c = text_[next_];
      if (c == '\\' && quote_ != '\'') {
        ++next_;
      } else if (quote_ != 0) {
        if (c == quote_) quote_ = 0;
      } else if (c == '"' || c == '\'' || c == '`') {
        quote_ = c;
      }
    }
    return quote_ != 0;
  }

 private:
  std::string_view text_;
  std::size_t next_ = 0;
  char quote_ = 0;  // that is open; 0: none
};

void check_text(std::string_view text, const SearchSpace& space,
                const std::vector<std::string>& names, bool shell, const Path& path,
                Problems& problems) {
  Quotes quotes(text);
  each_placeholder(text, [&](const Placeholder& found) {
    if (const Parameter* parameter = space.find(found.name)) {
      if (shell && quotes.around(found.begin)) {
        problems.add(path, "{" + found.name + "} stands between quotes",
                     "write it without them: it is quoted as one word anyway");
      }
      if (!parameter->when.empty() && !found.otherwise) {
        problems.add(path, "{" + found.name + "} is not there in every trial",
                     "{" + found.name + ":0} has 0 in those that do not have it");
      }
      return;
    }
    const bool is_group = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(found.name + ".");
    });
    if (is_group) {
      problems.add(path, "{" + found.name + "} is a group of parameters, not one of them",
                   "DTRAIN_PARAMS has all of them as JSON");
    } else if (const auto near = nearest(found.name, names)) {
      problems.add(path, "there is no parameter \"" + found.name + "\" in the space",
                   "did you mean {" + *near + "}?");
    }
  });
}

}  // namespace

std::string word_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : wire::dump(value);
}

std::string filled(std::string_view text, const SearchSpace& space, const Params& params,
                   bool quoted) {
  std::string out;
  std::size_t done = 0;
  each_placeholder(text, [&](const Placeholder& found) {
    if (found.begin < done || space.find(found.name) == nullptr) return;
    const auto value = params.find(found.name);
    if (value == params.end() && !found.otherwise) {
      throw Error(ErrorCode::invalid, "the trial has no {" + found.name + "}");
    }
    const std::string word = value == params.end() ? *found.otherwise : word_of(value->second);
    out += text.substr(done, found.begin - done);
    out += quoted ? shell_quote(word) : word;
    done = found.end;
  });
  out += text.substr(done);
  return out;
}

void check_placeholders(const JobSpec& job, const SearchSpace& space, Problems& problems) {
  std::vector<std::string> names;
  for (const Parameter& parameter : space.parameters()) names.push_back(parameter.name);
  for (std::size_t i = 0; i < job.command.size(); ++i) {
    const Path path = job.shell ? Path{"command"} : Path{"command", "[" + std::to_string(i) + "]"};
    check_text(job.command[i], space, names, job.shell, path, problems);
  }
  for (const auto& [name, value] : job.env) {
    check_text(value, space, names, false, {"env", name}, problems);
  }
}

std::set<std::string> placeholders_of(const JobSpec& job, const SearchSpace& space) {
  std::set<std::string> names;
  const auto look = [&](std::string_view text) {
    each_placeholder(text, [&](const Placeholder& found) {
      if (space.find(found.name) != nullptr) names.insert(found.name);
    });
  };
  for (const std::string& word : job.command) look(word);
  for (const auto& [name, value] : job.env) look(value);
  return names;
}

JobSpec trial_job(const JobSpec& job, const SearchSpace& space, const Params& params) {
  JobSpec of_trial = job;
  for (std::string& word : of_trial.command) word = filled(word, space, params, job.shell);
  for (auto& [name, value] : of_trial.env) value = filled(value, space, params, false);
  return of_trial;
}

}  // namespace dtrain::tune
