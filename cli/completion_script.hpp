#pragma once

#include <string>

namespace CLI {
class App;
}

namespace dtrain::cli {

// The completion script of a shell ("bash", "zsh", "fish"), made from the command line's own
// definition: verbs, options, what an option's value may be. Throws Error(usage) for another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace dtrain::cli
