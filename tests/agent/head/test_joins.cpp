#include "agent/head/joins.hpp"

#include <doctest/doctest.h>

#include "agent/head/join_script.hpp"
#include "agent/head/setup.hpp"
#include "agent/node/config.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using dtrain::testing::TemporaryFolder;
using head::JoinRecord;
using head::JoinState;

namespace {

const ClusterId kJoinCluster("lab-abcdef");
const NodeId kJoinNode("joined-1");
const std::string kJoinAgent(64, 'a');  // its sum
const WallTime kThen = from_millis(1767323045678);

JoinRecord record() {
  JoinRecord record;
  record.node = kJoinNode;
  record.type = "gpu";
  record.credential = "00ff";
  record.valid_for = 1800s;
  record.issued = kThen;
  record.begins = kThen + 1h;
  return record;
}

std::string refusal(const JoinRecord* record, const std::string& shown, WallTime now) {
  try {
    head::check_credential(record, kJoinNode, shown, now);
  } catch (const Error& error) {
    const bool later = error.message().ends_with("not valid yet");
    CHECK(error.code() == (later ? ErrorCode::conflict : ErrorCode::denied));
    return error.message();
  }
  return "";
}

head::JoinScript parts_of_script(const fs::path& folder) {
  const paths::HeadRoot root{folder / "head"};
  head::init_head(root, {kJoinCluster, "lab", "ssh", 1, 0, 0});
  head::JoinScript parts;
  parts.cluster = kJoinCluster;
  parts.node = kJoinNode;
  parts.addresses = {"10.0.0.5", "fd00::5"};
  parts.port = 28500;
  parts.credential = head::join_credential(root, kJoinNode, std::chrono::system_clock::now());
  parts.ca_pem = read_file(root.ca() / "cert.pem");
  parts.agent = kJoinAgent;
  return parts;
}

}  // namespace

TEST_CASE("joins: a credential counts from its beginning to its end, by the head's clock") {
  JoinRecord join = record();
  const std::string of = "the join credential of joined-1 ";
  const WallTime begin = kThen + 1h;
  CHECK(refusal(&join, "00ff", begin - 1ms) == of + "is not valid yet");
  CHECK(head::state_of(join, begin - 1ms) == JoinState::waiting);
  CHECK(refusal(&join, "00ff", begin) == "");
  CHECK(head::state_of(join, begin) == JoinState::valid);
  CHECK(refusal(&join, "00ff", begin + 1800s - 1ms) == "");
  CHECK(refusal(&join, "00ff", begin + 1800s) ==
        of + "expired at 2026-01-02T04:34:05.678Z by the head's clock");
  CHECK(head::state_of(join, begin + 1800s) == JoinState::expired);
  join.key = "key";
  CHECK(head::state_of(join, begin + 1800s) == JoinState::used);
  CHECK(refusal(&join, "00ff", begin + 1800s) != "");
  CHECK(refusal(&join, "00fe", begin) == of + "was taken back");
  CHECK(refusal(nullptr, "00ff", begin) == of + "was taken back");
  join.begins.reset();
  CHECK(refusal(&join, "00ff", begin) == of + "is not valid yet");
}

TEST_CASE("joins: what is kept of them is read again") {
  const TemporaryFolder folder;
  const paths::HeadRoot root{folder.path()};
  CHECK(head::read_joins(root).empty());
  JoinRecord waiting = record();
  waiting.node = NodeId("joined-2");
  waiting.begins.reset();
  JoinRecord used = record();
  used.key = "key";
  used.incarnation = "machine";
  used.certificates = "pem";
  JoinRecord half = record();  // the head died before anybody was answered
  half.node = NodeId("joined-3");
  half.key = "key";
  for (const JoinRecord& each : {waiting, used, half}) head::write_join(root, each);
  std::vector<JoinRecord> all = head::read_joins(root);
  REQUIRE(all.size() == 3);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  CHECK(all[0].certificates == "pem");
  CHECK(all[0].begins == kThen + 1h);
  CHECK(all[0].incarnation == "machine");
  CHECK(all[0].valid_for == 1800s);
  CHECK_FALSE(all[1].begins);
  CHECK(all[1].type == "gpu");
  CHECK_FALSE(all[2].used());
  head::remove_join(root, kJoinNode);
  head::remove_join(root, kJoinNode);  // again is fine
  CHECK(head::read_joins(root).size() == 2);
  // One that cannot be read is not taken for none.
  write_file_atomic(root.join(kJoinNode), "{");
  CHECK_THROWS_AS(head::read_joins(root), Error);
  CHECK_THROWS_AS(head::shut_out(root, kJoinNode), Error);
}

TEST_CASE("joins: no host gets the name of a machine that joins, and who is shut out comes never") {
  const TemporaryFolder folder;
  const paths::HeadRoot root{folder.path() / "head"};
  head::init_head(root, {kJoinCluster, "lab", "ssh", 1, 0, 0});
  head::write_join(root, record());
  const std::string request =
      node::init_node(paths::NodeRoot{folder.path() / "node"}, kJoinCluster, kJoinNode);
  CHECK_THROWS_WITH_AS(head::sign_node(root, kJoinNode, request),
                       doctest::Contains("joins by itself"), Error);
  head::let_in(root, kJoinNode);
  head::shut_out(root, kJoinNode);
  CHECK(head::read_joins(root).empty());
  CHECK_FALSE(head::is_let_in(root, kJoinNode));
  head::sign_node(root, kJoinNode, request);
}

TEST_CASE("joins: the name of one that was given a certificate is nobody's while that may last") {
  const TemporaryFolder folder;
  const paths::HeadRoot root{folder.path() / "head"};
  head::init_head(root, {kJoinCluster, "lab", "ssh", 1, 0, 0});
  JoinRecord used = record();
  used.key = "key";
  used.certificates = "pem";
  head::write_join(root, used);
  head::let_in(root, kJoinNode);
  head::shut_out(root, kJoinNode);
  CHECK_FALSE(head::is_let_in(root, kJoinNode));
  std::optional<JoinRecord> kept = head::read_join(root, kJoinNode);
  REQUIRE(kept);
  REQUIRE(kept->revoked);
  CHECK(refusal(&*kept, "00ff", kThen + 1h) == "the join credential of joined-1 was taken back");
  CHECK(head::state_of(*kept, *kept->revoked) == JoinState::revoked);
  CHECK(head::state_of(*kept, *kept->revoked + wire::kCertificateLife) == JoinState::expired);
  const std::string request =
      node::init_node(paths::NodeRoot{folder.path() / "node"}, kJoinCluster, kJoinNode);
  CHECK_THROWS_WITH_AS(head::sign_node(root, kJoinNode, request),
                       doctest::Contains("certificate may not be over"), Error);
  kept->revoked = *kept->revoked - wire::kCertificateLife;
  head::write_join(root, *kept);
  head::sign_node(root, kJoinNode, request);
}

TEST_CASE("joins: the script is POSIX, small, and all or nothing") {
  const TemporaryFolder folder;
  head::JoinScript parts = parts_of_script(folder.path());
  const std::string script = head::join_script(parts);
  CHECK(script.size() < 5300);  // boot data has 16 KiB
  CHECK(script.find('@') == std::string::npos);
  CHECK(script.find("A='10.0.0.5 fd00::5' L=\n") != std::string::npos);
  // Of a head that moves.
  parts.place = "/shared/it's/place";
  CHECK(head::join_script(parts).find("L='/shared/it'\\''s/place'\n") != std::string::npos);
  CHECK(wire::certified_name(parts.credential.certificate_pem).uri() ==
        "dtrain://lab-abcdef/join/joined-1");
  for (const std::vector<std::string>& shell : std::vector<std::vector<std::string>>{
           {"/bin/sh"}, {"dash"}, {"bash", "--posix"}, {"busybox", "sh"}}) {
    SpawnOptions options;
    options.argv = shell;
    options.argv.push_back("-n");
    CAPTURE(shell.front());
    try {
      CHECK(capture(options, script, 10s).exit.ok());
      // Cut off anywhere, nothing of it is run.
      options.argv.pop_back();
      for (std::size_t size = 70; size < script.size() - 2; size += 97) {
        const Captured ran = capture(options, script.substr(0, size), 10s);
        CHECK_FALSE(ran.exit.ok());
        CHECK(ran.err.find("dtrain") == std::string::npos);
      }
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::not_found);  // this machine has no such shell
    }
  }
}

TEST_CASE("joins: the script starts the agent that is there, and fetches no other") {
  const TemporaryFolder folder;
  const std::string script = head::join_script(parts_of_script(folder.path()));
  const fs::path agents = folder.path() / "a home" / ".dtrain" / "agents";
  const fs::path agent = agents / kJoinAgent / "dtrain-agent";
  make_folders(agent.parent_path());
  write_file_atomic(agent, "#!/bin/sh\necho \"$@\"\nls \"$3\"\nexit 7\n");
  for (const std::vector<std::string>& shell : std::vector<std::vector<std::string>>{
           {"/bin/sh"}, {"dash"}, {"bash", "--posix"}, {"busybox", "sh"}}) {
    SpawnOptions options;
    options.argv = {"env", "HOME=" + (folder.path() / "a home").string()};
    options.argv.insert(options.argv.end(), shell.begin(), shell.end());
    options.argv.insert(options.argv.end(), {"-s", "--", "--end-within", "9"});
    CAPTURE(shell.front());
    fs::permissions(agent, fs::perms::owner_all);
    const Captured ran = capture(options, script, 60s);
    if (ran.exit.code == 127) continue;  // this machine has no such shell
    CHECK(ran.exit.code == 7);
    CHECK(ran.out.find(" --port 28500 --address 10.0.0.5 --address fd00::5 --end-within 9\n") !=
          std::string::npos);
    CHECK(ran.out.find("\ncert.pem\nkey.pem\n") != std::string::npos);
    CHECK(std::distance(fs::directory_iterator(agents), {}) == 1);  // the credential is gone
  }
}
