#include "tests/launcher/files/sync_world.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <sstream>

#include "launcher/core/error.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/sync_wire.hpp"

namespace dtrain::testing {

SyncWorld::SyncWorld() {
  fs::create_directory(source());
  fs::create_directory(home());
  mount.target = "~/x";
  mount.source = source();
  receiving.home = home();
  receiving.state = state();
  sending.silence = receiving.silence = std::chrono::seconds(30);
}

void SyncWorld::write(const std::string& path, const std::string& content) const {
  write_file(source() / path, content);
}
void SyncWorld::write_there(const std::string& path, const std::string& content) const {
  write_file(target() / path, content);
}
std::string SyncWorld::read_there(const std::string& path) const {
  return slurp(target() / path);
}

SyncOutcome SyncWorld::sync() {
  return sync({mount});
}

SyncOutcome SyncWorld::sync(const std::vector<SyncMount>& mounts) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  auto received = std::async(std::launch::async, [&] {
    FramedStream stream(theirs.get(), theirs.get());
    SyncOutcome outcome = receive_trees(stream, receiving);
    // The stream stands between messages.
    stream.send(FrameKind::text, "after");
    return outcome;
  });
  FramedStream stream(ours.get(), ours.get());
  SyncOutcome sent;
  try {
    sent = send_trees(stream, mounts, sending);
  } catch (const Error& error) {
    bool there_too = false;
    try {
      received.get();
    } catch (const Error& other) {
      there_too = true;
      CHECK(other.message() == error.message());
    }
    CHECK(there_too);
    throw;
  }
  const SyncOutcome there = received.get();
  CHECK(stream.read()->bytes == "after");
  SyncOutcome bare = sent;
  for (MountOutcome& each : bare.mounts) each.left_out.clear();
  CHECK(sync::outcome_to_json(bare) == sync::outcome_to_json(there));
  return sent;
}

void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string picture(const fs::path& folder, bool times) {
  std::vector<std::string> lines;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    struct stat status {};
    REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
    std::ostringstream line;
    line << entry.path().lexically_relative(folder).string() << " ";
    if (S_ISLNK(status.st_mode)) {
      line << "-> " << fs::read_symlink(entry.path()).string();
    } else {
      line << std::oct << (status.st_mode & 07777) << std::dec;
    }
    if (S_ISREG(status.st_mode)) {
      line << " " << status.st_size << " " << sum_file(entry.path()).sha256;
      if (times) line << " " << identity_of(status).mtime_ns;
    }
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> left_overs(const fs::path& folder) {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kStagingPrefix) || name.ends_with(".journal")) found.push_back(name);
  }
  return found;
}

}  // namespace dtrain::testing
