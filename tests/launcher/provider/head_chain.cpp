#include "launcher/provider/slurm/head_chain.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

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

// In a folder of programs that are found first.
void write_program(const fs::path& file, const std::string& script) {
  make_folders(file.parent_path());
  write_file_atomic(file, "#!/bin/sh\n" + script + "\n", 0755);
}

std::vector<std::string> environment_with(const fs::path& programs) {
  std::vector<std::string> env = current_environment();
  std::erase_if(env, [](const std::string& entry) { return entry.starts_with("PATH="); });
  env.push_back("PATH=" + programs.string() + ":/usr/bin:/bin");
  return env;
}

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
  other.script += "# by another version\n";
  CHECK(HeadChain::launch_of(other) == HeadChain::launch_of(wanted));
  const HeadChain::Wanted elsewhere =
      chain.wanted(ClusterId("pool-abcdef"), {"--time=60"}, "/elsewhere/head-node");
  CHECK(HeadChain::launch_of(elsewhere) != HeadChain::launch_of(wanted));
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
  // What is started here is old when it ends.
  write_program(folder / "bin/date", "n=$(cat '" + (folder / "now").string() +
                                         "' 2>/dev/null); echo $((n+1000)) >'" +
                                         (folder / "now").string() + "'; echo $((n+1000))");
  options.env = environment_with(folder / "bin");
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

TEST_CASE("what fails as soon as the head's job has started it is tried again in that job") {
  const testing::TemporaryFolder folder;
  const fs::path root = folder / "head-node";
  make_folders(root);
  for (const char* name : {"up", "end"}) REQUIRE(::mkfifo((root / name).c_str(), 0600) == 0);
  const auto lines_of = [&](const char* name) {
    const std::string text = read_file_if_there(root / name).value_or("");
    return std::count(text.begin(), text.end(), '\n');
  };
  const HeadChain chain(slurm::Client(std::make_shared<LocalTransport>()), "pool");
  write_file_atomic(folder / "script", chain.wanted(ClusterId("pool-abcdef"), {}, root).script);
  // Time is what the test says, and a pause takes none.
  write_file_atomic(root / "now", "1000\n");
  write_program(folder / "bin/date", "cat '" + (root / "now").string() + "'");
  write_program(folder / "bin/sleep", "echo $1 >>'" + (root / "pauses").string() + "'");
  const auto start = [&](const std::string& what) {
    write_file_atomic(root / "start", "cd '" + root.string() + "'; echo run >>runs; " + what);
    SpawnOptions options;
    options.argv = {"/bin/sh", (folder / "script").string()};
    options.env = environment_with(folder / "bin");
    options.new_session = true;
    return spawn(options);
  };
  SUBCASE("until it goes") {
    const pid_t script =
        start("[ $(wc -l <runs) -gt 3 ] || exit 127; echo up >up; read -r code <end; exit $code\n");
    std::array<char, 16> said{};
    CHECK(::read(open_file(root / "up", O_RDONLY).get(), said.data(), said.size()) == 3);
    CHECK(lines_of("runs") == 4);
    CHECK(lines_of("pauses") == 3 * HeadChain::kPause.count());
    // Old, it has asked for its successor.
    write_file_atomic(root / "now", "2000\n");
    write_all(open_file(root / "end", O_WRONLY).get(), "3\n");
    CHECK(wait(script).shell_code() == 3);
    CHECK(lines_of("runs") == 4);
  }
  SUBCASE("but not for ever") {
    CHECK(wait(start("exit 127\n")).shell_code() == 127);
    CHECK(lines_of("runs") == 1 + HeadChain::kTries);
  }
}
