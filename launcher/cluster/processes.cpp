#include "launcher/cluster/processes.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {

fs::path find_agent() {
  const char* variable = std::getenv("DTRAIN_AGENT");
  if (variable != nullptr && *variable != '\0') {
    fs::path agent = fs::absolute(variable);
    if (::access(agent.c_str(), X_OK) == 0) return agent;
    throw Error(ErrorCode::not_found, "DTRAIN_AGENT names " + agent.string() +
                                          ", which is no program that can be started");
  }
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  const fs::path folder = self.parent_path();
  std::vector<std::string> tried;
  for (const char* place :
       {"../libexec/dtrain/dtrain-agent", "../agent/dtrain-agent"}) {  // installed, built
    fs::path candidate = (folder / place).lexically_normal();
    struct stat status {};
    if (::stat(candidate.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    tried.push_back(candidate.string());
  }
  throw Error(ErrorCode::not_found, "there is no dtrain-agent at " + join(tried, ", "))
      .with_hint("install both programs together, or set DTRAIN_AGENT to its path");
}

}  // namespace dtrain
