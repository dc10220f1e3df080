#include "launcher/provider/slurm/job_transport.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::slurm {
namespace {

constexpr std::chrono::milliseconds kPutLimit{60000};

// What srun says of the program's own end; absent of it, the program was not what failed.
constexpr std::string_view kProgramEnded = ": task 0: ";
constexpr std::string_view kStepEnded = " CANCELLED AT ";

// Where in a line Slurm's own words begin, which may follow on the program's last: it need not have
// ended that. Later versions put a time where others have slurmstepd's name.
std::size_t begin_of_slurm(const std::string& line) {
  const bool ends_step =
      line.find("error: *** ") != std::string::npos && line.find(kStepEnded) != std::string::npos;
  if (ends_step || line.starts_with("srun: ") || line.starts_with("slurmstepd")) return 0;
  return std::min(line.find("srun: error: "), line.find("slurmstepd: error: "));
}

// Of what stands on stderr.
struct StepSaid {
  std::string program;
  std::string slurm;
};
StepSaid said_by_each(const std::string& text) {
  StepSaid said;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty()) continue;
    const std::size_t begin = std::min(begin_of_slurm(line), line.size());
    if (begin > 0) said.program += line.substr(0, begin) + "\n";
    if (begin == line.size()) continue;
    said.slurm += (said.slurm.empty() ? "" : "; ") + printable(line.substr(begin), false);
  }
  return said;
}

// A step that did not come to run, or was ended with its job. Slurm does not always say the latter:
// its word for it and the end of the program may overtake each other.
std::optional<Error> lost(const Client& client, const std::string& job, int code,
                          const std::string& errors) {
  if (code == 0) return std::nullopt;
  const std::string slurm = said_by_each(errors).slurm;
  const bool by_itself =
      slurm.find(kProgramEnded) != std::string::npos && slurm.find(kStepEnded) == std::string::npos;
  if (!by_itself) {
    return Error(ErrorCode::unreachable, slurm.empty() ? "srun said nothing" : slurm);
  }
  const bool by_signal = code > 128;
  if (by_signal && !client.runs(job)) {
    return Error(ErrorCode::unreachable, "Slurm's job " + job + " has ended");
  }
  return std::nullopt;
}

class JobChannel final : public Channel {
 public:
  JobChannel(const Client& client, std::string job, std::unique_ptr<Channel> srun)
      : client_(client), job_(std::move(job)), srun_(std::move(srun)) {}

  int fd() const override { return srun_->fd(); }
  std::string errors() override { return said_by_each(srun_->errors()).program; }
  std::optional<int> wait(std::chrono::milliseconds limit) override {
    const std::optional<int> code = srun_->wait(limit);
    if (!code) return code;
    if (const auto error = lost(client_, job_, *code, srun_->errors())) throw Error(*error);
    return code;
  }

 private:
  const Client client_;
  const std::string job_;
  std::unique_ptr<Channel> srun_;
};

}  // namespace

JobTransport::JobTransport(Client client, std::function<std::string()> job)
    : client_(std::move(client)), job_(std::move(job)) {}

JobTransport::~JobTransport() {
  if (!server_) return;
  const fs::path folder = server_->path().parent_path();
  server_.reset();
  std::error_code none;
  fs::remove(folder, none);
}

Captured JobTransport::run(const std::vector<std::string>& argv, std::string_view input,
                           std::chrono::milliseconds deadline) {
  const std::string job = job_();
  Captured captured = client_.login_node()->run(client_.in_job(job, argv), input, deadline);
  if (const auto error = lost(client_, job, captured.exit.shell_code(), captured.err)) {
    throw Error(*error);
  }
  captured.err = said_by_each(captured.err).program;
  return captured;
}

std::unique_ptr<Channel> JobTransport::open(const std::vector<std::string>& argv) {
  std::string job = job_();
  std::unique_ptr<Channel> srun = client_.login_node()->open(client_.in_job(job, argv));
  return std::make_unique<JobChannel>(client_, std::move(job), std::move(srun));
}

void JobTransport::put(std::string_view content, const fs::path& path, mode_t mode) {
  put_by_shell(*this, content, path, mode, kPutLimit);
}

void JobTransport::start_detached(const std::vector<std::string>& argv) {
  throw Error(ErrorCode::internal, argv[0] + " would end with its step of Slurm's");
}

fs::path JobTransport::head_socket(const HeadPlace& head) {
  const std::lock_guard guard(mutex_);
  if (!server_) {
    job_();  // why there is none is said here, and to who connects by hanging up
    const fs::path folder =
        paths::socket_folder("/slurm/" + head.root.native() + "/" + random_hex(6));
    server_.emplace(folder / "head.sock", [this, bridge = head.bridge] { return open(bridge); });
  }
  return server_->path();
}

}  // namespace dtrain::slurm
