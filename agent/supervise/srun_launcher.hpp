#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/supervise/rank_launcher.hpp"
#include "launcher/core/unique_fd.hpp"

// launcher: srun. The supervisor of node rank 0 starts one srun, with PMIx, for the whole attempt:
// a task for each rank, of the same number (task.hpp). A task stands for its rank in Slurm; it
// hands what Slurm has put into its environment to the supervisor of its node and waits for the
// rank's end. The rank has that environment, and so finds the PMIx server of its node and by it its
// peers, for PMIx asks who a process says it is, not whose child it is.
//
// Why tasks do not start the ranks themselves: Slurm ends a step by SIGKILL, all of it, as soon as
// one process that had called PMIx_Init is gone without a word, and when srun is told to end. Ranks
// that were in the step would die of that on all nodes, without their grace and before their exit
// codes are known.
//
// srun itself is of no use once all tasks are there, which each says by a line that srun brings
// here. Then it is killed, after its own child that would end the step for that: a srun that lives
// ends the step at the SIGTERM that Slurm sends to all processes of an allocation. The step lives
// on, with its PMIx servers, until its tasks have ended.
//
//   begun -> (all tasks of this node are there: ready) -> (of all nodes, on node rank 0: not busy)
namespace dtrain::supervise {

class SrunLauncher final : public RankLauncher {
 public:
  SrunLauncher(boost::asio::io_context& io, const wire::AttemptSpec& spec,
               const paths::AttemptRoot& root, fs::path program, Hooks hooks);
  ~SrunLauncher() override;

  void begin() override;
  bool ready() const override { return ready_; }
  const Environment& environment(int local_rank) const override;
  void rank_ended(int local_rank, const ProcessExit& exit) override;
  bool busy() const override { return !ended_ && (!ready_ || srun_ != 0); }
  void end() override;
  void over() override;
  void on_child() override;
  std::vector<pid_t> children() const override;

  // From srun's start until all its tasks are there.
  static constexpr std::chrono::minutes kStartLimit{5};
  // Where Slurm has ended the step that may be because of a rank elsewhere, whose end is the reason
  // and comes here as a stop.
  static constexpr std::chrono::milliseconds kWordLimit{5000};
  // Where no task can be taken, for want of descriptors.
  static constexpr std::chrono::milliseconds kAcceptAgain{100};

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;
  struct Task;
  struct Stream;  // of srun

  void start_srun();
  void wait_accept();
  void wait_task(const std::shared_ptr<Task>& task);
  void receive(const std::shared_ptr<Task>& task);
  void admit(const std::shared_ptr<Task>& task);
  void gone(const std::shared_ptr<Task>& task);
  void wait_stream(const std::shared_ptr<Stream>& stream);
  void drain(Stream& stream);
  void heard(const Stream& stream, const std::string& line);
  void let_go();
  void fail(const Error& error);
  std::string said() const;

  boost::asio::io_context& io_;
  const wire::AttemptSpec& spec_;
  const paths::AttemptRoot root_;
  const fs::path program_;
  const Hooks hooks_;
  Descriptor listener_;
  std::map<int, std::shared_ptr<Task>> tasks_;  // by local rank
  bool ready_ = false;
  bool ended_ = false;
  bool wait_told_ = false;  // that tasks could not be taken

  pid_t srun_ = 0;  // node rank 0 alone; 0: none, or none any more
  std::vector<std::shared_ptr<Stream>> streams_;
  std::set<int> there_;                  // ranks whose tasks have said so
  std::vector<std::string> complaints_;  // the first lines of srun and its tasks that are some
  std::string last_line_;                // if none is
  boost::asio::steady_timer accept_again_;
  boost::asio::steady_timer limit_;
  boost::asio::steady_timer word_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

// Where the supervisor of a node rank hears its tasks: an abstract unix socket, whose name says
// nothing of the secret, and which serves this user alone. In a lab all nodes may be one machine.
std::string launch_socket(const std::string& secret, int node_rank);

// srun's arguments, and what the file `hosts` holds: the name of each rank's node. Pure, as the
// next. NotStartable for a SLURM_MPI_TYPE in the job's env that is no PMIx.
std::vector<std::string> srun_command(const wire::AttemptSpec& spec, const fs::path& program);
std::string srun_hosts(const wire::SrunStep& step);
// Of `own`, what srun is to have: nothing of the step that this process is in, which would be
// options of the new one.
std::vector<std::string> srun_environment(const std::vector<std::string>& own,
                                          const wire::AttemptSpec& spec, const fs::path& hosts);

}  // namespace dtrain::supervise
