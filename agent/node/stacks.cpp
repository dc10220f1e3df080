#include "agent/node/stacks.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/store.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kMostWords = 500;  // bytes of what it says on stderr, and of a line of that

}  // namespace

struct Stacks::Look {
  Look(const asio::any_io_executor& executor, wire::TakeStacks what)
      : wanted(std::move(what)), out(executor), limit(executor) {}

  wire::TakeStacks wanted;
  pid_t pid = -1;  // in a session of its own
  asio::posix::stream_descriptor out;
  asio::steady_timer limit;
  std::array<char, 65536> buffer{};
  std::string said;
  std::optional<Error> error;
  std::optional<wire::TakeStacks> next;  // the newest that came meanwhile
};

Stacks::Stacks(asio::any_io_executor executor, paths::NodeRoot root,
               std::function<void(const wire::StacksTaken&)> say)
    : executor_(std::move(executor)), root_(std::move(root)), say_(std::move(say)) {}

Stacks::~Stacks() {
  for (const auto& [key, look] : looks_) {
    if (look->pid > 0) ::kill(look->pid, SIGKILL);
  }
}

void Stacks::take(const wire::TakeStacks& wanted) {
  const auto [at, is_new] = looks_.try_emplace({wanted.job, wanted.attempt});
  if (!is_new) {
    const std::shared_ptr<Look> before = at->second;
    before->next = wanted;
    if (before->pid > 0) {
      give_up(before, Error(ErrorCode::conflict, "it was asked for anew before it was done"));
    }
    return;
  }
  const auto look = std::make_shared<Look>(executor_, wanted);
  at->second = look;
  try {
    start(look);
  } catch (const std::exception& error) {
    look->error = as_defect(error);
    return over(look);
  }
  look->limit.expires_after(kLookLimit);
  look->limit.async_wait([this, look, guard = std::weak_ptr<int>(alive_)](error_code stopped) {
    if (stopped || !guard.lock() || look->pid <= 0) return;
    give_up(look, Error(ErrorCode::timeout,
                        "dtrain-profiler has not answered within " + human_duration(kLookLimit)));
  });
  read(look);
}

void Stacks::start(const std::shared_ptr<Look>& look) const {
  const wire::TakeStacks& wanted = look->wanted;
  SpawnOptions options;
  if (wanted.profiler.empty()) {
    options.argv = {find_profiler().string()};
  } else {
    const fs::path bundle = ContentStore(root_.content()).bundle(wanted.profiler);
    options.argv = {(bundle / "bin/dtrain-profiler").string()};
    std::erase_if(options.env,
                  [](const std::string& each) { return each.starts_with("LD_LIBRARY_PATH="); });
    options.env.push_back("LD_LIBRARY_PATH=" + (bundle / "lib").string());
  }
  std::vector<std::string> ranks;
  for (const int rank : wanted.ranks) ranks.push_back(std::to_string(rank));
  for (const std::string& word :
       {std::string("stacks"), std::string("--job"), wanted.job.str(), std::string("--attempt"),
        std::to_string(wanted.attempt), std::string("--ranks"), join(ranks, ",")}) {
    options.argv.push_back(word);
  }
  auto [ours, theirs] = make_pipe();
  options.workdir = "/";
  options.stdout_fd = theirs.get();
  options.stderr_fd = theirs.get();
  options.new_session = true;
  options.death_signal = SIGKILL;
  look->pid = spawn(options);
  look->out.assign(ours.release());
}

// Its end is that of what it says. Its zombie is the agent's to reap, as any other.
void Stacks::read(const std::shared_ptr<Look>& look) {
  look->out.async_read_some(
      asio::buffer(look->buffer),
      [this, look, guard = std::weak_ptr<int>(alive_)](error_code failed, std::size_t bytes) {
        if (!guard.lock() || look->pid <= 0) return;
        if (failed) return over(look);
        look->said.append(look->buffer.data(), bytes);
        if (look->said.size() > kStacksLimit) {
          return give_up(look, Error(ErrorCode::exhausted, "dtrain-profiler says more than " +
                                                               human_bytes(kStacksLimit)));
        }
        read(look);
      });
}

// Its end is not waited for: it may hang in the kernel.
void Stacks::give_up(const std::shared_ptr<Look>& look, Error why) {
  ::kill(look->pid, SIGKILL);
  look->error = std::move(why);
  over(look);
}

void Stacks::over(const std::shared_ptr<Look>& look) {
  look->limit.cancel();
  look->pid = -1;
  error_code ignored;
  look->out.close(ignored);
  writer_.add([this, look,
               file = paths::attempt(root_, look->wanted.job, look->wanted.attempt).stacks(),
               executor = executor_, guard = std::weak_ptr<int>(alive_)] {
    std::optional<Error> error;
    bool kept = false;
    try {
      const LookLine its = look_line(look->wanted, look->said, look->error);
      error = its.error;
      keep_look(file, its.line);
      kept = its.some;
    } catch (const std::exception& failed) {
      error = as_defect(failed);
    }
    asio::post(executor, [this, look, guard, error, kept] {
      if (!guard.lock()) return;
      const wire::TakeStacks& done = look->wanted;
      if (error) {
        log::warn("stacks are not kept", {{"job", done.job.str()}, {"why", error->what()}});
      }
      const std::optional<wire::TakeStacks> next = std::move(look->next);
      looks_.erase({done.job, done.attempt});
      say_(wire::StacksTaken{done.job, done.attempt, done.at, kept, error});
      if (next) take(*next);
    });
  });
}

LookLine look_line(const wire::TakeStacks& wanted, std::string_view said,
                   const std::optional<Error>& error) {
  LookLine its;
  its.error = error;
  nlohmann::json look = {
      {"at", rfc3339(wanted.at)}, {"reason", wanted.reason}, {"ranks", wanted.ranks}};
  nlohmann::json& processes = look["processes"] = nlohmann::json::array();
  std::set<int> missing(wanted.ranks.begin(), wanted.ranks.end());
  std::string words;   // what is no process
  std::string denied;  // why the first that could not be looked at could not
  for (const std::string& line : split(said, '\n')) {
    if (line.empty()) continue;
    nlohmann::json process = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!process.is_object()) {
      if (words.size() < kMostWords) {
        words += (words.empty() ? "" : "; ") + printable(line.substr(0, kMostWords), false);
      }
      continue;
    }
    if (const auto why = process.find("error"); why != process.end()) {
      if (denied.empty() && why->is_object()) denied = why->value("message", "");
    } else {
      const auto rank = process.find("rank");
      if (rank != process.end() && rank->is_number_integer()) missing.erase(rank->get<int>());
      its.some = true;
    }
    processes.push_back(std::move(process));
  }
  // Else what it says is no concern of anybody's: a loader's note, say.
  if (!its.error && !missing.empty()) {
    if (!denied.empty()) words = printable(denied.substr(0, kMostWords), false);
    if (words.empty()) {
      words = processes.empty() ? "dtrain-profiler has found nothing" : "a rank has no process";
    }
    its.error = Error(ErrorCode::failed, words);
  }
  if (its.error) look["error"] = wire::error_to_json(*its.error)["error"];
  its.line = wire::dump(look) + "\n";
  return its;
}

void keep_look(const fs::path& file, const std::string& line) {
  const UniqueFd fd = open_file(file, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw errno_error("cannot look at " + file.string(), errno);
  if (static_cast<std::size_t>(status.st_size) + line.size() > kStacksLimit) {
    throw Error(ErrorCode::exhausted, file.filename().string() + " has " +
                                          human_bytes(static_cast<std::uint64_t>(status.st_size)) +
                                          " of earlier ones, and no more than " +
                                          human_bytes(kStacksLimit) +
                                          " are kept of an attempt on a node");
  }
  // Where the disk was full a part of a line stands last.
  char last = '\n';
  if (status.st_size > 0 && ::pread(fd.get(), &last, 1, status.st_size - 1) != 1) {
    throw errno_error("cannot read " + file.string(), errno);
  }
  write_all(fd.get(), (last == '\n' ? "" : "\n") + line);
}

}  // namespace dtrain::node
