#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/launch/command.hpp"
#include "trainer/launch/fit.hpp"

// Inside of trainer/launch: the cluster that a program makes itself a job of.
namespace dtrain::train {

// Of a rank; throws Error on what cannot be.
void check(const ScalingConfig& scaling);
void check(const RunConfig& run);
double resource(const ScalingConfig& scaling, const std::string& name);
double gpus_each(const ScalingConfig& scaling);
int max_restarts(const RunConfig& run);

// Of one that ended in that state, for main(); nothing else ends.
int exit_code_of(const std::string& state);

// This program as it was started: the file itself, not the name that it was found by.
std::vector<std::string> this_command();

class Cluster {
 public:
  // The current one. Where there is none, the local one is brought up, and said.
  explicit Cluster(const DtrainCommand& command);

  const nlohmann::json& status() const { return status_; }
  // As DtrainCommand's, of this cluster; the first `verbs` words are the command's verb.
  nlohmann::json ask(std::vector<std::string> words, std::size_t verbs = 1) const;
  // Shows what goes on with `what` until it has ended. When it is left by Ctrl-C this process ends
  // by SIGINT, unless it handles that: then Error, which says how to come back.
  void follow(std::vector<std::string> words, const std::string& what, std::size_t verbs = 1) const;

 private:
  std::vector<std::string> of_it(std::vector<std::string> words, std::size_t verbs) const;

  const DtrainCommand& command_;
  nlohmann::json status_;
};

}  // namespace dtrain::train
