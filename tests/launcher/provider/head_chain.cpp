#include "launcher/provider/slurm/head_chain.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using slurm::HeadChain;
using slurm::HeadJob;

namespace {

HeadJob job(const std::string& id, MachineState state) {
  HeadJob one;
  one.job.id = id;
  one.standing.state = state;
  return one;
}

std::string current(const std::vector<HeadJob>& jobs) {
  const auto found = HeadChain::current(jobs);
  return found ? found->job.id : "";
}

}  // namespace

TEST_CASE("the head is the job that runs, else the next that waits, else the one that ends") {
  using enum MachineState;
  CHECK(current({}).empty());
  CHECK(current({job("1", gone)}).empty());
  CHECK(current({job("1", running), job("2", pending)}) == "1");
  CHECK(current({job("1", gone), job("2", stopping), job("3", pending)}) == "3");
  CHECK(current({job("1", pending), job("2", pending)}) == "1");
  CHECK(current({job("1", stopping)}) == "1");
}

TEST_CASE("what the head's jobs are asked for with") {
  const HeadChain chain(slurm::Client(std::make_shared<LocalTransport>()), "pool");
  const HeadChain::Wanted wanted =
      chain.wanted(ClusterId("pool-abcdef"), {"--time=60"}, "/shared/it's 100%/head-node");
  const auto has = [&](const std::string& option) {
    return std::find(wanted.options.begin(), wanted.options.end(), option) != wanted.options.end();
  };
  CHECK(wanted.options.front() == "--time=60");
  CHECK(has("--job-name=dtrain-pool"));
  CHECK(has("--comment=dtrain-head cluster=pool cluster-id=pool-abcdef"));
  CHECK(has("--nodes=1"));
  CHECK(has("--no-requeue"));
  CHECK(has("--output=/shared/it's 100%%/head-node/allocation.log"));
  CHECK(wanted.script.find("root='/shared/it'\\''s 100%/head-node'\n") != std::string::npos);
  CHECK(wanted.script.find('@') == std::string::npos);
  HeadChain::Wanted other = wanted;
  CHECK(HeadChain::launch_of(other) == HeadChain::launch_of(wanted));
  other.options.front() = "--time=61";
  CHECK(HeadChain::launch_of(other) != HeadChain::launch_of(wanted));
  // Nothing else of ours is one of its jobs.
  CHECK_FALSE(slurm::allocation_of("dtrain-head cluster=pool cluster-id=pool-abcdef").has_value());
}

TEST_CASE("what the head's jobs run starts anew what was ended for that, however late it looks") {
  const testing::TemporaryFolder folder;
  const fs::path root = folder / "head-node";
  make_folders(root);
  for (const char* name : {"up", "end"}) REQUIRE(::mkfifo((root / name).c_str(), 0600) == 0);
  const HeadChain chain(slurm::Client(std::make_shared<LocalTransport>()), "pool");
  write_file_atomic(folder / "script", chain.wanted(ClusterId("pool-abcdef"), {}, root).script);
  write_file_atomic(root / "start",
                    "cd '" + root.string() + "'; echo up >up; read -r code <end; exit $code\n");
  SpawnOptions options;
  options.argv = {"/bin/sh", (folder / "script").string()};
  options.env = current_environment();
  options.new_session = true;
  const pid_t script = spawn(options);
  const auto starts = [&] {
    std::array<char, 16> said{};
    CHECK(::read(open_file(root / "up", O_RDONLY).get(), said.data(), said.size()) == 3);
  };
  const auto end = [&](const char* code) {
    write_all(open_file(root / "end", O_WRONLY).get(), code);
  };
  starts();
  SUBCASE("it is to go on before it has looked") {
    write_file_atomic(root / "held", "go on\n");
    end("0\n");
  }
  SUBCASE("and after") {
    write_file_atomic(root / "held", "");
    end("1\n");
    write_file_atomic(root / "held", "go on\n");
  }
  SUBCASE("and after a shutdown") {
    end("0\n");
    while (!fs::exists(root / "held")) std::this_thread::sleep_for(10ms);
    write_file_atomic(root / "held", "go on\n");
  }
  starts();
  CHECK_FALSE(fs::exists(root / "held"));
  end("3\n");
  CHECK(wait(script).shell_code() == 3);
}
