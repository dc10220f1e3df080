#include <doctest/doctest.h>

#include "agent/head/server/pair_tests.hpp"

using namespace dtrain;
using head::PairTests;

TEST_CASE("pair tests: a node that was killed while it was dialled is no way that is broken") {
  boost::asio::io_context context;
  std::string test;
  const auto tell = [&](const NodeId&, const wire::HeadMessage& message) {
    if (const auto* open = std::get_if<wire::OpenPair>(&message)) test = open->test;
  };
  std::vector<std::string> told;
  const auto result = [&](const JobId&, int, const std::vector<head::Nodes::BrokenPair>& broken) {
    told.push_back(broken.empty() ? "all reach each other" : broken.front().words);
  };
  PairTests tests(context, tell, result);
  const NodeId first("node-0");
  const NodeId second("node-1");
  tests.start(JobId("job-abcdef"), 2, {{first, "10.0.0.1"}, {second, "10.0.0.2"}});
  tests.opened(first, {test, 1001, {}});
  tests.opened(second, {test, 1002, {}});
  tests.dialled(first, {test, {}});
  CHECK(told.empty());
  SUBCASE("it is heard of in a moment, and the test is dropped") {
    tests.dialled(second, {test, {{first, "10.0.0.1", 1001, "stream truncated"}}});
    CHECK(told.empty());
    tests.gone(first);
    context.run();
    CHECK(told.empty());
  }
  SUBCASE("where it is still there the way is broken") {
    tests.dialled(second, {test, {{first, "10.0.0.1", 1001, "connection refused"}}});
    context.run();
    CHECK(told == std::vector<std::string>{"node-1 (10.0.0.2) does not reach node-0 at 10.0.0.1 "
                                           "port 1001: connection refused"});
  }
  SUBCASE("that all reach each other is told at once") {
    tests.dialled(second, {test, {}});
    CHECK(told == std::vector<std::string>{"all reach each other"});
  }
}
