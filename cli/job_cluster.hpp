#pragma once

#include <string>

#include "cli/context.hpp"
#include "cli/signals.hpp"

// A cluster that lives as long as jobs need it: `submit --on`, and the end of `submit --stop`.
namespace dtrain::cli {

class JobCluster {
 public:
  explicit JobCluster(Context& context) : context_(context) {}

  // As `dtrain up` of the YAML, asking what that asks unless `yes`; it becomes the chosen cluster.
  // One that was not up is temporary from now on. Throws Error when it does not come up whole; then
  // what came up of it is given back.
  void start(const std::string& yaml, bool yes);

  // Whether it is given back when no job needs it any more; an `up` meanwhile makes it stay.
  bool is_temporary() const;

  // When nothing was submitted: gives a temporary one back. Throws nothing.
  void give_up() noexcept { take_back(false); }

 private:
  void take_back(bool whatever_is_there) noexcept;

  Context& context_;
  std::string name_;  // empty: none was started
};

// Behind a job that has ended: brings its results here, to `folder` (empty: one named by the job),
// and takes the cluster down, unless jobs run on it, results would be lost, or a signal has come
// that was to end this; `ending` is ended when the results are here. Says what it does; gives the
// exit code.
int give_back(Context& context, const std::string& job, const std::string& folder,
              EndingSignals& ending);

}  // namespace dtrain::cli
