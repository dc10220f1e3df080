#pragma once

#include <string>
#include <vector>

#include "launcher/core/paths.hpp"
#include "launcher/wire/session.hpp"

// Lists of setup commands. A list runs in a process of its own (`dtrain-agent setup`,
// setup_run.hpp) that outlives the session which started it, holds setup/LIST.lock while it runs,
// and writes setup/LIST.json after each command and its output to setup/LIST.log. All else is
// reading these files: whoever comes later finds how far it is.
namespace dtrain::session {

// One hash a command, of it and all before it.
std::vector<std::string> setup_chain(const std::vector<std::string>& commands);

// Names of lists become names of files: a to z and _, at most 40. Throws Error(invalid).
void check_list_name(const std::string& list);

// How the last run stands now: a run whose process is gone without a word is `lost`. State none
// where it never ran.
wire::SetupStatus setup_status(const paths::NodeRoot& root, const std::string& list);

// What StartSetup would run. Changes nothing.
wire::SetupPlan plan_setup(const paths::NodeRoot& root, const std::string& list,
                           const std::vector<std::string>& commands);

wire::SetupStatus start_setup(const paths::NodeRoot& root, const fs::path& program,
                              const wire::StartSetup& request);

// Waits as asked, but not when `interrupted_fd` becomes readable. `bytes` is the piece of output.
wire::SetupOutput read_setup(const paths::NodeRoot& root, const wire::ReadSetup& request,
                             int interrupted_fd, std::string& bytes);

// Those that run now.
std::vector<std::string> running_lists(const paths::NodeRoot& root);

wire::SetupStatus cancel_setup(const paths::NodeRoot& root, const std::string& list);

// What was done counts no more: the next run begins with the first command. One that runs ends.
void forget_setup(const paths::NodeRoot& root, const std::string& list);

}  // namespace dtrain::session
