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

nlohmann::json beginning(const wire::TakeStacks& wanted) {
  return {{"at", rfc3339(wanted.at)}, {"reason", wanted.reason}};
}

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
};

Stacks::Stacks(asio::any_io_executor executor, paths::NodeRoot root,
               std::function<void(wire::NodeMessage)> say)
    : executor_(std::move(executor)), root_(std::move(root)), say_(std::move(say)) {}

Stacks::~Stacks() {
  for (const auto& [key, look] : looks_) {
    if (look->pid > 0) ::kill(look->pid, SIGKILL);
  }
}

void Stacks::take(const wire::TakeStacks& wanted) {
  const auto [at, is_new] = looks_.try_emplace({wanted.job, wanted.attempt});
  if (!is_new) return;
  const auto look = std::make_shared<Look>(executor_, wanted);
  at->second = look;
  try {
    start(look);
  } catch (const std::exception& error) {
    look->error = as_defect(error);
    return over(look);
  }
  look->limit.expires_after(kLookLimit);
  look->limit.async_wait([look](error_code stopped) {
    if (stopped || look->pid <= 0) return;
    look->error = Error(ErrorCode::timeout,
                        "dtrain-profiler has not answered within " + human_duration(kLookLimit));
    ::kill(look->pid, SIGKILL);
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
        if (!guard.lock()) return;
        if (failed) return over(look);
        look->said.append(look->buffer.data(), bytes);
        if (look->said.size() > kStacksLimit) {
          look->error = Error(ErrorCode::exhausted,
                              "dtrain-profiler says more than " + human_bytes(kStacksLimit));
          ::kill(look->pid, SIGKILL);
          return over(look);
        }
        read(look);
      });
}

void Stacks::over(const std::shared_ptr<Look>& look) {
  look->limit.cancel();
  look->pid = -1;
  error_code ignored;
  look->out.close(ignored);
  writer_.add([this, look,
               file = paths::attempt(root_, look->wanted.job, look->wanted.attempt).stacks(),
               executor = executor_, guard = std::weak_ptr<int>(alive_)] {
    const wire::TakeStacks& wanted = look->wanted;
    std::optional<Error> error = look->error;
    try {
      std::string line;
      if (!error) {
        try {
          line = look_line(wanted, look->said);
        } catch (const Error& failed) {
          error = failed;
        }
      }
      keep_look(file, error ? look_line(wanted, *error) : line);
    } catch (const std::exception& failed) {
      error = as_defect(failed);
    }
    asio::post(executor, [this, look, guard, error] {
      if (!guard.lock()) return;
      const wire::TakeStacks& done = look->wanted;
      if (error) {
        log::warn("stacks could not be taken", {{"job", done.job.str()}, {"why", error->what()}});
      }
      looks_.erase({done.job, done.attempt});
      say_(wire::StacksTaken{done.job, done.attempt, error});
    });
  });
}

std::string look_line(const wire::TakeStacks& wanted, const std::string& said) {
  nlohmann::json look = beginning(wanted);
  nlohmann::json& processes = look["processes"] = nlohmann::json::array();
  std::string errors;
  for (const std::string& line : split(said, '\n')) {
    if (line.empty()) continue;
    nlohmann::json process = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (process.is_object()) {
      processes.push_back(std::move(process));
    } else {
      errors += (errors.empty() ? "" : "; ") + printable(line, false);
    }
  }
  if (!errors.empty()) throw Error(ErrorCode::failed, errors);
  return wire::dump(look) + "\n";
}

std::string look_line(const wire::TakeStacks& wanted, const Error& error) {
  nlohmann::json look = beginning(wanted);
  look["error"] = wire::error_to_json(error)["error"];
  return wire::dump(look) + "\n";
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
