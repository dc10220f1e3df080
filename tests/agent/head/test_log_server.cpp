#include <doctest/doctest.h>
#include <fcntl.h>

#include "agent/head/log_server.hpp"
#include "agent/head/setup.hpp"
#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

TEST_CASE("a follower's query is read strictly") {
  const head::FollowQuery all = head::parse_follow_query("");
  CHECK(all.logs);
  CHECK(all.events);
  CHECK(all.follow);
  CHECK_FALSE(all.rank);
  const head::FollowQuery some =
      head::parse_follow_query("logs=1&events=0&follow=0&rank=3&attempt=2&stream=err&tail=10");
  CHECK_FALSE(some.events);
  CHECK_FALSE(some.follow);
  CHECK(some.rank == 3);
  CHECK(some.attempt == 2);
  CHECK(some.stream == "err");
  CHECK(some.tail == 10);
  for (const char* wrong : {"rank=", "rank=-1", "rank=1x", "rank=99999999999", "follow=yes",
                            "stream=both", "colour=1", "&", "tail"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(head::parse_follow_query(wrong), Error);
  }
}

TEST_CASE("the last lines of a file are found from its end") {
  const testing::TemporaryFolder folder;
  const fs::path path = folder / "log";
  const auto tail = [&](const std::string& content, int lines) {
    write_file_atomic(path, content);
    const UniqueFd fd = open_file(path, O_RDONLY);
    return content.substr(head::tail_offset(fd.get(), lines));
  };
  CHECK(tail("a\nb\nc\n", 2) == "b\nc\n");
  CHECK(tail("a\nb\nc", 2) == "b\nc");
  CHECK(tail("a\nb\nc\n", 9) == "a\nb\nc\n");
  CHECK(tail("a\nb\nc\n", 0).empty());
  CHECK(tail("", 3).empty());
  CHECK(tail("\n\n\n", 2) == "\n\n");
  // Across the blocks that are read.
  const std::string line(70000, 'x');
  CHECK(tail(line + "\n" + line + "\n" + line, 2) == line + "\n" + line);
}

TEST_CASE(
    "a head signs for the nodes that it lets in, and an init that is repeated changes nothing") {
  const testing::TemporaryFolder folder;
  const paths::HeadRoot root{folder.path() / "head"};
  const head::HeadConfig config{ClusterId("lab-abcdef"), "lab", "local", 2, 0, 0};
  head::init_head(root, config);
  const std::string ca = read_file(root.ca() / "cert.pem");
  head::HeadConfig running = head::read_head_config(root);
  running.port = 46512;
  head::write_head_config(root, running);
  head::init_head(root, config);
  CHECK(read_file(root.ca() / "cert.pem") == ca);
  CHECK(head::read_head_config(root).port == 46512);

  const NodeId node("node-0");
  CHECK_FALSE(head::is_let_in(root, node));
  CHECK_FALSE(head::is_let_in(root, NodeId("../head.json")));
  const std::string request =
      node::init_node({folder.path() / "node"}, ClusterId("lab-abcdef"), node);
  CHECK_THROWS_AS(head::sign_node(root, NodeId("node-1"), request), Error);
  CHECK_FALSE(head::is_let_in(root, NodeId("node-1")));
  node::install_identity({folder.path() / "node"}, head::sign_node(root, node, request));
  CHECK(head::is_let_in(root, node));
}
