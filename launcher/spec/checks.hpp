#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/job_spec.hpp"

// Inside of launcher/spec: what validate() finds, still with the path of the key, from which the
// YAML readers know the place in the file.
namespace dtrain::spec {

// Keys and indices from the top of the file: {"env", "RANK"}, {"command", "[0]"}.
using Path = std::vector<std::string>;
std::string to_string(const Path& path);  // "env.RANK", "command[0]"
Path with(Path path, std::string step);

struct Problem {
  Path path;
  std::string message;  // without the path
  std::string hint;     // empty: none

  Error error() const;  // "env.RANK: message"
};

std::vector<Problem> problems_of(const JobSpec& spec);
std::vector<Problem> problems_of(const ClusterSpec& spec);

// A value from outside for a message: printable, in quotes, cut after some 60 bytes.
std::string shown(std::string_view text);

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
