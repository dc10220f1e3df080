#pragma once

#include <functional>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// What stands behind `dtrain tune`: status, stop and so on.
std::vector<Verb> add_tune_verbs(CLI::App& tune);
Verb add_tune_status(CLI::App& tune);
Verb add_tune_list(CLI::App& tune);
Verb add_tune_stop(CLI::App& tune);
Verb add_tune_resume(CLI::App& tune);
Verb add_tune_result(CLI::App& tune);
Verb add_tune_best(CLI::App& tune);
Verb add_tune_plot(CLI::App& tune);
Verb add_tune_rm(CLI::App& tune);

// The one positional argument that most of them have.
void add_search_argument(CLI::App& app, std::string& search);

}  // namespace dtrain::cli
