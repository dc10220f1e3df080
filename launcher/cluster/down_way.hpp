#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "launcher/cluster/down.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/files.hpp"

// What `down` does with machines of one kind. down.cpp has what is the same for all of them.
namespace dtrain {

class DownWay {
 public:
  virtual ~DownWay() = default;

  // What would be ended or lost.
  virtual void survey(DownSurvey& survey) = 0;

  // Jobs, nodes and head, through the head. Why not; empty when that went well.
  virtual std::string end_in_order() = 0;
  // Ends the rest by force, gives back what is left, and looks for it. True: all is gone, the
  // cluster's folder on this machine too.
  virtual bool clear(const std::string& trouble, DownReport& report) = 0;
};

// The folder is known by its name alone: what is remembered may be damaged.
std::unique_ptr<DownWay> local_down(const std::string& name, const DownOptions& options);
std::unique_ptr<DownWay> hosts_down(const ClusterState& state, const DownOptions& options);

// What the head that listens at `socket` says at `target`; absent when nobody answers.
std::optional<nlohmann::json> ask_head(const fs::path& socket, const std::string& name,
                                       const std::string& target = "/v1/status");
// Asks it which jobs run.
void survey_jobs(const fs::path& socket, const std::string& name, DownSurvey& survey);
// Tells it to end all that it holds. The head's answer. Throws Error.
nlohmann::json shut_down(const fs::path& socket, const std::string& name,
                         std::chrono::milliseconds limit);

// Empties a cluster's folder, the lock aside.
void empty_folder(const fs::path& folder);
// The lock last: who takes it before finds nothing, who takes it later has a folder of his own.
void remove_folder(const fs::path& folder);

}  // namespace dtrain
