#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/provider/slurm/allocation.hpp"
#include "launcher/provider/slurm/client.hpp"

// A head in allocations of its own: a chain of Slurm jobs of one node, of which one runs and the
// next waits for its end (--dependency=afterany), so that Slurm itself starts the next head,
// whatever became of the last. Each asks for its successor when it is the head.
namespace dtrain::slurm {

// How their comments begin. Machines::list() does not have them.
constexpr std::string_view kHeadMark = "dtrain-head ";

struct HeadJob {
  Job job;
  ClusterId cluster;
  std::string launch;  // HeadChain::launch_of() what it was asked for with
  Standing standing;

  bool runs() const { return standing.state == MachineState::running; }
  bool waits() const { return standing.state == MachineState::pending; }
};

// Of one cluster's name. One thread at a time.
class HeadChain {
 public:
  HeadChain(Client client, std::string cluster_name);

  // By age; those too that ended not long ago.
  std::vector<HeadJob> list();
  // The one that is the head, else that is to be it next, else that is just ending.
  static std::optional<HeadJob> current(const std::vector<HeadJob>& jobs);

  struct Wanted {
    std::vector<std::string> options;  // sbatch's
    std::string script;
  };
  // `options`: batch_options() of the head's node type. `root`: of the head's node, on storage that
  // all share: what the jobs run is put there, below (start(), and held()).
  Wanted wanted(const ClusterId& cluster, std::vector<std::string> options,
                const fs::path& root) const;
  // Equal for jobs that are asked for alike, by whatever version of dtrain.
  static std::string launch_of(const Wanted& wanted);
  // Gives the new job's id. `after`: the job that it succeeds; empty: there is none.
  std::string ask(const Wanted& wanted, const std::string& after);
  void check(const Wanted& wanted) { client_.check({wanted.options, wanted.script}); }
  void cancel(const std::vector<HeadJob>& jobs);

  // A job waits so long to be prepared; for whoever has ended what ran to start another; and, when
  // that was shut down, for whoever cleans up.
  static constexpr std::chrono::seconds kPrepareLimit{1800};
  static constexpr std::chrono::seconds kHeldLimit{600};
  static constexpr std::chrono::seconds kShutLimit{60};
  // What fails before it is so old is started again in the same job, so often, after such pauses.
  static constexpr std::chrono::seconds kYoung{60};
  static constexpr int kTries = 10;
  static constexpr std::chrono::seconds kPause{30};

 private:
  Client client_;
  std::string cluster_name_;
};

}  // namespace dtrain::slurm
