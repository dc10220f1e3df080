#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/spec/yaml.hpp"

// What the tests of both readers share: an environment of their own, and problems as text.
namespace dtrain::testing {

inline Environment environment(std::map<std::string, std::string> variables = {}) {
  variables.emplace("HOME", "/home/me");
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

// "line:column message [hint]" for each problem, in order; nothing if the text is fine.
template <typename Parse>
std::vector<std::string> problems_in(Parse&& parse) {
  std::vector<std::string> out;
  try {
    parse();
  } catch (const SpecError& error) {
    for (const Error& problem : error.problems()) {
      std::string text;
      if (problem.location()) {
        text = std::to_string(problem.location()->line) + ":" +
               std::to_string(problem.location()->column) + " ";
      }
      text += problem.message();
      if (!problem.hint().empty()) text += " [" + problem.hint() + "]";
      out.push_back(text);
    }
  }
  return out;
}

inline std::vector<std::string> job_problems(std::string_view text,
                                             const Environment& env = environment()) {
  return problems_in([&] { parse_job_yaml(text, "/work/job.yaml", env); });
}

inline std::vector<std::string> cluster_problems(std::string_view text,
                                                 const Environment& env = environment()) {
  return problems_in([&] { parse_cluster_yaml(text, "/work/cluster.yaml", env); });
}

inline JobSpec job(std::string_view text, const Environment& env = environment()) {
  return parse_job_yaml(text, "/work/job.yaml", env).spec;
}

inline ClusterSpec cluster(std::string_view text, const Environment& env = environment()) {
  return parse_cluster_yaml(text, "/work/cluster.yaml", env).spec;
}

inline bool contains(const std::vector<std::string>& lines, std::string_view part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace dtrain::testing
