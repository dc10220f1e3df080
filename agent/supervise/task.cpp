#include "agent/supervise/task.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "agent/supervise/srun_launcher.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::chrono::milliseconds kLastPause{200};

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw Error(ErrorCode::usage, std::string(name) + " is not set");
  return text;
}

// Which of the attempt's nodes has the rank.
int node_rank_of(int rank, const std::vector<std::string>& first_ranks) {
  int node_rank = -1;
  for (const std::string& first : first_ranks) {
    if (number_from<int>(first).value_or(rank + 1) > rank) break;
    ++node_rank;
  }
  if (node_rank < 0) throw Error(ErrorCode::invalid, std::string(kLaunch) + " names no such rank");
  return node_rank;
}

// Which may be there later, where the head was away between the starts of two nodes. What ends the
// attempt meanwhile ends the step, and with it this.
UniqueFd find_supervisor(const std::string& name, int rank) {
  const auto until = std::chrono::steady_clock::now() + SrunLauncher::kStartLimit;
  for (std::chrono::milliseconds pause(5);; pause = std::min(kLastPause, pause * 3 / 2)) {
    if (auto found = connect_abstract(name)) {
      ::fcntl(found->get(), F_SETFL, 0);  // it may block
      return std::move(*found);
    }
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(pause);
  }
  const char* node = std::getenv("SLURMD_NODENAME");
  throw Error(ErrorCode::timeout, "no supervisor of rank " + std::to_string(rank) + " came on " +
                                      (node == nullptr ? "its node" : node) + " within " +
                                      human_duration(SrunLauncher::kStartLimit));
}

void send(int fd, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot speak to the supervisor", errno);
    sent += static_cast<std::size_t>(n);
  }
}

// A line; absent when the other end is gone.
std::optional<std::string> receive_line(int fd) {
  std::string line;
  while (true) {
    char byte = 0;
    const ssize_t n = ::recv(fd, &byte, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    if (byte == '\n') return line;
    line += byte;
  }
}

int stand_for_rank() {
  const auto rank = number_from<int>(variable("SLURM_PROCID"));
  std::vector<std::string> words = split(variable(kLaunch), ' ');
  if (!rank || *rank < 0) throw Error(ErrorCode::invalid, "SLURM_PROCID is no number");
  const std::string secret = words.front();
  words.erase(words.begin());
  const UniqueFd supervisor =
      find_supervisor(launch_socket(secret, node_rank_of(*rank, words)), *rank);
  std::string environment;
  for (const std::string& entry : current_environment()) environment += entry + '\0';
  send(supervisor.get(),
       std::to_string(*rank) + " " + std::to_string(environment.size()) + "\n" + environment);
  write_all(STDOUT_FILENO, std::to_string(*rank) + "\n");
  const auto code = receive_line(supervisor.get());
  return code ? number_from<int>(*code).value_or(1) : 1;
}

}  // namespace

int task_main() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM}) {
    ::signal(number, SIG_IGN);
  }
  try {
    return stand_for_rank();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain: error: %s\n", error.what());
    return 1;
  }
}

}  // namespace dtrain::supervise
