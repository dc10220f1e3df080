#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/job_spec.hpp"

// The readers of both YAML files: the library `spec_yaml`, the only user of yaml-cpp. The agent
// does not link it.
namespace dtrain {

struct Warning {
  std::string message;
  Location location;
};

// What is wrong with a file, all of it. what() is the first problem and how many more there are;
// code() is invalid.
class SpecError : public Error {
 public:
  explicit SpecError(std::vector<Error> problems);
  const std::vector<Error>& problems() const noexcept { return problems_; }

 private:
  std::vector<Error> problems_;
};

// Looks up an environment variable for ${VAR}; absent: the variable is unknown, which is a problem.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

template <typename Spec>
struct Read {
  Spec spec;
  std::vector<Warning> warnings;
};

// Text of at most 4 MiB, at most 100 levels deep, at most 100,000 values and 16 MiB after aliases
// and variables. `file` is for messages, and relative paths are relative to its folder. Throw
// SpecError with at most 100 problems, in the order of the text; the spec that is returned has
// passed validate(). No file but `file` is looked at: that hosts and paths exist is not checked.
Read<ClusterSpec> parse_cluster_yaml(std::string_view text, const std::string& file,
                                     const Environment& environment);
Read<JobSpec> parse_job_yaml(std::string_view text, const std::string& file,
                             const Environment& environment);

// The same from a file; Error(not_found, denied, io, invalid) when it cannot be read.
Read<ClusterSpec> read_cluster_yaml(const std::string& path, const Environment& environment);
Read<JobSpec> read_job_yaml(const std::string& path, const Environment& environment);

// True for a file whose top level has the key `provider`: a cluster YAML and not a job YAML.
// False when it is not YAML at all; throws only when the file cannot be read.
bool looks_like_cluster_yaml(const std::string& path);

// The JSON Schemas (draft 2020-12) of both files, from the same tables that the readers use.
nlohmann::json cluster_schema();
nlohmann::json job_schema();

}  // namespace dtrain
