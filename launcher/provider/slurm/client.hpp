#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/remote/transport.hpp"

// Slurm as its users have it: by the command line of a login node (sbatch(1), squeue(1),
// scancel(1)), of which nothing is read that differs from 22.05 to 26.05. No accounting is needed.
namespace dtrain::slurm {

// One of our jobs, as squeue tells it.
struct Job {
  std::string id;
  std::string state;   // as Slurm names it: "PENDING", "RUNNING", "COMPLETING", …
  std::string reason;  // why it waits, as Slurm names it: "Priority"; else "None"
  std::string partition;
  std::string nodes;  // "n[1-2]"; empty: none yet
  std::string comment;
  std::chrono::system_clock::time_point submitted;
  // When it began, or is estimated to; absent: not known.
  std::optional<std::chrono::system_clock::time_point> start;
};
// Those that have a comment which begins with `mark`, as `output` of a squeue with kJobFormat tells
// them. Others' lines are not looked at; throws Error(invalid) that quotes the line.
std::vector<Job> parse_jobs(std::string_view output, std::string_view mark);
inline constexpr const char* kJobFormat = "%i|%T|%r|%P|%V|%S|%N|%k";

// So many words are given to one command: over SSH they are one word of 128 KiB.
inline constexpr std::size_t kBatch = 1000;
void in_batches(std::span<const std::string> words,
                const std::function<void(std::span<const std::string>)>& run);

// Thread-safe as the transport is. Every method throws Error, with what Slurm said: it names the
// command and its last lines.
class Client {
 public:
  // Where the commands are run; `environment`: NAME=VALUE that they have there besides.
  explicit Client(std::shared_ptr<Transport> login_node, std::vector<std::string> environment = {});

  struct Batch {
    std::vector<std::string> options;  // sbatch's: "--nodes=4"
    std::string script;                // of a shell
  };
  // Gives the id of the new job. It is not tried again, and after an error the job may be there all
  // the same: jobs() tells.
  std::string submit(const Batch& batch);
  // Error(failed), with Slurm's word for it, for what cannot run on the nodes that are up; what
  // Slurm leaves open (an account, where there is no accounting) passes. Makes nothing.
  void check(const Batch& batch);

  // Of this user, with this name and such a comment; those too that ended not long ago (MinJobAge).
  std::vector<Job> jobs(const std::string& name, std::string_view mark);
  // Whether one of this user's runs, suspended or not; one that is being ended does not.
  bool runs(const std::string& id) const;
  // Ends them; those that are over, or not known any more, are fine. Throws, once it has tried all,
  // what was said first.
  void cancel(const std::vector<std::string>& ids);

  // What runs `argv` beside that which runs in a job already, on its first node, in the home folder
  // there; stdin and stdout are passed byte for byte as they come.
  std::vector<std::string> in_job(const std::string& id,
                                  const std::vector<std::string>& argv) const;

  const std::shared_ptr<Transport>& login_node() const { return transport_; }

 private:
  std::string run(const std::string& program, const std::vector<std::string>& arguments,
                  std::string_view input, const std::string& what) const;
  std::vector<std::string> command(const std::string& program,
                                   const std::vector<std::string>& arguments) const;

  std::shared_ptr<Transport> transport_;
  std::vector<std::string> environment_;
};

}  // namespace dtrain::slurm
