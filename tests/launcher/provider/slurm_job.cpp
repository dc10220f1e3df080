#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/slurm/job_transport.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

// A job of a real Slurm, reached by steps beside it: tests/support/slurm.py runs this.
using namespace dtrain;
using namespace std::chrono_literals;

namespace {

struct RunningJob {
  RunningJob() {
    REQUIRE_MESSAGE(std::getenv("SLURM_CONF") != nullptr, "tests/support/slurm.py runs this");
    id = client.submit({{"--job-name=one", "--nodes=1", "--cpus-per-task=1", "--output=/dev/null",
                         "--comment=test one"},
                        "#!/bin/sh\nexec sleep 1000\n"});
    wait_for("RUNNING");
  }
  ~RunningJob() { client.cancel({id}); }

  void wait_for(const std::string& state) {
    const auto end = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (true) {
      for (const slurm::Job& job : client.jobs("one", "test ")) {
        if (job.id == id && job.state == state) return;
      }
      REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, "not so: ", state);
      std::this_thread::sleep_for(10ms);
    }
  }
  slurm::JobTransport transport() {
    return slurm::JobTransport(client, [this] { return id; });
  }

  slurm::Client client{std::make_shared<LocalTransport>()};
  std::string id;
};

std::string read_all(int fd) {
  std::string text;
  std::array<char, 65536> buffer{};
  ssize_t got = 0;
  while ((got = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

TEST_CASE("a program beside a job: bytes as they are, its own code, and what it says itself") {
  RunningJob job;
  slurm::JobTransport there = job.transport();
  std::string bytes;
  for (int i = 0; i < 300000; ++i) bytes += static_cast<char>(i * 7);
  const Captured copied = there.run({"cat"}, bytes, 60s);
  CHECK(copied.exit.ok());
  CHECK(copied.out == bytes);
  const Captured failed = there.run(
      {"sh", "-c", "echo \"$SLURM_JOB_ID $SLURMD_NODENAME\"; pwd; echo no >&2; exit 7"}, {}, 60s);
  CHECK(failed.exit.code == 7);
  CHECK(failed.err == "no\n");
  CHECK(failed.out.starts_with(job.id + " n"));
  CHECK(failed.out.ends_with(std::string(std::getenv("HOME")) + "\n"));
  const Captured short_of_a_line = there.run({"sh", "-c", "printf no >&2; exit 7"}, {}, 60s);
  CHECK(short_of_a_line.exit.code == 7);
  CHECK(short_of_a_line.err == "no\n");
  CHECK(there.run({"sh", "-c", "kill -9 $$"}, {}, 60s).exit.shell_code() == 137);
  const testing::TemporaryFolder folder;
  there.put("kept", folder.path() / "a b" / "file", 0600);
  CHECK(read_file(folder.path() / "a b" / "file") == "kept");
}

TEST_CASE("what it says comes before its line is whole, as a protocol needs it") {
  RunningJob job;
  slurm::JobTransport there = job.transport();
  const std::unique_ptr<Channel> channel = there.open({"sh", "-c", "printf a; read x; exit 3"});
  char first = 0;
  REQUIRE(::recv(channel->fd(), &first, 1, MSG_WAITALL) == 1);
  CHECK(first == 'a');
  REQUIRE(::send(channel->fd(), "\n", 1, MSG_NOSIGNAL) == 1);
  CHECK(channel->wait(60s) == 3);
}

TEST_CASE("a job that ends takes the program along, and is then no place to reach") {
  RunningJob job;
  slurm::JobTransport there = job.transport();
  const std::unique_ptr<Channel> channel = there.open({"sh", "-c", "echo up; exec sleep 1000"});
  char first = 0;
  REQUIRE(::recv(channel->fd(), &first, 1, MSG_WAITALL) == 1);
  job.client.cancel({job.id});
  read_all(channel->fd());
  const auto code_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  CHECK(code_of([&] { channel->wait(60s); }) == ErrorCode::unreachable);
  job.wait_for("CANCELLED");
  CHECK(code_of([&] { there.run({"true"}, {}, 60s); }) == ErrorCode::unreachable);
}

TEST_CASE("where no job runs that is said by whoever knows why") {
  slurm::JobTransport there(slurm::Client(std::make_shared<LocalTransport>()),
                            []() -> std::string { throw Error(ErrorCode::unreachable, "waits"); });
  CHECK_THROWS_WITH(there.run({"true"}, {}, 60s), "waits");
  CHECK_THROWS_WITH(there.head_socket({"/root", "", {"cat"}}), "waits");
}
