#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/names.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/problem.hpp"

// Inside of launcher/spec: what validate() finds, still with the path of the key.
namespace dtrain::spec {

std::vector<Problem> problems_of(const JobSpec& spec);
std::vector<Problem> problems_of(const ClusterSpec& spec);

// [A-Za-z_][A-Za-z0-9_]*, at most 255 bytes.
bool valid_environment_name(std::string_view name) noexcept;
// A host name, an address or an alias of ~/.ssh/config: letters, digits and . _ - : %, at least one
// of the first two, not beginning with '-' or '.', no "..", at most 253 bytes. What looks like an
// IPv4 address is one.
bool valid_host(std::string_view text) noexcept;
// A login name: letters, digits and . _ @ + -, not beginning with '-', at most 64 bytes.
bool valid_user(std::string_view text) noexcept;

// Collects problems; each check adds at most one.
class Checks {
 public:
  void add(Path path, std::string message, std::string hint = {});

  // No NUL, well-formed UTF-8 and at most `limit` bytes. True when it is fine.
  bool text(const Path& path, std::string_view value, std::size_t limit);
  // Also '/' at the front.
  bool absolute(const Path& path, std::string_view value);
  // Also absolute or ~/…
  bool absolute_or_home(const Path& path, std::string_view value);
  bool name(const Path& path, std::string_view value, std::string_view example,
            std::size_t longest = kShortName);
  bool host(const Path& path, std::string_view value);
  void range(const Path& path, double value, double min, double max);

  std::vector<Problem> take() { return std::move(problems_); }

 private:
  std::vector<Problem> problems_;
};

std::vector<Error> to_errors(const std::vector<Problem>& problems);

}  // namespace dtrain::spec
