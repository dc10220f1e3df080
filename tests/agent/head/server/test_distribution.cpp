#include "agent/head/server/distribution.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

using namespace dtrain;
using namespace std::chrono_literals;
using head::Distribution;

namespace {

// Nodes that want one thing, and what was decided for each.
struct Wanted {
  Distribution::Limits limits;
  Distribution all{limits};
  Distribution::Time now{};
  std::map<std::string, Distribution::Number> wishes;   // by node
  std::map<std::string, Distribution::Number> offers;   // by node
  std::map<std::string, std::vector<std::string>> got;  // by node: "head" or a node, each time
  std::vector<std::string> dismissed;

  Distribution::Decided noting(const std::string& node) {
    return [this, node](const std::optional<Distribution::Giver>& giver) {
      got[node].push_back(giver ? giver->node.str() : "head");
    };
  }
  void want(const std::string& node, const std::string& what = "weights") {
    wishes[node] = all.want(what, NodeId(node), noting(node));
  }
  void missed(const std::string& node) { all.missed(wishes.at(node), now, noting(node)); }
  void over(const std::string& node) { all.over(wishes.at(node), now); }
  bool whole(const std::string& node) { return all.whole(wishes.at(node), now); }
  void offer(const std::string& node, const std::string& what = "weights") {
    offers[node] = all.offer(what, {NodeId(node), "10.0.0.1", 1, "token"}, now,
                             [this, node] { dismissed.push_back(node); });
  }
  // It has all of it, and gives it where it is wanted.
  void has(const std::string& node) {
    const bool wanted = whole(node);
    over(node);
    if (wanted) offer(node);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    all.look(now);
  }
  std::string source(const std::string& node) const {
    const auto found = got.find(node);
    return found == got.end() ? "" : found->second.back();
  }
};

}  // namespace

TEST_CASE("the head gives to a few, and each that has it to as many more") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d", "e", "f", "g"}) nodes.want(node);
  CHECK(nodes.source("a") == "head");
  CHECK(nodes.source("b") == "head");
  CHECK(nodes.source("c").empty());
  nodes.has("a");
  CHECK(nodes.source("c") == "a");
  CHECK(nodes.source("d") == "a");
  CHECK(nodes.source("e") == "head");
  CHECK(nodes.source("f").empty());
  nodes.over("c");
  CHECK(nodes.source("f") == "a");
}

TEST_CASE("a node before the head, and of nodes the least busy") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d", "e", "f"}) nodes.want(node);
  nodes.has("a");  // c and d, and e of the head
  nodes.has("b");
  CHECK(nodes.source("f") == "b");
  nodes.want("g");
  CHECK(nodes.source("g") == "b");
  nodes.want("h");
  CHECK(nodes.source("h") == "head");
}

TEST_CASE("one that has it is waited for a moment, since it is about to give") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d", "e"}) nodes.want(node);
  CHECK(nodes.whole("a"));
  nodes.over("a");
  CHECK(nodes.source("c").empty());
  CHECK(nodes.all.next_look() == nodes.now + nodes.limits.about_to_give);
  nodes.pass(nodes.limits.about_to_give - 1ms);
  CHECK(nodes.source("c").empty());
  nodes.pass(1ms);
  CHECK(nodes.source("c") == "head");
  // One that does not say so is not waited for.
  nodes.over("b");
  CHECK(nodes.source("d") == "head");
}

TEST_CASE("where nobody waits nobody needs to give") {
  Wanted nodes;
  nodes.want("a");
  CHECK_FALSE(nodes.whole("a"));
  nodes.over("a");
  nodes.offer("a");
  CHECK(nodes.dismissed == std::vector<std::string>{"a"});
  CHECK_FALSE(nodes.all.next_look());
}

TEST_CASE("different things know nothing of each other") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c"}) nodes.want(node, "other");
  for (const char* node : {"x", "y", "z"}) nodes.want(node);
  nodes.offer("giver", "other");
  CHECK(nodes.source("c") == "giver");
  CHECK(nodes.source("z").empty());
}

TEST_CASE("nobody is sent to himself, and keeps nobody behind him waiting") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d"}) nodes.want(node);
  nodes.offer("c");
  CHECK(nodes.source("c").empty());
  CHECK(nodes.source("d") == "c");
}

TEST_CASE("one that failed two nodes is asked no more, and the head gives instead") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d"}) nodes.want(node);
  nodes.offer("x");
  CHECK(nodes.source("c") == "x");
  CHECK(nodes.source("d") == "x");
  nodes.missed("c");
  CHECK(nodes.dismissed.empty());
  CHECK(nodes.source("c") == "x");  // so far: the head is busy
  nodes.want("e");
  CHECK(nodes.source("e") == "x");
  nodes.over("a");
  CHECK(nodes.source("c") == "head");
  nodes.missed("c");  // again, by mistake
  nodes.missed("d");
  CHECK(nodes.dismissed == std::vector<std::string>{"x"});
  nodes.over("b");
  nodes.over("e");  // which still had it from x
  CHECK(nodes.source("d") == "head");
}

TEST_CASE("who waits for the head goes before those that anybody may serve") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d", "e"}) nodes.want(node);
  nodes.offer("x");
  CHECK(nodes.source("d") == "x");
  CHECK(nodes.source("e").empty());
  nodes.missed("d");  // and e is sent there
  CHECK(nodes.source("e") == "x");
  nodes.want("f");
  nodes.over("a");
  CHECK(nodes.source("d") == "head");
  CHECK(nodes.source("f").empty());
}

TEST_CASE("one that takes next to nothing keeps nobody waiting") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d"}) nodes.want(node);
  nodes.all.slow(nodes.wishes.at("a"), nodes.now);
  CHECK(nodes.source("c") == "head");
  // Its end is not counted twice.
  nodes.all.slow(nodes.wishes.at("a"), nodes.now);
  nodes.over("a");
  CHECK(nodes.source("d").empty());
  nodes.over("b");
  CHECK(nodes.source("d") == "head");
}

TEST_CASE("what nobody wants is not given for long") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c"}) nodes.want(node);
  nodes.offer("x");
  CHECK(nodes.source("c") == "x");
  nodes.pass(nodes.limits.kept);
  CHECK(nodes.dismissed.empty());  // c still has it from there
  nodes.over("c");
  REQUIRE(nodes.all.next_look());
  CHECK(*nodes.all.next_look() == nodes.now + nodes.limits.kept);
  nodes.pass(nodes.limits.kept);
  CHECK(nodes.dismissed == std::vector<std::string>{"x"});
  nodes.all.withdraw(nodes.offers.at("x"));
  CHECK_FALSE(nodes.all.next_look());
}

TEST_CASE("one that withdraws, or that leaves while it waits, is forgotten") {
  Wanted nodes;
  for (const char* node : {"a", "b", "c", "d", "e", "f"}) nodes.want(node);
  nodes.offer("x");
  nodes.all.withdraw(nodes.offers.at("x"));
  CHECK(nodes.dismissed.empty());
  nodes.over("e");
  nodes.over("a");
  CHECK(nodes.source("e").empty());
  CHECK(nodes.source("f") == "head");
}

// Time by steps, in each of which whoever gives hands over one copy in all.
TEST_CASE("a thousand nodes have it after the time of a few copies") {
  constexpr int kNodes = 1000;
  Wanted nodes;
  for (int i = 0; i < kNodes; ++i) nodes.want("n" + std::to_string(i));
  std::map<std::string, double> part;  // of those that read: what has come
  int whole = 0;
  int by_head = 0;
  double copies = 0;
  while (whole < kNodes) {
    REQUIRE(copies < 100);
    std::map<std::string, int> readers;
    for (const auto& [node, sources] : nodes.got) {
      if (part[node] < 1) ++readers[sources.back()];
    }
    const double step = 0.25;
    copies += step;
    std::vector<std::string> done;
    for (const auto& [node, sources] : nodes.got) {
      if (part[node] >= 1) continue;
      part[node] += step / readers[sources.back()];
      if (part[node] >= 1 - 1e-9) {
        part[node] = 1;
        done.push_back(node);
      }
    }
    for (const std::string& node : done) nodes.has(node);
    whole += static_cast<int>(done.size());
  }
  for (const auto& [node, sources] : nodes.got) by_head += sources.back() == "head" ? 1 : 0;
  MESSAGE("copies of time: " << copies << ", given by the head: " << by_head);
  const int readers = nodes.limits.readers;
  CHECK(copies <= readers * std::ceil(std::log(kNodes) / std::log(readers + 1)) + readers);
  CHECK(by_head <= 30);
}
