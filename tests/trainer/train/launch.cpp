#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/core/files.hpp"

extern char** environ;

namespace dtrain::train::test {
namespace {

// A port that is bound and not listening, as dtrain's supervisor holds it for rank 0.
FileDescriptor hold_port(std::uint16_t& port) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM, 0));
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot hold a port");
  }
  port = ntohs(address.sin_port);
  return fd;
}

pid_t start(const std::string& job, const std::filesystem::path& folder, int rank, int held_fd,
            const std::map<std::string, std::string>& variables) {
  // All memory is taken before the fork: between fork and exec there is none to be had safely.
  std::vector<std::string> env;
  for (char** item = environ; *item != nullptr; ++item) {
    const std::string text = *item;
    if (!variables.contains(text.substr(0, text.find('=')))) env.push_back(text);
  }
  for (const auto& [name, value] : variables) env.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& item : env) envp.push_back(item.data());
  envp.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string option = "--job";
  std::string name = job;
  std::string place = folder.string();
  char* argv[] = {program.data(), option.data(), name.data(), place.data(), nullptr};
  const std::string log = (folder / ("rank-" + std::to_string(rank) + ".log")).string();

  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("cannot fork");
  if (pid == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    if (rank != 0) ::close(held_fd);
    ::execve(program.c_str(), argv, envp.data());
    ::_exit(127);
  }
  return pid;
}

}  // namespace

const std::map<std::string, std::string> kOnGpu{{"TEST_GPU", "1"}};

int gpus() {
  std::error_code none;
  const std::filesystem::directory_iterator all("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(all), end(all)));
}

std::vector<Exit> launch(const std::string& job, int ranks, const std::filesystem::path& folder,
                         const std::map<std::string, std::string>& env) {
  std::uint16_t port = 0;
  FileDescriptor held = hold_port(port);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<std::string, std::string> variables = env;
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(port);
    variables["OMP_NUM_THREADS"] = "1";
    variables["TORCHELASTIC_ERROR_FILE"] = folder / ("error-" + std::to_string(rank) + ".json");
    variables["CUDA_VISIBLE_DEVICES"] = "";
    if (env.contains("TEST_GPU")) {
      variables["CUDA_VISIBLE_DEVICES"] = std::to_string(rank % gpus());
      // NCCL refuses two ranks on one GPU of a host; those of two hosts it does not compare.
      variables["NCCL_HOSTID"] = "rank-" + std::to_string(rank);
      variables["NCCL_SOCKET_IFNAME"] = "lo";
    }
    if (rank == 0) variables["DTRAIN_MASTER_LISTEN_FD"] = std::to_string(held.get());
    pids.push_back(start(job, folder, rank, held.get(), variables));
  }
  held.reset();
  std::vector<Exit> exits;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    int status = 0;
    ::waitpid(pids[rank], &status, 0);
    exits.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                     read_file(folder / ("error-" + std::to_string(rank) + ".json"))});
  }
  return exits;
}

void holds(const std::string& job, int ranks, const std::filesystem::path& folder,
           const std::map<std::string, std::string>& env) {
  const std::vector<Exit> exits = launch(job, ranks, folder, env);
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    CHECK_MESSAGE(exits[rank].code == 0,
                  read_file(folder / ("rank-" + std::to_string(rank) + ".log")));
  }
}

void holds(const std::string& job, int ranks, const std::vector<std::string>& transports) {
  for (const std::string& transport : transports) {
    CAPTURE(transport);
    const TemporaryFolder folder;
    holds(job, ranks, folder.path(), {{"DTRAIN_TRANSPORT", transport}});
  }
}

}  // namespace dtrain::train::test
