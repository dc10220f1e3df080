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
constexpr std::size_t kShown = 4;  // lines of what Slurm says

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Seconds since 1970, "N/A", "NONE" or "Unknown".
std::optional<std::chrono::system_clock::time_point> time_of(std::string_view text) {
  std::int64_t seconds = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (failed != std::errc() || end != text.data() + text.size() || seconds <= 0) {
    return std::nullopt;
  }
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

std::vector<Job> parse_jobs(std::string_view output) {
  std::vector<Job> jobs;
  for (const std::string& line : split(output, '\n')) {
    if (line.empty()) continue;
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
    const auto submitted = fields.size() == kFields ? time_of(fields[4]) : std::nullopt;
    if (!submitted || !is_number(fields[0]) || fields[1].empty()) {
      throw Error(ErrorCode::invalid,
                  "squeue says what nobody understands: " + printable(line.substr(0, 200), false));
    }
    jobs.push_back({fields[0], fields[1], fields[2], fields[3], fields[6],
                    fields[7] == "(null)" ? "" : fields[7], *submitted, time_of(fields[5])});
  }
  return jobs;
}

Client::Client(std::shared_ptr<Transport> login_node, fs::path folder)
    : transport_(std::move(login_node)), folder_(std::move(folder)) {}

// Formats and filters of a user's environment are not for us; accounts and the like are.
std::vector<std::string> Client::command(const std::string& program) const {
  return {"env",
          "-u",
          "SQUEUE_FORMAT",
          "-u",
          "SQUEUE_FORMAT2",
          "-u",
          "SQUEUE_STATES",
          "-u",
          "SQUEUE_PARTITION",
          "-u",
          "SQUEUE_ACCOUNT",
          "-u",
          "SQUEUE_QOS",
          "-u",
          "SCANCEL_INTERACTIVE",
          "-u",
          "SBATCH_ARRAY_INX",
          "-u",
          "SBATCH_WAIT",
          "SLURM_TIME_FORMAT=%s",
          "LC_ALL=C",
          folder_.empty() ? program : (folder_ / program).string()};
}

std::string Client::run(const std::string& program, const std::vector<std::string>& arguments,
                        std::string_view input, const std::string& what) {
  std::vector<std::string> argv = command(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const Captured result = transport_->run(argv, input, kPatience);
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
  const std::string id = out.substr(0, out.find_first_of(";\n"));
  if (!is_number(id)) {
    throw Error(ErrorCode::failed, "sbatch gives no job id but: " + printable(out, false));
  }
  return id;
}

void Client::check(const Batch& batch) {
  std::vector<std::string> argv = command("sbatch");
  argv.emplace_back("--test-only");
  argv.insert(argv.end(), batch.options.begin(), batch.options.end());
  const Captured result = transport_->run(argv, batch.script, kPatience);
  if (result.exit.ok()) return;
  if (result.exit.code == 127) run("sbatch", {"--version"}, {}, "asking Slurm for nodes");
  throw Error(ErrorCode::invalid, "Slurm can never run this: " + said(result))
      .with_hint("sbatch --test-only " + shell_join(batch.options) + " shows the same");
}

std::vector<Job> Client::jobs(const std::string& name) {
  return parse_jobs(run(
      "squeue", {"--me", "--noheader", "--states=all", "--name=" + name, "--format", kJobFormat},
      {}, "asking Slurm for its queue"));
}

void Client::cancel(const std::vector<std::string>& ids) {
  if (ids.empty()) return;
  run("scancel", ids, {}, "giving Slurm its nodes back");
}

}  // namespace dtrain::slurm
