#include <set>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"

// Jobs with launcher: srun, whose ranks are tasks of one step of Slurm's.
namespace dtrain::head {

void Engine::Impl::check_launcher(const JobSpec& spec) const {
  if (spec.launcher != Launcher::srun || options.provider == "slurm") return;
  for (const auto& [id, node] : nodes) {
    if (counts(node.row.state) && node.slurm) return;
  }
  throw Error(ErrorCode::conflict,
              "launcher: srun starts ranks by Slurm's srun, and no node of this cluster, whose "
              "provider is " +
                  options.provider + ", is in a Slurm allocation")
      .with_hint("leave launcher out, or use a cluster of provider slurm (docs/slurm.md)");
}

// A node that was started anew since it was chosen may be in another. Of one that is not here, and
// has its part already, nothing is known after a new start of the head.
std::string Engine::Impl::not_one_allocation(const Attempt& attempt) const {
  std::set<std::string> allocations;
  std::vector<std::string> where;
  for (const Share& share : attempt.shares) {
    const Node& node = nodes.at(share.row.node);
    if (!node.slurm && (share.start_sent || !share.live())) continue;
    const std::string job = node.slurm ? node.slurm->job : "";
    if (!job.empty() && allocations.insert(job).second) {
      where.push_back(share.row.node.str() + " is in Slurm job " + job);
    } else if (job.empty()) {
      return share.row.node.str() +
             " is in no Slurm allocation, and launcher: srun needs one for all of the job's nodes";
    }
  }
  if (allocations.size() <= 1) return {};
  return "its nodes are not in one Slurm allocation, as launcher: srun needs: " + join(where, ", ");
}

// The start of node rank 0 names all nodes, and they tell their names when they join: after a new
// start of the head.
bool Engine::Impl::awaits_names(const Attempt& attempt) const {
  bool is_to_start = false;
  bool is_unknown = false;
  for (const Share& share : attempt.shares) {
    if (!share.live()) continue;
    const Node& node = nodes.at(share.row.node);
    is_to_start = is_to_start || (share.row.node_rank == 0 && !share.start_sent);
    is_unknown = is_unknown || (!node.slurm && !node.connected);
  }
  return is_to_start && is_unknown;
}

wire::SrunStep Engine::Impl::srun_step(const Attempt& attempt) const {
  wire::SrunStep step;
  step.secret = attempt.row.token;
  for (const Share& share : attempt.shares) {
    const auto& slurm = nodes.at(share.row.node).slurm;
    if (slurm) step.job = slurm->job;
    step.nodes.push_back({slurm ? slurm->node : "", share.row.nproc});
  }
  return step;
}

}  // namespace dtrain::head
