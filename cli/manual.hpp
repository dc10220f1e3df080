#pragma once

#include <map>
#include <string>

namespace CLI {
class App;
}

namespace dtrain::cli {

// The manual pages of a command line, for man(1): file name ("dtrain-up.1") and roff. One for the
// program and one for each verb that --help shows, from what --help shows and nothing else.
std::map<std::string, std::string> manual_pages(const CLI::App& program);

}  // namespace dtrain::cli
