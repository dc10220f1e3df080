#include "agent/head/server/pair_tests.hpp"

#include <algorithm>
#include <set>

#include "launcher/core/ids.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kEachWithEach = 8;
constexpr auto kDoorLimit = 15s;
constexpr auto kDialLimit = 5s;
constexpr auto kTestLimit = 10s;
// In which the end of a node is heard of that was killed while it was dialled.
constexpr auto kGoneLimit = 1s;

}  // namespace

std::vector<std::vector<std::size_t>> who_dials_whom(std::size_t count) {
  std::vector<std::set<std::size_t>> plan(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (count <= kEachWithEach) {
      for (std::size_t j = 0; j < count; ++j) plan[i].insert(j);
    } else {
      plan[i].insert((i + 1) % count);
      plan[i].insert(0);
      plan[0].insert(i);
    }
  }
  std::vector<std::vector<std::size_t>> result;
  for (std::size_t i = 0; i < count; ++i) {
    plan[i].erase(i);
    result.emplace_back(plan[i].begin(), plan[i].end());
  }
  return result;
}

struct PairTests::Test {
  struct Member {
    NodeId node;
    std::string address;
    std::string token;
    int port = 0;
    bool answered = false;  // to OpenPair
    bool dialled = false;
  };
  std::string name;
  JobId job;
  int attempt = 0;
  std::vector<Member> members;
  std::vector<Nodes::BrokenPair> broken;
  bool dialling = false;
  asio::steady_timer limit;

  Member* member(const NodeId& node) {
    for (Member& each : members) {
      if (each.node == node) return &each;
    }
    return nullptr;
  }
};

PairTests::~PairTests() = default;

PairTests::PairTests(asio::io_context& context, Tell tell, Result result)
    : context_(context), tell_(std::move(tell)), result_(std::move(result)) {}

PairTests::Test* PairTests::find(const std::string& name) {
  const auto found = tests_.find(name);
  return found == tests_.end() ? nullptr : found->second.get();
}

void PairTests::start(const JobId& job, int attempt, std::vector<Nodes::PairMember> members) {
  for (auto at = tests_.begin(); at != tests_.end();) {
    const bool same = at->second->job == job && at->second->attempt == attempt;
    if (same) close(*at->second);
    at = same ? tests_.erase(at) : std::next(at);
  }
  auto test = std::make_unique<Test>(
      Test{random_hex(8), job, attempt, {}, {}, false, asio::steady_timer(context_)});
  for (Nodes::PairMember& each : members) {
    test->members.push_back({each.node, std::move(each.address), random_hex(16), 0, false, false});
  }
  give_up_after(*test, kTestLimit);
  Test& started = *test;
  tests_[started.name] = std::move(test);
  for (const Test::Member& each : started.members) {
    tell_(each.node, wire::OpenPair{started.name, each.token, kDoorLimit});
  }
}

void PairTests::opened(const NodeId& node, const wire::PairOpened& message) {
  Test* test = find(message.test);
  Test::Member* member = test == nullptr ? nullptr : test->member(node);
  if (member == nullptr || member->answered) return;
  member->answered = true;
  member->port = message.port;
  if (message.error) {
    test->broken.push_back({node.str() + " cannot open a port: " + message.error->what(), {node}});
    finish(message.test);
    return;
  }
  if (std::all_of(test->members.begin(), test->members.end(),
                  [](const Test::Member& each) { return each.answered; })) {
    dial(*test);
  }
}

void PairTests::dial(Test& test) {
  test.dialling = true;
  const auto plan = who_dials_whom(test.members.size());
  for (std::size_t i = 0; i < test.members.size(); ++i) {
    wire::DialPairs request{test.name, {}, kDialLimit};
    for (const std::size_t other : plan[i]) {
      const Test::Member& target = test.members[other];
      request.targets.push_back({target.node, target.address, target.port, target.token});
    }
    tell_(test.members[i].node, request);
  }
}

void PairTests::dialled(const NodeId& node, const wire::PairResult& message) {
  Test* test = find(message.test);
  Test::Member* member = test == nullptr ? nullptr : test->member(node);
  if (member == nullptr || !test->dialling || member->dialled) return;
  member->dialled = true;
  for (const wire::PairResult::Failure& each : message.failures) {
    test->broken.push_back({node.str() + " (" + member->address + ") does not reach " +
                                each.node.str() + " at " + each.address + " port " +
                                std::to_string(each.port) + ": " + each.reason,
                            {node, each.node}});
  }
  if (std::all_of(test->members.begin(), test->members.end(),
                  [](const Test::Member& each) { return each.dialled; })) {
    // Where one has gone it is no fault of the way, and gone() drops the test.
    if (!test->broken.empty()) return give_up_after(*test, kGoneLimit);
    finish(message.test);
  }
}

void PairTests::give_up_after(Test& test, std::chrono::seconds time) {
  test.limit.expires_after(time);
  test.limit.async_wait([this, name = test.name](boost::system::error_code stopped) {
    if (!stopped) give_up(name);
  });
}

// Who has not answered is what is wrong.
void PairTests::give_up(const std::string& name) {
  Test* test = find(name);
  if (test == nullptr) return;
  for (const Test::Member& each : test->members) {
    if (test->dialling ? each.dialled : each.answered) continue;
    test->broken.push_back(
        {each.node.str() + " did not answer in time whether it reaches others", {each.node}});
  }
  finish(name);
}

void PairTests::close(const Test& test) {
  for (const Test::Member& each : test.members) tell_(each.node, wire::ClosePair{test.name});
}

void PairTests::finish(const std::string& name) {
  const auto found = tests_.find(name);
  const std::unique_ptr<Test> test = std::move(found->second);
  tests_.erase(found);
  close(*test);
  result_(test->job, test->attempt, test->broken);
}

void PairTests::gone(const NodeId& node) {
  for (auto at = tests_.begin(); at != tests_.end();) {
    const bool part = at->second->member(node) != nullptr;
    if (part) close(*at->second);
    at = part ? tests_.erase(at) : std::next(at);
  }
}

nlohmann::json PairTests::open_ports() const {
  nlohmann::json ports = nlohmann::json::array();
  for (const auto& [name, test] : tests_) {
    for (const Test::Member& each : test->members) {
      if (each.port == 0) continue;
      nlohmann::json row;
      row["node"] = each.node.str();
      row["port"] = each.port;
      row["purpose"] = "pair test of " + test->job.str();
      ports.push_back(std::move(row));
    }
  }
  return ports;
}

}  // namespace dtrain::head
