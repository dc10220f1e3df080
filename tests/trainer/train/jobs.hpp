#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/trainer/train/small_model.hpp"
#include "trainer/train/context.hpp"

// Tests of several ranks: the test program starts itself once for each rank, as a launcher would.
namespace dtrain::train::test {

// In a rank: runs the named job and returns the process's exit code.
int run_job(const std::string& name, const std::filesystem::path& folder);

// In a rank: its share of a batch that the parent knows too.
Examples share_of(const Context& context, const Examples& all);

using Job = std::function<int(Context&, const std::filesystem::path&)>;
const std::map<std::string, Job>& ddp_jobs();     // ddp_jobs.cpp
const std::map<std::string, Job>& shared_jobs();  // shared_jobs.cpp
const std::map<std::string, Job>& zero_jobs();    // zero_jobs.cpp
const std::map<std::string, Job>& parity_jobs();  // parity_jobs.cpp

// Its part for checkpoints: checkpoint_jobs.cpp.
int run_checkpoint_job(const std::string& name, Context& context,
                       const std::filesystem::path& folder);

// How many GPUs this machine has.
int gpus();
// For a rank's environment: it has a GPU, if need be one with others. All other ranks see none.
extern const std::map<std::string, std::string> kOnGpu;

struct Exit {
  int code = 0;  // 128 + n for signal n
  std::string error_file;
};

// In the test: starts `ranks` processes with torchrun's variables and a held master port, waits for
// all of them, and returns how each ended. What they print goes to FOLDER/rank-R.log.
std::vector<Exit> launch(const std::string& job, int ranks, const std::filesystem::path& folder,
                         const std::map<std::string, std::string>& env = {});
// The same, and checks that each has ended well; its log is told where one has not.
void holds(const std::string& job, int ranks, const std::filesystem::path& folder,
           const std::map<std::string, std::string>& env);
// Over each of these transports, in folders of their own.
void holds(const std::string& job, int ranks,
           const std::vector<std::string>& transports = {"shared_memory", "gloo"});

}  // namespace dtrain::train::test
