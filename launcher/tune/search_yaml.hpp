#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/spec/yaml.hpp"
#include "launcher/tune/search_spec.hpp"

// A search's YAML: the keys of a job's, with {name} for parameters, and the search's own. The
// library `tune_yaml`, which the agent does not link.
namespace dtrain::tune {

// As parse_job_yaml() and read_job_yaml(), bounds and errors too.
Read<SearchSpec> parse_search_yaml(std::string_view text, const std::string& file,
                                   const Environment& environment);
Read<SearchSpec> read_search_yaml(const std::string& path, const Environment& environment);

// True for a file whose top level has the key `space`: a search's YAML and not a job's.
bool looks_like_search_yaml(const std::string& path);

// configs/search.schema.json.
nlohmann::json search_schema();
// The search's own keys as Markdown, for docs/search_yaml.md.
std::string search_keys_markdown();

}  // namespace dtrain::tune
