#include "launcher/core/own_programs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

fs::path find(const std::string& name, const char* variable_name) {
  const char* variable = std::getenv(variable_name);
  if (variable != nullptr && *variable != '\0') {
    fs::path program = fs::absolute(variable);
    if (::access(program.c_str(), X_OK) == 0) return program;
    throw Error(ErrorCode::not_found, std::string(variable_name) + " names " + program.string() +
                                          ", which is no program that can be started");
  }
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  const fs::path folder = self.parent_path();
  std::vector<std::string> tried;
  for (const char* place :
       {"../libexec/dtrain", "../agent", "../agent/profiler"}) {  // installed, built
    fs::path candidate = (folder / place / name).lexically_normal();
    struct stat status {};
    if (::stat(candidate.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    tried.push_back(candidate.string());
  }
  throw Error(ErrorCode::not_found, "there is no " + name + " at " + join(tried, ", "))
      .with_hint("install all of dtrain's programs together, or set " + std::string(variable_name) +
                 " to its path");
}

}  // namespace

fs::path find_agent() {
  return find("dtrain-agent", "DTRAIN_AGENT");
}

fs::path find_scaler() {
  return find("dtrain-scaler", "DTRAIN_SCALER");
}

fs::path find_profiler() {
  return find("dtrain-profiler", "DTRAIN_PROFILER");
}

}  // namespace dtrain
