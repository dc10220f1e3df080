#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/supervise/environment.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/wire/attempt.hpp"

// Who has a part in the start of a node's ranks besides their supervisor. It is always the
// supervisor that forks them, owns their pipes, port and sockets, and reaps them: a launcher says
// when it may, and what they find in their environment. So outputs, exits, stops and what happens
// at a death are the same by whichever launcher.
namespace dtrain::supervise {

class RankLauncher {
 public:
  // Called from the io_context, never from within a call of the launcher's.
  struct Hooks {
    std::function<void()> ready;
    // Ranks, of this node or of others, cannot be started. NotStartable: it would fail again.
    std::function<void(const Error&)> failed;
    // Since they were started: what it has given them is there no more. "Slurm has ended its step".
    std::function<void(const std::string&)> lost;
  };

  virtual ~RankLauncher() = default;

  // Once, before the job's setup, so that what can never work is said before that has taken its
  // time. Throws Error.
  virtual void begin() = 0;
  // The ranks may be started; `ready` is called when that comes true later.
  virtual bool ready() const = 0;
  // For a rank, when ready: RankPlace's of_launcher.
  virtual const Environment& environment(int local_rank) const = 0;
  virtual void rank_ended(int local_rank, const ProcessExit& exit) = 0;
  // It is in the middle of starting ranks, here or on other nodes: the attempt goes on here even if
  // none runs.
  virtual bool busy() const = 0;
  // All processes of the attempt here are being ended. Nothing is heard of it from now on.
  virtual void end() = 0;
  // None is left.
  virtual void over() = 0;

  // SIGCHLD: it reaps what is its own.
  virtual void on_child() = 0;
  // Which nobody else reaps. As long as it is busy they, and what is below them, are not the
  // attempt's to be ended.
  virtual std::vector<pid_t> children() const = 0;
};

// As the spec says. `program` is dtrain-agent, at the same place on all nodes of the attempt.
std::unique_ptr<RankLauncher> make_launcher(boost::asio::io_context& io,
                                            const wire::AttemptSpec& spec,
                                            const paths::AttemptRoot& root, const fs::path& program,
                                            RankLauncher::Hooks hooks);

}  // namespace dtrain::supervise
