#include "agent/node/staging.hpp"

#include <doctest/doctest.h>

#include <sys/mount.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <semaphore>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/core/failpoint.hpp"
#include "tests/support/own_mounts.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace asio = boost::asio;

namespace {

const JobId kStagedJob{"job-1"};
const JobId kOtherJob{"job-2"};

// The first thread that has made a workdir is held there, as by a slow disk, until it is let go.
std::atomic<bool> hold{false};
std::binary_semaphore held{0};
std::binary_semaphore let_go{0};

void hold_first(Failpoint point, std::string_view) {
  if (point.name() != "bundle.rename.before" || !hold.exchange(false)) return;
  held.release();
  let_go.acquire();
}

struct StagingWorld {
  TemporaryFolder folder;
  paths::NodeRoot root{folder / "node"};
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::vector<wire::NodeMessage> said;
  node::Relay relay{root, ClusterId("lab-abcdef")};
  node::Staging staging{
      context.get_executor(), root, {}, relay, [this](const wire::NodeMessage& message) {
        said.push_back(message);
      }};

  StagingWorld() {
    hold = true;
    reached_failpoint = hold_first;
  }
  ~StagingWorld() { reached_failpoint = nullptr; }

  // An empty workdir.
  void stage(const JobId& job, int attempt) {
    wire::Stage wanted;
    wanted.job = job;
    wanted.attempt = attempt;
    staging.stage(wanted);
  }
  bool is_ready(const JobId& job) const {
    for (const wire::NodeMessage& message : said) {
      const auto* staged = std::get_if<wire::Staging>(&message);
      if (staged != nullptr && staged->job == job && staged->ready) return true;
    }
    return false;
  }
  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) {
      REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
    }
  }
};

}  // namespace

TEST_CASE("a job is forgotten without waiting; what follows waits until nothing of it is written") {
  StagingWorld world;
  world.stage(kStagedJob, 1);
  held.acquire();
  bool forgotten = false;
  world.staging.forget(kStagedJob, [&] {
    CHECK(fs::exists(world.root.workdir(kStagedJob, 1)));
    forgotten = true;
  });
  CHECK_FALSE(forgotten);
  bool other_forgotten = false;
  world.staging.forget(kOtherJob, [&] { other_forgotten = true; });
  CHECK(other_forgotten);
  // Another job's files come meanwhile.
  world.stage(kOtherJob, 1);
  world.run_until([&] { return world.is_ready(kOtherJob); });
  CHECK_FALSE(forgotten);
  let_go.release();
  world.run_until([&] { return forgotten; });
  CHECK_FALSE(world.is_ready(kStagedJob));
}

TEST_CASE("an attempt that is wanted again begins when what was given up has ended") {
  StagingWorld world;
  world.stage(kStagedJob, 1);
  held.acquire();
  world.staging.give_up(kStagedJob, 1);
  world.stage(kStagedJob, 1);
  world.stage(kStagedJob, 2);
  world.staging.give_up(kStagedJob, 2);  // it has not begun
  CHECK(world.context.poll() == 0);
  let_go.release();
  world.run_until([&] { return world.is_ready(kStagedJob); });
  CHECK(world.said.size() == 1);
  CHECK(fs::exists(world.root.workdir(kStagedJob, 1)));
  CHECK_FALSE(fs::exists(world.root.workdir(kStagedJob, 2)));
}

TEST_CASE("an attempt begins though something is mounted in an old one's workdir, which stays") {
  dtrain::testing::with_own_mounts([] {
    StagingWorld world;
    hold = false;
    const fs::path shared = world.folder / "shared";
    const fs::path place = world.root.workdir(kStagedJob, 1) / "data";
    for (const fs::path& folder : {shared, place, world.root.workdir(kStagedJob, 2)}) {
      make_folders(folder);
    }
    write_file_atomic(shared / "file", "x");
    dtrain::testing::expect(::mount(shared.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) == 0,
                            "a bind mount");
    world.stage(kStagedJob, 3);
    world.run_until([&] { return world.is_ready(kStagedJob); });
    dtrain::testing::expect(fs::exists(place / "file"), "the file that is mounted");
    dtrain::testing::expect(::umount(place.c_str()) == 0, "umount");
  });
}
