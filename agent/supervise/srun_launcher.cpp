#include "agent/supervise/srun_launcher.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <boost/asio/post.hpp>

#include "agent/supervise/attempt_processes.hpp"
#include "agent/supervise/task.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::size_t kEnvironmentLimit = std::size_t{4} << 20;  // bytes
constexpr std::size_t kHeadLimit = 32;                           // of a task's first line
constexpr std::size_t kLineLimit = 4096;
constexpr std::size_t kComplaints = 4;
constexpr const char* kMpiType = "SLURM_MPI_TYPE";

// Reads what is there; false at the end.
bool read_on(int fd, std::string& into) {
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      into.append(buffer.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

}  // namespace

struct SrunLauncher::Task {
  Task(boost::asio::io_context& io, int fd) : socket(io, fd) {}

  Descriptor socket;
  std::string in;
  std::optional<int> local;  // of its rank, once it has said
  Environment environment;
  bool told = false;  // how its rank has ended
};

struct SrunLauncher::Stream {
  Stream(boost::asio::io_context& io, int fd, bool errors) : pipe(io, fd), is_stderr(errors) {}

  Descriptor pipe;
  bool is_stderr;
  std::string in;
};

std::string launch_socket(const std::string& secret, int node_rank) {
  Sha256 sum;
  sum.add(secret + "." + std::to_string(node_rank));
  return "dtrain-" + sum.hex();
}

std::vector<std::string> srun_command(const wire::AttemptSpec& spec, const fs::path& program) {
  const auto type = spec.env.find(kMpiType);
  const std::string mpi = type == spec.env.end() ? "pmix" : type->second;
  if (!mpi.starts_with("pmix")) {
    throw NotStartable(ErrorCode::invalid, std::string(kMpiType) + " is " + printable(mpi, false) +
                                               ": launcher: srun knows pmix and its versions");
  }
  return {"srun", "--quiet", "--jobid=" + spec.srun->job, "--job-name=" + spec.job.str(),
          // Beside the agents' own step, whose CPUs, GPUs and memory the ranks have.
          "--overlap", "--overcommit", "--cpu-bind=none", "--mem=0", "--gres=none",
          // Task R is where rank R is.
          "--distribution=arbitrary", "--ntasks=" + std::to_string(spec.world_size), "--mpi=" + mpi,
          // Until all are there one that fails is the failure of all.
          "--kill-on-bad-exit=1", "--wait=0", "--no-kill", std::string("--export=") + kLaunch,
          "--chdir=/", "--input=none", program.string(), "task"};
}

std::string srun_hosts(const wire::SrunStep& step) {
  std::string text;
  for (const wire::SrunStep::Node& node : step.nodes) {
    for (int i = 0; i < node.nproc; ++i) text += node.name + "\n";
  }
  return text;
}

std::vector<std::string> srun_environment(const std::vector<std::string>& own,
                                          const wire::AttemptSpec& spec, const fs::path& hosts) {
  std::vector<std::string> env;
  for (const std::string& entry : own) {
    const bool is_of_step = is_of_launcher(entry) || entry.starts_with("DTRAIN_");
    const bool is_slurms_place =
        entry.starts_with("SLURM_CONF=") || entry.starts_with("SLURM_JWT=");
    if (!is_of_step || is_slurms_place) env.push_back(entry);
  }
  std::string launch = std::string(kLaunch) + "=" + spec.srun->secret;
  int first = 0;
  for (const wire::SrunStep::Node& node : spec.srun->nodes) {
    launch += " " + std::to_string(std::exchange(first, first + node.nproc));
  }
  env.push_back(std::move(launch));
  env.push_back("SLURM_HOSTFILE=" + hosts.string());
  return env;
}

SrunLauncher::SrunLauncher(boost::asio::io_context& io, const wire::AttemptSpec& spec,
                           const paths::AttemptRoot& root, fs::path program, Hooks hooks)
    : io_(io),
      spec_(spec),
      root_(root),
      program_(std::move(program)),
      hooks_(std::move(hooks)),
      listener_(io),
      accept_again_(io),
      limit_(io),
      word_(io) {}

SrunLauncher::~SrunLauncher() {
  end();
}

void SrunLauncher::begin() {
  listener_.assign(listen_abstract(launch_socket(spec_.srun->secret, spec_.node_rank)).release());
  wait_accept();
  if (spec_.node_rank == 0) start_srun();
}

void SrunLauncher::start_srun() {
  write_file_atomic(root_.hosts(), srun_hosts(*spec_.srun));
  auto [out, out_writer] = make_pipe();
  auto [err, err_writer] = make_pipe();
  SpawnOptions options;
  options.argv = srun_command(spec_, program_);
  options.env = srun_environment(current_environment(), spec_, root_.hosts());
  options.workdir = "/";
  options.stdout_fd = out_writer.get();
  options.stderr_fd = err_writer.get();
  options.new_session = true;
  options.death_signal = SIGKILL;
  srun_ = spawn(options);
  log::info("srun started", {{"pid", std::to_string(srun_)}, {"Slurm job", spec_.srun->job}});
  for (UniqueFd* fd : {&out, &err}) {
    ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    streams_.push_back(std::make_shared<Stream>(io_, fd->release(), fd == &err));
    wait_stream(streams_.back());
  }
  limit_.expires_after(kStartLimit);
  limit_.async_wait([this](boost::system::error_code failed) {
    if (failed) return;
    fail(Error(ErrorCode::timeout,
               "srun has not started all ranks within " + human_duration(kStartLimit) + said()));
  });
}

// ---- Tasks.

void SrunLauncher::wait_accept() {
  listener_.async_wait(Descriptor::wait_read, [this](boost::system::error_code failed) {
    if (failed || !listener_.is_open()) return;
    try {
      if (auto fd = accept_own(listener_.native_handle())) {
        wait_task(std::make_shared<Task>(io_, fd->release()));
      }
      wait_accept();
    } catch (const Error& error) {  // no descriptor is left, or no memory: a task can wait
      if (!std::exchange(wait_told_, true)) {
        log::warn("tasks of srun wait", {{"why", error.what()}});
      }
      accept_again_.expires_after(kAcceptAgain);
      accept_again_.async_wait([this](boost::system::error_code ended) {
        if (!ended && listener_.is_open()) wait_accept();
      });
    }
  });
}

void SrunLauncher::wait_task(const std::shared_ptr<Task>& task) {
  task->socket.async_wait(Descriptor::wait_read,
                          [this, task, alive = std::weak_ptr(alive_)](auto failed) {
                            if (failed || alive.expired()) return;
                            receive(task);
                          });
}

void SrunLauncher::receive(const std::shared_ptr<Task>& task) {
  const bool open = read_on(task->socket.native_handle(), task->in);
  if (!task->local) {
    admit(task);
  } else {
    task->in.clear();  // it has nothing more to say
  }
  if (open && task->socket.is_open()) return wait_task(task);
  gone(task);
}

void SrunLauncher::admit(const std::shared_ptr<Task>& task) {
  const std::size_t end = task->in.find('\n');
  const std::vector<std::string> words = split(task->in.substr(0, end), ' ');
  const auto refuse = [&](const char* why) {
    log::warn("a task of srun is refused", {{"why", why}});
    task->socket.close();
  };
  if (end == std::string::npos) {
    if (task->in.size() > kHeadLimit) refuse("its first line is too long");
    return;
  }
  const auto rank = number_from<int>(words.front());
  const auto size = number_from<std::size_t>(words.back());
  if (words.size() != 2 || !rank || !size || *size > kEnvironmentLimit) {
    return refuse("its first line is none of ours");
  }
  if (task->in.size() - end - 1 < *size) return;
  const int local = *rank - spec_.first_rank;
  if (local < 0 || local >= spec_.nproc || tasks_.contains(local)) {
    return refuse("its rank is not of this node, or has one");
  }
  task->local = local;
  task->environment = parse_environment(std::string_view(task->in).substr(end + 1, *size));
  task->in.clear();
  tasks_[local] = task;
  if (tasks_.size() < static_cast<std::size_t>(spec_.nproc)) return;
  ready_ = true;
  listener_.close();
  log::info("all tasks of srun are here");
  boost::asio::post(io_, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired() && !ended_) hooks_.ready();
  });
}

void SrunLauncher::gone(const std::shared_ptr<Task>& task) {
  if (task->socket.is_open()) task->socket.close();
  if (!task->local || task->told || ended_) return;
  log::warn("a task of srun is gone", {{"rank", std::to_string(spec_.first_rank + *task->local)}});
  word_.expires_after(kWordLimit);
  word_.async_wait([this](boost::system::error_code failed) {
    if (failed || ended_) return;
    const bool any = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& each) {
      return !each.second->told && !each.second->socket.is_open();
    });
    if (!any) return;
    const std::string what = "Slurm has ended the step that stood for its ranks" + said();
    if (ready_) {
      hooks_.lost(what);
    } else {
      hooks_.failed(Error(ErrorCode::failed, what));
    }
  });
}

const Environment& SrunLauncher::environment(int local_rank) const {
  return tasks_.at(local_rank)->environment;
}

void SrunLauncher::rank_ended(int local_rank, const ProcessExit& exit) {
  const auto found = tasks_.find(local_rank);
  if (found == tasks_.end()) return;
  Task& task = *found->second;
  task.told = true;
  if (!task.socket.is_open()) return;
  const std::string line = std::to_string(exit.shell_code()) + "\n";
  [[maybe_unused]] const ssize_t n =
      ::send(task.socket.native_handle(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// ---- srun.

void SrunLauncher::wait_stream(const std::shared_ptr<Stream>& stream) {
  stream->pipe.async_wait(Descriptor::wait_read,
                          [this, stream, alive = std::weak_ptr(alive_)](auto failed) {
                            if (failed || alive.expired()) return;
                            drain(*stream);
                            if (stream->pipe.is_open()) wait_stream(stream);
                          });
}

void SrunLauncher::drain(Stream& stream) {
  if (!stream.pipe.is_open()) return;
  if (!read_on(stream.pipe.native_handle(), stream.in)) stream.pipe.close();
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = stream.in.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    heard(stream, stream.in.substr(begin, end - begin));
  }
  stream.in.erase(0, begin);
  if (stream.in.size() > kLineLimit) stream.in.clear();
}

void SrunLauncher::heard(const Stream& stream, const std::string& line) {
  if (stream.is_stderr) {
    log::warn("srun says", {{"line", printable(line, false)}});
    const bool is_one = line.find("error:") != std::string::npos;
    if (is_one && complaints_.size() < kComplaints) complaints_.push_back(printable(line, false));
    last_line_ = printable(line, false);
    return;
  }
  if (const auto rank = number_from<int>(line)) there_.insert(*rank);
  if (static_cast<int>(there_.size()) == spec_.world_size) let_go();
}

void SrunLauncher::let_go() {
  limit_.cancel();
  if (srun_ == 0) return;
  log::info("all ranks have their tasks; srun is let go");
  kill_now(descendants(srun_));  // first who would end the step when it is gone
  ::kill(std::exchange(srun_, 0), SIGKILL);
}

void SrunLauncher::on_child() {
  if (srun_ == 0) return;
  const auto exit = try_wait(srun_);
  if (!exit) return;
  srun_ = 0;
  limit_.cancel();
  for (const auto& stream : streams_) drain(*stream);
  if (ended_ || static_cast<int>(there_.size()) == spec_.world_size) return;
  const std::string what = "srun could not start the ranks: " + exit->str() + said();
  const bool no_pmix =
      std::any_of(complaints_.begin(), complaints_.end(), [](const std::string& line) {
        return line.find("mpi plugin") != std::string::npos ||
               line.find("MPI type") != std::string::npos;
      });
  if (!no_pmix) return fail(Error(ErrorCode::failed, what));
  fail(NotStartable(ErrorCode::failed,
                    what + " (srun --mpi=list says what Slurm has here; a program that needs no "
                           "PMIx runs without launcher: srun)"));
}

void SrunLauncher::fail(const Error& error) {
  const auto tell = [this, alive = std::weak_ptr(alive_)](const Error& what) {
    if (!alive.expired() && !ended_) hooks_.failed(what);
  };
  // As what it is.
  if (const auto* lasting = dynamic_cast<const NotStartable*>(&error)) {
    boost::asio::post(io_, [tell, what = *lasting] { tell(what); });
  } else {
    boost::asio::post(io_, [tell, what = error] { tell(what); });
  }
}

void SrunLauncher::end() {
  if (std::exchange(ended_, true)) return;
  accept_again_.cancel();
  limit_.cancel();
  word_.cancel();
  if (listener_.is_open()) listener_.close();
  // The child that it leaves ends the step, if that has begun.
  if (srun_ != 0) ::kill(srun_, SIGKILL);
  if (!ready_) over();
}

void SrunLauncher::over() {
  for (const auto& [local, task] : tasks_) {
    if (task->socket.is_open()) task->socket.close();
  }
}

std::vector<pid_t> SrunLauncher::children() const {
  return srun_ == 0 ? std::vector<pid_t>{} : std::vector<pid_t>{srun_};
}

std::string SrunLauncher::said() const {
  const std::string words = complaints_.empty() ? last_line_ : join(complaints_, "; ");
  return words.empty() ? "" : ": " + words;
}

}  // namespace dtrain::supervise
