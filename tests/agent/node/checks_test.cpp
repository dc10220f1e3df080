#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "agent/node/checks.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::node;
using dtrain::testing::TemporaryFolder;
using link::Disk;
using link::Finding;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
const JobId kMnist("mnist-abcdef");

const Finding& only(const Findings& findings) {
  REQUIRE(findings.found.size() == 1);
  return findings.found.front();
}

Disk disk(std::uint64_t total, std::uint64_t free) {
  Disk disk;
  disk.of = "/n";
  disk.total = total;
  disk.free = free;
  return disk;
}

std::string judged(const Disk& disk) {
  Findings findings;
  link::judge_disks({disk}, findings);
  return findings.found.empty() ? "well" : only(findings).severity;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

// A process of its own, as a rank of that attempt or a command of exec has it in its environment.
FoundProcess sleeper(const paths::NodeRoot& root, const std::string& what) {
  SpawnOptions options;
  options.argv = {"/bin/sleep", "1000"};
  options.new_session = true;
  options.death_signal = SIGKILL;
  if (what == "exec") {
    options.env = {"DTRAIN_EXEC_ROOT=" + root.root.string()};
  } else {
    options.env = {
        "DTRAIN_ATTEMPT_TOKEN=t",
        "TORCHELASTIC_ERROR_FILE=" + paths::attempt(root, kMnist, 1).error_file(0).string()};
  }
  const pid_t pid = spawn(options);
  for (const FoundProcess& each : cluster_processes(root.root)) {
    if (each.pid == pid) return each;
  }
  FAIL("it is not found");
  return {};
}

void make_old(const fs::path& path) {
  const timespec then{::time(nullptr) - 86400, 0};
  const timespec times[] = {then, then};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

// A folder of sockets of that root, a day old.
fs::path sockets_of(const fs::path& folders, const std::string& name, const fs::path& root) {
  const fs::path folder = folders / name;
  fs::create_directories(folder);
  if (!root.empty()) fs::create_symlink(root, paths::root_link(folder));
  make_old(folder);
  return folder;
}

}  // namespace

TEST_CASE("doctor: a disk is nearly full by a part of it, or getting so") {
  CHECK(judged(disk(1000 * kGiB, 500 * kGiB)) == "well");
  CHECK(judged(disk(1000 * kGiB, 49 * kGiB)) == "note");
  CHECK(judged(disk(1000 * kGiB, 9 * kGiB)) == "problem");
  CHECK(judged(disk(100000 * kGiB, 60 * kGiB)) == "well");  // much, though a small part
  CHECK(judged(disk(kGiB, 60 << 20)) == "well");
  CHECK(judged(disk(kGiB, 30 << 20)) == "problem");
  CHECK(judged(disk(64 << 20, 64 << 20)) == "well");  // a container's /dev/shm
  CHECK(judged(disk(0, 0)) == "well");                // a file system that does not say
  Disk no_files = disk(1000 * kGiB, 500 * kGiB);
  no_files.files = 1000000;
  no_files.files_free = 9999;
  CHECK(judged(no_files) == "problem");
  Disk read_only = disk(1000 * kGiB, 500 * kGiB);
  read_only.read_only = true;
  CHECK(judged(read_only) == "problem");
}

TEST_CASE("doctor: one disk is one finding, however many folders are on it") {
  Findings findings;
  Disk other = disk(kGiB, 0);
  other.of = "/tmp";
  Disk apart = disk(kGiB, kGiB);
  apart.of = "/dev/shm";
  apart.device = 7;
  link::judge_disks({disk(kGiB, 0), other, apart}, findings);
  CHECK(only(findings).what == "/n, /tmp: 0 B free of 1.0 GiB");
  CHECK(findings.looked == std::vector<std::string>{"/dev/shm: 1.0 GiB free of 1.0 GiB"});
}

TEST_CASE("doctor: content is worth a word where the disk fills, and goes by the same way") {
  int removed = 0;
  std::uint64_t bytes = 2 * kGiB;
  const auto collect = [&](bool dry_run) {
    if (!dry_run) ++removed;
    wire::Collected answer;
    answer.items = {{"content", 3, bytes}};
    return answer;
  };
  Findings well;
  link::judge_content(disk(1000 * kGiB, 500 * kGiB), collect, true, well);
  CHECK(well.found.empty());
  Findings seen;
  link::judge_content(disk(1000 * kGiB, 20 * kGiB), collect, false, seen);
  CHECK(only(seen).severity == "note");
  CHECK(removed == 0);
  Findings fixed;
  link::judge_content(disk(1000 * kGiB, 20 * kGiB), collect, true, fixed);
  CHECK(only(fixed).fixed);
  CHECK(removed == 1);
  bytes = 1000;
  Findings little;
  link::judge_content(disk(1000 * kGiB, 20 * kGiB), collect, true, little);
  CHECK(little.found.empty());
}

TEST_CASE("doctor: what is open to others is named, and closed only when it is to be") {
  const TemporaryFolder folder;
  const fs::path key = folder / "key.pem";
  write_file_atomic(key, "secret", 0600);
  const std::vector<fs::path> paths{folder.path(), key, folder / "not there"};
  fs::permissions(folder.path(), fs::perms(0700));
  Findings well;
  link::check_private(paths, true, well);
  CHECK(well.found.empty());
  fs::permissions(key, fs::perms(0640));
  Findings seen;
  link::check_private(paths, false, seen);
  CHECK(only(seen).what.find("its mode is 0640, not 0600") != std::string::npos);
  CHECK(only(seen).fixable);
  CHECK_FALSE(only(seen).fixed);
  CHECK(mode_of(key) == 0640);
  Findings fixed;
  link::check_private(paths, true, fixed);
  CHECK(only(fixed).fixed);
  CHECK(mode_of(key) == 0600);
}

TEST_CASE("doctor: closing a file to others leaves the locks that this process holds on it") {
  const TemporaryFolder folder;
  const fs::path database = folder / "head.db";
  write_file_atomic(database, "", 0600);
  fs::permissions(database, fs::perms(0640));
  const UniqueFd holder = open_file(database, O_RDWR);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  REQUIRE(::fcntl(holder.get(), F_SETLK, &lock) == 0);
  Findings fixed;
  link::check_private({database}, true, fixed);
  CHECK(only(fixed).fixed);
  CHECK(mode_of(database) == 0600);
  const UniqueFd other = open_file(database, O_RDWR);
  struct flock found {};
  found.l_type = F_WRLCK;
  REQUIRE(::fcntl(other.get(), F_OFD_GETLK, &found) == 0);
  CHECK(found.l_type == F_WRLCK);
}

TEST_CASE("doctor: a link in a private file's place is not followed") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "others", "", 0600);
  fs::permissions(folder / "others", fs::perms(0644));
  fs::create_symlink(folder / "others", folder / "key.pem");
  Findings findings;
  link::check_private({folder / "key.pem"}, true, findings);
  CHECK(mode_of(folder / "others") == 0644);
}

TEST_CASE("doctor: strays are of attempts that nobody knows, and of commands that have ended") {
  const TemporaryFolder folder;
  const paths::NodeRoot root{folder.path()};
  const FoundProcess rank = sleeper(root, "rank");
  const FoundProcess left = sleeper(root, "exec");
  const FoundProcess command = sleeper(root, "exec");
  CHECK(rank.attempt == paths::attempt(root, kMnist, 1).root.string());
  FoundProcess agent = rank;
  agent.what = "node";
  agent.attempt.clear();
  const std::vector<FoundProcess> found{rank, left, command, agent};
  const Strays none = strays(root, found, {{{kMnist, 1}}, {}, {left.pid, command.pid}});
  CHECK(none.of_attempts.empty());
  CHECK(none.of_execs.empty());
  Strays some = strays(root, found, {{{kMnist, 2}}, {}, {command.pid}});
  REQUIRE(some.of_attempts.size() == 1);
  REQUIRE(some.of_execs.size() == 1);
  CHECK(some.of_execs[0].pid == left.pid);

  Findings seen;
  judge_strays(some, false, seen);
  REQUIRE(seen.found.size() == 2);
  CHECK(seen.found[0].severity == "problem");
  CHECK(seen.found[0].what.find(std::to_string(rank.pid) + " (sleep) of mnist-abcdef/attempt-1") !=
        std::string::npos);
  CHECK(seen.found[1].severity == "note");
  CHECK_FALSE(seen.found[1].fixable);
  CHECK(start_time(rank.pid) == rank.start_time);

  Findings fixed;
  judge_strays(some, true, fixed);
  CHECK(fixed.found[0].fixed);
  CHECK(start_time(left.pid) == left.start_time);  // may be meant to be there
  int status = 0;
  CHECK(::waitpid(rank.pid, &status, WNOHANG) == rank.pid);
  leave_out_ending(some, 0ms);
  CHECK(some.of_attempts.empty());
  for (const FoundProcess& each : {left, command}) {
    ::kill(each.pid, SIGKILL);
    ::waitpid(each.pid, &status, 0);
  }
}

TEST_CASE("doctor: a pid that another process has by now is not hit") {
  const TemporaryFolder folder;
  const FoundProcess now = sleeper({folder.path()}, "rank");
  FoundProcess before = now;
  before.start_time -= 1;
  Findings findings;
  judge_strays({{before}, {}}, true, findings);
  CHECK(start_time(now.pid) == now.start_time);
  ::kill(now.pid, SIGKILL);
  int status = 0;
  ::waitpid(now.pid, &status, 0);
}

TEST_CASE("doctor: ten thousand processes are looked at in a moment") {
  const paths::NodeRoot root{"/n"};
  std::vector<FoundProcess> found;
  KnownHere known;
  for (int i = 1; i <= 10000; ++i) {
    FoundProcess process;
    process.pid = 1 << 30;  // nobody's
    process.what = "rank";
    process.attempt = paths::attempt(root, kMnist, i).root.string();
    found.push_back(process);
    known.attempts.emplace_back(kMnist, i);
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(strays(root, found, known).of_attempts.empty());
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("doctor: a folder of sockets is stale only when all says so") {
  const TemporaryFolder folder;
  const fs::path folders = folder / "dtrain-1000";
  const fs::path gone = folder / "gone";
  const fs::path there = folder / "there";
  fs::create_directory(there);
  const auto now = [] { return std::chrono::system_clock::now(); };
  sockets_of(folders, "0of-a-root", there);
  sockets_of(folders, "1says-nothing", {});
  const fs::path fresh = sockets_of(folders, "2fresh", gone);
  write_file_atomic(fresh / "x", "");  // its time of change is now
  const fs::path heard = sockets_of(folders, "3heard", gone);
  const UniqueFd listener = listen_unix(heard / "head.sock");
  make_old(heard);
  const fs::path stale = sockets_of(folders, "4stale", gone);
  { const UniqueFd closed = listen_unix(stale / "head.sock"); }
  make_old(stale);
  fs::create_symlink(stale, folders / "5a-link");

  const std::vector<StaleSockets> found = stale_sockets(folders, now());
  REQUIRE(found.size() == 1);
  CHECK(found[0].folder == stale);
  Findings seen;
  judge_sockets(folders, found, false, seen);
  CHECK(only(seen).what.find(gone.string()) != std::string::npos);
  CHECK(fs::exists(stale));
  Findings fixed;
  judge_sockets(folders, found, true, fixed);
  CHECK(only(fixed).fixed);
  CHECK_FALSE(fs::exists(stale));
  CHECK(fs::exists(fresh));
  CHECK(fs::exists(heard / "head.sock"));
  judge_sockets(folders, found, true, fixed);  // another node was quicker
  CHECK(fixed.found.back().fixed);
}

TEST_CASE("doctor: a root that is made anew keeps its folder of sockets") {
  const TemporaryFolder folder;
  const fs::path root = folder / "root";
  const fs::path sockets = sockets_of(folder / "dtrain-1000", "a", root);
  const auto found = stale_sockets(folder / "dtrain-1000", std::chrono::system_clock::now());
  REQUIRE(found.size() == 1);
  fs::create_directory(root);
  Findings findings;
  judge_sockets(folder / "dtrain-1000", found, true, findings);
  CHECK_FALSE(only(findings).fixed);
  CHECK(only(findings).error.find("is there again") != std::string::npos);
  CHECK(fs::exists(sockets));
}

TEST_CASE("doctor: of unfinished checkpoints only what was committed too is removed") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  const auto write = [&](const std::string& where, const std::string& content) {
    make_folders((storage / "checkpoints" / where).parent_path());
    write_file_atomic(storage / "checkpoints" / where, content);
  };
  const std::string manifest =
      R"({"format":"dtrain-checkpoint","version":1,"number":0,"attempt":1,"step":10,)"
      R"("metrics":{},"created":"2026-01-02T03:04:05Z","files":[{"path":"w","size":3,"sha256":")" +
      std::string(64, 'a') + "\"}]}";
  write("checkpoint_000000/manifest.json", manifest);
  write("checkpoint_000000/w", "abc");
  for (const char* name : {"attempt-1-step-10", "attempt-1-step-20", "attempt-2-step-30"}) {
    write(".tmp/" + std::string(name) + "/shard-00000-of-00001/w", "abcdef");
    make_old(storage / "checkpoints/.tmp" / name);
  }
  const fs::path fresh = storage / "checkpoints/.tmp/attempt-2-step-30";
  write(".tmp/attempt-2-step-30/more", "");  // it is being written
  write(".tmp/deleted-x/w", "abc");
  make_old(storage / "checkpoints/.tmp/deleted-x");
  const auto look = [&] {
    return link::unfinished_checkpoints(kMnist, storage, std::chrono::system_clock::now());
  };
  const std::vector<link::Unfinished> found = look();
  REQUIRE(found.size() == 2);
  CHECK(found[0].committed);
  CHECK_FALSE(found[1].committed);
  Findings seen;
  link::judge_unfinished(found, false, seen);
  REQUIRE(seen.found.size() == 2);
  CHECK(seen.found[0].fixable);
  CHECK_FALSE(seen.found[1].fixable);
  CHECK(seen.found[1].severity == "note");
  Findings fixed;
  link::judge_unfinished(found, true, fixed);
  CHECK(fixed.found[0].fixed);
  CHECK_FALSE(fs::exists(found[0].path));
  CHECK(fs::exists(found[1].path));
  CHECK(fs::exists(fresh));

  // A committed one that is damaged proves nothing.
  write(".tmp/attempt-1-step-10/w", "abcdef");
  make_old(storage / "checkpoints/.tmp/attempt-1-step-10");
  write("checkpoint_000000/w", "a");
  REQUIRE(look().size() == 2);
  CHECK_FALSE(look()[0].committed);
}

TEST_CASE("doctor: limits that are well say nothing, low ones what they cost") {
  Findings well;
  judge_limits({}, well);
  CHECK(well.found.empty());
  Limits low;
  low.open_files = 1024;
  low.processes = 100;
  low.locked_memory = 65536;
  low.ptrace_scope = "1";
  Findings few;
  judge_limits(low, few);
  CHECK(few.found.size() == 3);  // locked memory matters with InfiniBand
  low.infiniband = true;
  low.is_root = true;
  Findings root;
  judge_limits(low, root);
  CHECK(root.found.size() == 2);
  for (const Finding& each : root.found) CHECK(each.severity == "note");
}

TEST_CASE("doctor: a program is asked, and given up when it hangs") {
  const std::vector<std::string> env{"PATH=/usr/bin:/bin"};
  const auto said = ask_program("sh -c 'echo one; echo two >&2; exit 3'", env, 60s);
  REQUIRE(said);
  CHECK(said->first == 3);
  CHECK(said->second == "one\ntwo");
  CHECK(ask_program("no-such-program-at-all", env, 60s)->first == 127);
  CHECK_FALSE(ask_program("sleep 1000", env, 50ms));
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

TEST_CASE("doctor: no driver, no word") {
  const TemporaryFolder folder;
  CHECK_FALSE(look_at_driver({}, folder / "nvidia"));
}

TEST_CASE("doctor: the driver's GPUs are those that may be opened, and nvidia-smi is asked") {
  const TemporaryFolder folder;
  for (const char* gpu : {"0", "1"}) {
    const fs::path information = folder / "nvidia/gpus" / gpu / "information";
    fs::create_directories(information.parent_path());
    write_file_atomic(information, std::string("Model: \t H100\nDevice Minor: \t ") + gpu + "\n");
  }
  write_file_atomic(folder / "nvidia/version", "NVRM version: 580\n");
  write_file_atomic(folder / "nvidia0", "");  // the other is somebody else's
  write_file_atomic(folder / "nvidia-smi", "#!/bin/sh\n[ $1 = -L ] && echo GPU 0: H100\n", 0755);
  const std::vector<std::string> env{"PATH=" + folder.path().string() + ":/usr/bin:/bin"};
  const auto driver = look_at_driver(env, folder / "nvidia", folder.path());
  ::waitpid(-1, nullptr, 0);
  REQUIRE(driver);
  CHECK(driver->gpus == std::vector<int>{0});
  CHECK(driver->answered);
  CHECK(driver->exit_code == 0);
  CHECK(driver->said == "GPU 0: H100");
  Findings findings;
  Driver told = *driver;
  told.kernel_log.clear();
  judge_driver(told, findings);
  CHECK(findings.found.empty());
  CHECK(findings.looked == std::vector<std::string>{"drivers: nvidia-smi lists 1 GPU"});
}

TEST_CASE("doctor: what nvidia-smi says is told") {
  const auto judge = [](const Driver& driver) {
    Findings findings;
    judge_driver(driver, findings);
    return findings;
  };
  Driver well;
  well.answered = true;
  well.gpus = {0, 1};
  well.said = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 1g.10gb Device 0: (UUID: x)\nGPU 1: NVIDIA";
  CHECK(judge(well).found.empty());
  Driver lost = well;
  lost.gpus = {0, 1, 2};
  CHECK(only(judge(lost)).what == "nvidia-smi lists 2 of the 3 GPUs that the driver has");
  Driver hangs;
  CHECK(only(judge(hangs)).severity == "problem");
  Driver mismatch = well;
  mismatch.exit_code = 18;
  mismatch.said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library: 580";
  const Findings mismatched = judge(mismatch);
  CHECK(only(mismatched).what ==
        "nvidia-smi ends with exit code 18: Failed to initialize NVML: Driver/library version "
        "mismatch");
  CHECK(only(mismatched).hint.find("reboot") != std::string::npos);
  Driver missing = well;
  missing.exit_code = 127;
  CHECK(only(judge(missing)).severity == "note");
  Driver xid = well;
  xid.up = 100h;
  const auto line = [](std::chrono::microseconds at, const std::string& text) {
    return "6,1," + std::to_string(at.count()) + ",-;NVRM: Xid (PCI:0000:01:00): " + text + "\n";
  };
  xid.kernel_log = {line(1h, "13, long ago"), line(99h, "79, GPU has fallen off the bus"), "?"};
  CHECK(only(judge(xid)).what ==
        "1 error of a GPU in the kernel's log of the last day, the last: NVRM: Xid "
        "(PCI:0000:01:00): 79, GPU has fallen off the bus");
}
