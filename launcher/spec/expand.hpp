#pragma once

#include <string>
#include <string_view>

#include "launcher/spec/yaml.hpp"

namespace dtrain::spec {

// ${VAR} and the paths of one file.
class Expander {
 public:
  // `file`: relative paths are relative to its folder.
  Expander(const Environment& environment, const std::string& file);

  // Replaces each ${NAME}; $$ is a dollar, any other $ stays. Throws Error(invalid) for an unknown
  // variable, another form (${NAME:-x}), or when the whole file has grown beyond 16 MiB.
  std::string expand(std::string_view text);

  // The absolute path: ~ and ~/… are HOME's, a relative one is below the file's folder, `.` and
  // `..` are resolved in the text, a '/' at the end goes. Throws Error(invalid) if HOME is not
  // known.
  std::string path(const std::string& text) const;

  const std::string& folder() const noexcept { return folder_; }
  const std::string& file() const noexcept { return file_; }  // absolute

 private:
  const Environment& environment_;
  std::string file_;
  std::string folder_;
  std::size_t grown_ = 0;
};

}  // namespace dtrain::spec
