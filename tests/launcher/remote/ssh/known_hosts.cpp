#include "launcher/remote/ssh/known_hosts.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <thread>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/keyring.hpp"
#include "launcher/remote/ssh/new_key.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::ssh;

namespace {

const HostKey kKey{"ssh-ed25519",
                   "AAAAC3NzaC1lZDI1NTE5AAAAIBhFRYIyJzMzt0gq6tNOdSYAgYhuyQn3DpcgFvTPQ1FI"};
const HostKey kOther{"ssh-ed25519",
                     "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"};

KnownKeys read(const std::string& text, const std::string& name) {
  KnownKeys known;
  read_known_hosts(text, name, "file", known);
  return known;
}

bool knows(const std::string& names, const std::string& name) {
  return judge(read(names + " ssh-ed25519 " + kKey.blob + "\n", name), kKey) == KeyVerdict::known;
}

}  // namespace

TEST_CASE("known_hosts: names, patterns, ports, negation") {
  CHECK(knows("gpu", "gpu"));
  CHECK(knows("GPU", "gpu"));
  CHECK(knows("a,gpu,10.0.0.1", "10.0.0.1"));
  CHECK(knows("*.example.org", "gpu.example.org"));
  CHECK(knows("gpu-?", "gpu-1"));
  CHECK(knows("[gpu]:2222", "[gpu]:2222"));
  CHECK(knows("*", "[gpu]:2222"));
  CHECK_FALSE(knows("gpu", "[gpu]:2222"));
  CHECK_FALSE(knows("gpu", "gpu2"));
  CHECK_FALSE(knows("gpu-?", "gpu-12"));
  CHECK_FALSE(knows("*.example.org,!bad.example.org", "bad.example.org"));
  CHECK_FALSE(knows("!gpu", "gpu"));
}

TEST_CASE("known_hosts: hashed names, as ssh-keygen makes them") {
  const testing::TemporaryFolder folder;
  const fs::path file = folder / "known";
  write_file_atomic(
      file, "gpu ssh-ed25519 " + kKey.blob + "\n[gpu]:22022 ssh-ed25519 " + kOther.blob + "\n");
  SpawnOptions options;
  options.argv = {"ssh-keygen", "-q", "-H", "-f", file.native()};
  if (!capture(options, {}, std::chrono::seconds(10)).exit.ok()) {
    MESSAGE("skipped: there is no ssh-keygen here");
    return;
  }
  CHECK(read_file(file).find("gpu") == std::string::npos);
  CHECK(judge(known_keys({file}, "gpu"), kKey) == KeyVerdict::known);
  CHECK(judge(known_keys({file}, "[gpu]:22022"), kOther) == KeyVerdict::known);
  CHECK(judge(known_keys({file}, "[gpu]:22022"), kKey) == KeyVerdict::changed);
  CHECK(judge(known_keys({file, folder / "missing"}, "cpu"), kKey) == KeyVerdict::unknown);

  options.argv = {"ssh-keygen", "-l", "-f", file.native()};
  const Captured listed = capture(options, {}, std::chrono::seconds(10));
  CHECK(listed.out.find(fingerprint(kKey)) != std::string::npos);
}

TEST_CASE("known_hosts: markers, comments and broken lines") {
  const std::string text = "# gpu ssh-ed25519 " + kKey.blob + "\n\n  \t\n" +
                           "@revoked * ssh-ed25519 " + kOther.blob + " stolen\n" +
                           "@cert-authority *.org ssh-ed25519 " + kOther.blob +
                           "\n@later gpu ssh-ed25519 " + kOther.blob +
                           "\ngpu ssh-ed25519\ngpu ssh-ed25519 ***\n\tgpu\tssh-ed25519 " +
                           kKey.blob + " with a comment\r\n";
  const KnownKeys known = read(text, "gpu");
  REQUIRE(known.keys.size() == 1);
  CHECK(known.keys[0].line == 9);
  CHECK(judge(known, kKey) == KeyVerdict::known);
  CHECK(judge(known, kOther) == KeyVerdict::revoked);
  CHECK(known.authorities.empty());
  CHECK(read(text, "a.org").authorities.size() == 1);
  CHECK(judge(read(text, "a.org"), kKey) == KeyVerdict::unknown);
}

TEST_CASE("pin: once, private, by several at a time, behind a line without its end") {
  const testing::TemporaryFolder folder;
  const fs::path file = folder.path() / "a/pinned";
  fs::create_directory(folder / "a");
  write_file_atomic(file, "zero ssh-ed25519 " + kKey.blob);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 4; ++n) pin(file, "host-" + std::to_string((i + n) % 4), kKey);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(split(read_file(file), '\n').size() == 6);  // five lines
  for (const char* name : {"zero", "host-0", "host-1", "host-2", "host-3"}) {
    CHECK(judge(known_keys({file}, name), kKey) == KeyVerdict::known);
  }
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("change_pins: those lines alone, of a name and a key; all in one") {
  const testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "known_hosts";
  const NewKey other = make_key();
  change_pins(file, {}, {{"i-1", kKey}});  // there is none
  change_pins(file, {{"i-1", kKey}, {"i-2", kKey}, {"i-1", kKey}}, {});
  CHECK(split(read_file(file), '\n').size() == 3);  // two lines
  write_file_atomic(file, "# mine\n" + read_file(file) + "i-1 " + other.public_line());
  change_pins(file, {}, {{"i-1", kKey}});
  CHECK(read_file(file) ==
        "# mine\ni-2 " + kKey.type + " " + kKey.blob + "\ni-1 " + other.public_line());
  CHECK(judge(known_keys({file}, "i-1"), kKey) == KeyVerdict::changed);
  change_pins(file, {{"i-3", kOther}}, {{"i-2", kKey}});
  CHECK(judge(known_keys({file}, "i-3"), kOther) == KeyVerdict::known);
  CHECK(judge(known_keys({file}, "i-2"), kKey) == KeyVerdict::unknown);
}

TEST_CASE("a new key is one that ssh-keygen reads, and another each time") {
  const testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "key";
  const NewKey key = make_key();
  CHECK(key.public_key != make_key().public_key);
  write_file_atomic(file, key.private_text);
  SpawnOptions options;
  options.argv = {"ssh-keygen", "-y", "-f", file.string()};
  CHECK(capture(options, {}, std::chrono::seconds(60)).out == key.public_line() + "\n");
  CHECK(Keyring().look(file).public_blob == key.public_key.blob);
}

TEST_CASE("order_algorithms: those of known keys first") {
  const std::vector<std::string> ours = {"ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512",
                                         "rsa-sha2-256"};
  CHECK(order_algorithms(ours, {}) == ours);
  KnownKeys known;
  known.keys.push_back({{"ssh-rsa", "x"}, "file", 1});
  CHECK(order_algorithms(ours, known) == std::vector<std::string>{"rsa-sha2-512", "rsa-sha2-256",
                                                                  "ssh-ed25519",
                                                                  "ecdsa-sha2-nistp256"});
}
