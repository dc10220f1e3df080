#include "agent/head/server/config_file.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>

#include "agent/node/config.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

const ClusterId kCluster("lab-abcdef");
const NodeId kNode("node-1");

// A head's folder with one node let in, and its config as a head that runs has it.
struct Running {
  TemporaryFolder folder;
  paths::HeadRoot root{folder.path() / "head"};
  boost::asio::io_context context;
  std::optional<head::ConfigFile> config;

  Running() {
    head::init_head(root, {kCluster, "lab", "ssh", 3, 0, 0});
    head::sign_node(root, kNode,
                    node::init_node(paths::NodeRoot{folder.path() / "node-1"}, kCluster, kNode));
    config.emplace(context, root, head::read_head_config(root));
  }
  // Waits for the worker's answer.
  template <typename Start>
  std::optional<Error> answer(const Start& start) {
    std::optional<std::optional<Error>> heard;
    context.restart();
    const auto work = boost::asio::make_work_guard(context);
    start([&](const std::optional<Error>& failed) { heard = failed; });
    CHECK_FALSE(heard);
    while (!heard) context.run_one();
    return *heard;
  }
};

}  // namespace

TEST_CASE("config file: a change is seen at once, and answered when it is on the disk") {
  Running head;
  const auto failed = head.answer([&](auto done) {
    head.config->change([](head::HeadConfig& config) { config.expected_nodes = 7; }, done);
    CHECK((*head.config)->expected_nodes == 7);
  });
  CHECK_FALSE(failed);
  CHECK(head::read_head_config(head.root).expected_nodes == 7);
}

TEST_CASE("config file: who is shut out may not come from the call on, and never again") {
  Running head;
  CHECK(head.config->is_let_in(kNode));
  const auto failed = head.answer([&](auto done) {
    head.config->shut_out(kNode, true, done);
    CHECK_FALSE(head.config->is_let_in(kNode));
  });
  CHECK_FALSE(failed);
  CHECK_FALSE(head.config->is_let_in(kNode));
  CHECK_FALSE(head::is_let_in(head.root, kNode));
  CHECK(head::read_head_config(head.root).expected_nodes == 2);
}

TEST_CASE("config file: who could not be shut out stays, and is counted, at each try") {
  Running head;
  fs::path in_the_way;
  SUBCASE("head.json cannot be written") {
    fs::remove(head.root.config());
    in_the_way = head.root.config();
  }
  SUBCASE("the list cannot be changed") {
    in_the_way = head.root.root / "nodes" / kNode.str();
    REQUIRE(fs::remove(in_the_way));
  }
  fs::create_directories(in_the_way / "folder");
  for (int i = 0; i < 3; ++i) {
    const auto failed = head.answer([&](auto done) { head.config->shut_out(kNode, true, done); });
    REQUIRE(failed);
    CHECK(failed->code() == ErrorCode::io);
    CHECK((*head.config)->expected_nodes == 3);
    CHECK(head.config->is_let_in(kNode));
    CHECK(head::is_let_in(head.root, kNode));
    if (in_the_way != head.root.config()) {
      CHECK(head::read_head_config(head.root).expected_nodes == 3);
    }
  }
  fs::remove_all(in_the_way / "folder");
  if (in_the_way == head.root.config()) fs::remove_all(in_the_way);
  CHECK_FALSE(head.answer([&](auto done) { head.config->shut_out(kNode, true, done); }));
  CHECK_FALSE(head.config->is_let_in(kNode));
  CHECK((*head.config)->expected_nodes == 2);
  CHECK(head::read_head_config(head.root).expected_nodes == 2);
}

TEST_CASE("config file: who is not known to have left for good stays") {
  if (::geteuid() == 0) return;  // no mode stops it
  Running head;
  fs::permissions(head.root.root / "nodes", fs::perms(0300));
  const auto failed = head.answer([&](auto done) { head.config->shut_out(kNode, true, done); });
  CHECK(failed);
  CHECK(head.config->is_let_in(kNode));
  fs::permissions(head.root.root / "nodes", fs::perms(0700));
}

TEST_CASE("config file: a node whose place is taken is not counted when it is shut out") {
  Running head;
  const int expected = (*head.config)->expected_nodes;
  CHECK_FALSE(head.answer([&](auto done) { head.config->shut_out(kNode, false, done); }));
  CHECK_FALSE(head.config->is_let_in(kNode));
  CHECK((*head.config)->expected_nodes == expected);
  CHECK(head::read_head_config(head.root).expected_nodes == expected);
}

TEST_CASE("config file: a change while a node leaves counts it out too") {
  Running head;
  CHECK_FALSE(head.answer([&](auto done) {
    head.config->shut_out(kNode, true, [](const auto& failed) { CHECK_FALSE(failed); });
    head.config->change([](head::HeadConfig& config) { config.expected_nodes = 7; }, done);
  }));
  CHECK((*head.config)->expected_nodes == 6);
  CHECK(head::read_head_config(head.root).expected_nodes == 6);
}

TEST_CASE("config file: what cannot be written is told") {
  Running head;
  fs::remove(head.root.config());
  fs::create_directories(head.root.config() / "in the way");
  const auto failed = head.answer([&](auto done) { head.config->change([](auto&) {}, done); });
  REQUIRE(failed);
  CHECK(failed->code() == ErrorCode::io);
  fs::remove_all(head.root.config());
  CHECK_FALSE(head.answer([&](auto done) { head.config->change([](auto&) {}, done); }));
  CHECK(head::read_head_config(head.root).name == "lab");
}
