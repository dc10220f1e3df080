#include <unistd.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <string>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/framed.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/heads_instances.hpp"
#include "launcher/provider/scaler_messages.hpp"

// dtrain-scaler: asks a cloud for machines in the head's place, which starts it, tells it what to
// do (launcher/provider/scaler_messages.hpp), and decides everything. It ends with its stdin.
namespace {

using namespace dtrain;

BootScript boot_of(const std::map<std::string, std::string>& scripts) {
  return [scripts](const NodeId& node) {
    const auto found = scripts.find(node.str());
    if (found != scripts.end()) return found->second;
    throw Error(ErrorCode::invalid, node.str() + " has no script to start with");
  };
}

Request request_of(const ScalerRequest& asked) {
  Request request;
  request.type = asked.type;
  request.cluster = asked.cluster;
  request.launch = asked.launch;
  request.nodes = asked.nodes;
  request.boot = boot_of(asked.scripts);
  return request;
}

// With nothing to do for so long it ends, and the head starts another when there is something.
constexpr std::chrono::hours kPatience{24};

FramedStream head(STDIN_FILENO, STDOUT_FILENO);

void say(const ScalerOutcome& outcome) {
  head.send(FrameKind::text, to_text(outcome));
}

void tell(const MachineOutcome& outcome) {
  say({outcome.machine, outcome.error});
}

void work(aws::HeadsInstances& site, const ScalerTask& task) {
  switch (task.kind) {
    case ScalerTask::Kind::list:
      for (const Machine& machine : site.list()) say({machine, {}});
      return;
    case ScalerTask::Kind::create: {
      std::vector<Request> requests;
      for (const ScalerRequest& each : task.requests) requests.push_back(request_of(each));
      return site.create(requests, tell);
    }
    case ScalerTask::Kind::release:
      return site.release(task.machines, tell);
    case ScalerTask::Kind::stop:
      return site.stop(task.machines, tell);
    case ScalerTask::Kind::start:
      return site.start(task.machines, boot_of(task.scripts), tell);
  }
}

// What it is given is its business; that it cannot be done is for the head to tell.
template <typename Work>
bool did(Work do_it) {
  try {
    do_it();
    return true;
  } catch (const std::exception& thrown) {
    say({{}, as_defect(thrown)});
    return false;
  }
}

void serve() {
  std::optional<FileLock> alone;
  std::optional<aws::HeadsInstances> site;
  const auto first = head.read();
  if (!first) return;
  const bool begun = did([&] {
    const ScalerBegin begin = scaler_begin_from(first->bytes);
    if (begin.wanted.provider != "aws") {
      throw Error(ErrorCode::invalid, "this dtrain-scaler cannot ask " +
                                          printable(begin.wanted.provider, false) +
                                          " for machines");
    }
    make_folders(begin.notes);
    alone.emplace(FileLock::wait(begin.notes / "lock"));  // one of a head before ends soon
    site.emplace(begin.cluster_name, begin.notes, begin.wanted);
  });
  while (begun) {
    const auto task = head.read(kPatience);
    if (!task) return;
    if (did([&] { work(*site, scaler_task_from(task->bytes)); })) say({});
  }
}

}  // namespace

int main() {
  try {
    serve();
    return 0;
  } catch (const std::exception& error) {  // nobody hears it any more
    std::cerr << error.what() << "\n";
    return 1;
  }
}
