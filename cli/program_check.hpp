#pragma once

#include <optional>
#include <string>

#include "launcher/spec/job_spec.hpp"

namespace dtrain::cli {

// Where a job's ranks will find its files.
struct JobPlace {
  bool here = false;  // on this machine, in the job's own workdir; else its files are sent
  // With `here`: PATH of the nodes' login environment; absent: only known once they are up.
  std::optional<std::string> login_path{};
};

// Whether the ranks have a program to start, as far as this machine can tell: what only the nodes
// know is passed over, and so is what the job's setup may make first. Throws Error(not_found) or
// Error(invalid) saying what may have been meant.
void check_program(const JobSpec& spec, const JobPlace& place);

}  // namespace dtrain::cli
