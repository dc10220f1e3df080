#include "launcher/cluster/node_up.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

#include "launcher/cluster/node_work.hpp"
#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

constexpr int kTries = 4;  // of the whole, when the connection breaks
constexpr milliseconds kFirstPause{500};

}  // namespace

void NodeWork::run() {
  milliseconds pause = kFirstPause;
  for (int attempt = 1;; ++attempt) {
    report_.steps.clear();
    report_.warnings.clear();
    try {
      go_through();
      return;
    } catch (const Error& error) {
      const bool broke =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      // A machine that was never reached has had its retries below.
      if (!broke || !connected_ || attempt == kTries || stopped()) throw;
      tell(State::at_work, "connection lost, trying again");
    }
    session_.reset();
    held_.clear();
    transport_.reset();
    wait(pause);
    pause *= 2;
  }
}

void NodeWork::go_through() {
  connect();
  if (!session_) return;  // dry run on a machine that has nothing of ours yet
  check();
  find_cluster();
  if (options_.dry_run && !cluster_) return all_is_to_be_done();
  open();
  check_versions();
  identity();
  environment();
  files();
  synced_files();
  setup();
  ready_probe();
  start();
}

bool NodeWork::stopped() const {
  return options_.access.stop.stop_requested();
}

void NodeWork::wait(milliseconds pause) {
  // Jitter: machines that lost one switch do not all come back at once.
  std::random_device random;
  pause += milliseconds(random() % static_cast<unsigned>(pause.count()));
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait_for(lock, options_.access.stop, pause, [] { return false; });
}

void NodeWork::begin(const std::string& step, const std::string& text) {
  if (stopped()) throw Error(ErrorCode::failed, "stopped before " + step);
  step_ = step;
  began_ = std::chrono::steady_clock::now();
  tell(State::at_work, text);
}

void NodeWork::tell(State state, const std::string& text) {
  NodeProgress progress{task_.machine.node, state, step_, text, milliseconds(0)};
  if (state == State::done) {
    progress.took =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began_);
  }
  options_.progress(progress);
}

void NodeWork::did(const std::string& text) {
  report_.steps.push_back({step_, text});
  if (!options_.dry_run) tell(State::done, text);
}

void NodeWork::warn(const std::string& text) {
  report_.warnings.push_back(text);
}

NodeUp bring_up_node(const ClusterSpec& spec, const UpOptions& options, Provider& provider,
                     const std::shared_ptr<const AgentBinary>& binary, HeadDesk& desk,
                     const NodeTask& task) {
  NodeUp report;
  report.machine = task.machine;
  NodeWork work(spec, options, provider, binary, desk, task, report);
  try {
    work.run();
  } catch (Error& error) {
    // The connection says itself where it was going.
    if (work.step() != "connect" || error.context().empty()) {
      error.while_doing(work.step() + " on " + task.machine.node.str());
    }
    report.error = error;
  } catch (const std::exception& error) {
    report.error = as_defect(error);
  }
  if (report.error) {
    options.progress({task.machine.node, NodeProgress::State::failed, work.step(),
                      report.error->message(), milliseconds(0)});
    if (task.head) desk.fail(*report.error);
  } else if (task.head && !desk.head_if_open()) {
    desk.fail(Error(ErrorCode::not_found, "there is no cluster yet"));
  }
  return report;
}

}  // namespace dtrain
