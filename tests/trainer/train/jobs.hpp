#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/train/context.hpp"

// Tests of several ranks: the test program starts itself once for each rank, as a launcher would.
namespace dtrain::train::test {

// In a rank: runs the named job and returns the process's exit code.
int run_job(const std::string& name, const std::filesystem::path& folder);

using Job = std::function<int(Context&, const std::filesystem::path&)>;
const std::map<std::string, Job>& ddp_jobs();     // ddp_jobs.cpp
const std::map<std::string, Job>& shared_jobs();  // shared_jobs.cpp
const std::map<std::string, Job>& zero_jobs();    // zero_jobs.cpp
const std::map<std::string, Job>& parity_jobs();  // parity_jobs.cpp

// Its part for checkpoints: checkpoint_jobs.cpp.
int run_checkpoint_job(const std::string& name, Context& context,
                       const std::filesystem::path& folder);

struct Exit {
  int code = 0;  // 128 + n for signal n
  std::string error_file;
};

// In the test: starts `ranks` processes with torchrun's variables and a held master port, waits for
// all of them, and returns how each ended. What they print goes to FOLDER/rank-R.log.
std::vector<Exit> launch(const std::string& job, int ranks, const std::filesystem::path& folder,
                         const std::map<std::string, std::string>& env = {});

}  // namespace dtrain::train::test
