#include "cli/job_cluster.hpp"

#include "cli/bring_up.hpp"
#include "cli/pull.hpp"
#include "cli/up_words.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"

namespace dtrain::cli {

void JobCluster::start(const std::string& yaml, bool yes) {
  const ClusterSpec spec = choose_by_yaml(context_, yaml, true);
  const std::string& name = spec.cluster_name;
  const bool is_new = !load_cluster(name);
  if (!is_new && !dtrain::is_temporary(name)) {
    context_.note("cluster " + name + " is up already, and stays up");
  }
  UpOptions options;
  options.access = context_.access(!yes);
  if (yes) options.may_make = [](const ClusterPlan&) { return true; };
  try {
    const UpReport report = bring_up(context_, spec, std::move(options));
    if (report.action == UpAction::decline) {
      throw Error(ErrorCode::conflict, "nothing was made, and nothing submitted");
    }
    if (!report.complete) {
      tell_nodes(context_, report);
      if (report.with_head) throw Error(*report.with_head);
      throw Error(ErrorCode::failed, "cluster " + name + " did not come up");
    }
  } catch (const Error&) {
    if (is_new && load_cluster(name)) {
      set_temporary(name, true);
      name_ = name;
      take_back(true);
    }
    throw;
  }
  if (is_new) set_temporary(name, true);
  name_ = name;
}

bool JobCluster::is_temporary() const {
  return !name_.empty() && dtrain::is_temporary(name_);
}

void JobCluster::take_back(bool whatever_is_there) noexcept {
  try {
    if (is_temporary()) take_down(context_, whatever_is_there);
  } catch (const std::exception& error) {
    context_.warn(error.what() + std::string("; cluster ") + name_ +
                  " is not given back: dtrain down -c " + name_);
  }
}

int give_back(Context& context, const std::string& job, const std::string& folder,
              EndingSignals& ending) {
  const std::string stays =
      "; cluster " + context.cluster() + " stays up until dtrain down -c " + context.cluster();
  int signal = 0;
  const auto code = [&] { return signal != 0 ? 128 + signal : 1; };
  try {
    const PulledJob pulled = pull_job(context, job, folder, ending.token());
    signal = ending.end();
    if (context.globals.json) context.print_json(pulled.json);
    context.note(pulled.line);
    if (!pulled.complete) {
      context.warn("not all results of " + job + " are here" + stays);
      return code();
    }
    if (signal != 0) {
      context.warn("stopped" + stays);
      return code();
    }
  } catch (const Error& error) {
    if (signal == 0) signal = ending.end();
    context.warn(error.what());
    context.warn("the results of " + job + " are not here" + stays);
    return code();
  }
  return take_down(context, false);
}

}  // namespace dtrain::cli
