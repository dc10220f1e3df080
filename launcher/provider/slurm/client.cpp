#include "launcher/provider/slurm/client.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::slurm {
namespace {

using namespace std::chrono_literals;

// A busy slurmctld answers late; its own MessageTimeout is 10 s, and its clients try again.
constexpr std::chrono::milliseconds kPatience = 60s;
constexpr std::size_t kFields = 8;
constexpr std::int64_t kLastSecond = 9'000'000'000;  // in the year 2255: a clock counts nanoseconds
constexpr std::size_t kShown = 4;                    // lines of what Slurm says

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Seconds since 1970, "N/A", "NONE" or "Unknown".
std::optional<std::chrono::system_clock::time_point> time_of(std::string_view text) {
  std::int64_t seconds = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_time = failed == std::errc() && end == text.data() + text.size();
  if (!is_time || seconds <= 0 || seconds > kLastSecond) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
}

// Its last lines, as one.
std::string said(const Captured& result) {
  std::vector<std::string> lines;
  for (const std::string& line : split(result.err.empty() ? result.out : result.err, '\n')) {
    if (!line.empty()) lines.push_back(printable(line, false));
  }
  if (lines.size() > kShown) lines.erase(lines.begin(), lines.end() - kShown);
  return lines.empty() ? "it says nothing" : join(lines, "; ");
}

}  // namespace

std::vector<Job> parse_jobs(std::string_view output, std::string_view mark) {
  std::vector<Job> jobs;
  for (const std::string& line : split(output, '\n')) {
    if (line.find("|" + std::string(mark)) == std::string::npos) continue;
    std::vector<std::string> fields;
    std::size_t begin = 0;
    // The last may have any character in it.
    while (fields.size() + 1 < kFields) {
      const std::size_t end = line.find('|', begin);
      if (end == std::string::npos) break;
      fields.push_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    fields.push_back(line.substr(begin));
    if (fields.size() == kFields && !fields.back().starts_with(mark)) continue;
    const auto submitted = fields.size() == kFields ? time_of(fields[4]) : std::nullopt;
    if (!submitted || !is_number(fields[0]) || fields[1].empty()) {
      throw Error(ErrorCode::invalid,
                  "squeue says what nobody understands: " + printable(line.substr(0, 200), false));
    }
    jobs.push_back({fields[0], fields[1], fields[2], fields[3], fields[6], fields[7], *submitted,
                    time_of(fields[5])});
  }
  return jobs;
}

void in_batches(std::span<const std::string> words,
                const std::function<void(std::span<const std::string>)>& run) {
  for (; !words.empty(); words = words.subspan(std::min(kBatch, words.size()))) {
    run(words.first(std::min(kBatch, words.size())));
  }
}

Client::Client(std::shared_ptr<Transport> login_node, std::vector<std::string> environment)
    : transport_(std::move(login_node)), environment_(std::move(environment)) {}

// What an environment says of filters and formats, of an allocation that `up` was typed in, and of
// the head that asks, is not for us; accounts and the like are.
std::vector<std::string> Client::command(const std::string& program,
                                         const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = {"env"};
  argv.insert(argv.end(), environment_.begin(), environment_.end());
  argv.insert(argv.end(),
              {"/bin/sh", "-c",
               "for v in $(env | sed -n 's/^\\([A-Z0-9_]*\\)=.*/\\1/p'); do case $v in "
               "SLURM_CONF | SLURM_JWT) ;; "
               "DTRAIN_* | SLURM_* | SQUEUE_* | SCANCEL_* | SBATCH_ARRAY_INX | SBATCH_CLUSTERS | "
               "SBATCH_ERROR | "
               "SBATCH_EXPORT | SBATCH_OUTPUT | SBATCH_WAIT) unset $v ;; esac; done; exec \"$@\"",
               "sh"});
  if (program == "squeue") argv.insert(argv.end(), {"env", "SLURM_TIME_FORMAT=%s"});
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

// By default a step's output would be held back until a line is whole.
std::vector<std::string> Client::in_job(const std::string& id,
                                        const std::vector<std::string>& argv) const {
  std::vector<std::string> arguments = {"--jobid=" + id, "--overlap",       "--nodes=1",
                                        "--ntasks=1",    "--unbuffered",    "--quiet",
                                        "--export=ALL",  "--cpu-bind=none", "--chdir=/"};
  arguments.insert(arguments.end(), {"/bin/sh", "-c", "cd && exec \"$@\"", "sh"});
  arguments.insert(arguments.end(), argv.begin(), argv.end());
  return command("srun", arguments);
}

std::string Client::run(const std::string& program, const std::vector<std::string>& arguments,
                        std::string_view input, const std::string& what) const {
  const Captured result = transport_->run(command(program, arguments), input, kPatience);
  if (result.exit.ok()) return result.out;
  if (result.exit.code == 127) {
    throw Error(ErrorCode::not_found, "there is no " + program + " here, while " + what)
        .with_hint("provider.login_node names a machine that has Slurm's commands");
  }
  throw Error(ErrorCode::failed, program + ": " + said(result) + ", while " + what);
}

std::string Client::submit(const Batch& batch) {
  std::vector<std::string> arguments = {"--parsable"};
  arguments.insert(arguments.end(), batch.options.begin(), batch.options.end());
  const std::string out = run("sbatch", arguments, batch.script, "asking Slurm for nodes");
  // "1234" or, with several clusters, "1234;cluster".
  std::string id = out.substr(0, out.find_first_of(";\n"));
  if (!is_number(id)) {
    throw Error(ErrorCode::failed, "sbatch gives no job id but: " + printable(out, false));
  }
  return id;
}

void Client::check(const Batch& batch) {
  std::vector<std::string> arguments = {"--test-only"};
  arguments.insert(arguments.end(), batch.options.begin(), batch.options.end());
  try {
    run("sbatch", arguments, batch.script, "asking Slurm whether it can run this");
  } catch (Error& error) {
    if (error.code() != ErrorCode::failed) throw;
    throw Error(error).with_hint(
        "nodes that are down or drained count as none: sinfo shows them, and sbatch --test-only " +
        shell_join(batch.options) + " says the same");
  }
}

std::vector<Job> Client::jobs(const std::string& name, std::string_view mark) {
  return parse_jobs(
      run("squeue",
          {"--me", "--all", "--noheader", "--states=all", "--name=" + name, "--format", kJobFormat},
          {}, "asking Slurm for its queue"),
      mark);
}

bool Client::runs(const std::string& id) const {
  const std::string out =
      run("squeue", {"--me", "--all", "--noheader", "--states=RUNNING,SUSPENDED", "--format=%i"},
          {}, "asking Slurm whether job " + id + " still runs");
  const std::vector<std::string> running = split(out, '\n');
  return std::find(running.begin(), running.end(), id) != running.end();
}

void Client::cancel(const std::vector<std::string>& ids) {
  std::optional<Error> failed;
  in_batches(ids, [&](std::span<const std::string> some) {
    try {
      run("scancel", {some.begin(), some.end()}, {}, "giving Slurm its nodes back");
    } catch (const Error& error) {
      if (!failed) failed = error;
    }
  });
  if (failed) throw Error(*failed);
}

}  // namespace dtrain::slurm
