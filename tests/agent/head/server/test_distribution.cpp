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
  std::uint64_t bytes = 1000;                           // of what is wanted
  std::map<std::string, Distribution::Number> wishes;   // by node
  std::map<std::string, Distribution::Number> offers;   // by node
  std::map<std::string, std::vector<std::string>> got;  // by node: "head" or a node, each time
  std::vector<std::string> dismissed;

  Wanted() = default;
  explicit Wanted(const Distribution::Limits& wanted) : limits(wanted) {}

  Distribution::Decided noting(const std::string& node) {
    return [this, node](const std::optional<Distribution::Giver>& giver) {
      got[node].push_back(giver ? giver->node.str() : "head");
    };
  }
  void want(const std::string& node, const std::string& what = "weights") {
    wishes[node] = all.want(what, bytes, NodeId(node), now, noting(node));
  }
  void missed(const std::string& node) { all.missed(wishes.at(node), now, noting(node)); }
  // It is gone, and does not give.
  void over(const std::string& node) {
    all.over(wishes.at(node), now);
    now += limits.about_to_give;
    all.look(now);
  }
  void offer(const std::string& node, const std::string& what = "weights") {
    offers[node] = all.offer(what, {NodeId(node), "10.0.0.1", 1, "token"}, now,
                             [this, node] { dismissed.push_back(node); });
  }
  // It has all of it now, and gives it.
  void has(const std::string& node) {
    all.over(wishes.at(node), now);
    offer(node);
  }
  std::string source(const std::string& node) const {
    const auto found = got.find(node);
    return found == got.end() ? "" : found->second.back();
  }
};

Distribution::Limits two_readers() {
  Distribution::Limits limits;
  limits.readers = 2;
  return limits;
}

}  // namespace

TEST_CASE("the head gives to a few, and each that has it to as many more") {
  Wanted nodes(two_readers());
  for (const char* node : {"a", "b", "c", "d", "e"}) nodes.want(node);
  CHECK(nodes.source("a") == "head");
  CHECK(nodes.source("b") == "head");
  CHECK(nodes.source("c").empty());
  nodes.offer("a");  // while it still counts with the head
  CHECK(nodes.source("c") == "a");
  CHECK(nodes.source("d") == "a");
  CHECK(nodes.source("e").empty());
  nodes.over("c");
  CHECK(nodes.source("e") == "a");
}

TEST_CASE("one that has it is waited for a moment, since it is about to give") {
  Wanted nodes(two_readers());
  for (const char* node : {"a", "b", "c", "d", "e", "f", "g"}) nodes.want(node);
  nodes.all.over(nodes.wishes.at("a"), nodes.now);
  CHECK(nodes.source("c").empty());
  CHECK(nodes.all.next_look() == nodes.now + nodes.limits.about_to_give);
  nodes.offer("a");
  CHECK(nodes.source("c") == "a");
  CHECK(nodes.source("d") == "a");
  CHECK(nodes.source("e") == "head");  // there was nobody else
  nodes.all.over(nodes.wishes.at("b"), nodes.now);
  nodes.now += nodes.limits.about_to_give - 1ms;
  nodes.all.look(nodes.now);
  CHECK(nodes.source("f").empty());
  nodes.now += 1ms;
  nodes.all.look(nodes.now);
  CHECK(nodes.source("f") == "head");
}

TEST_CASE("a node before the head, and of nodes the least busy") {
  Wanted nodes(two_readers());
  nodes.offer("a");
  nodes.offer("b");
  nodes.want("c");
  nodes.want("d");
  nodes.want("e");
  CHECK(nodes.source("c") == "a");
  CHECK(nodes.source("d") == "b");
  CHECK(nodes.source("e") == "a");
}

TEST_CASE("different things know nothing of each other") {
  Wanted nodes(two_readers());
  nodes.offer("a", "other");
  nodes.want("b");
  CHECK(nodes.source("b") == "head");
}

TEST_CASE("nobody is sent to himself") {
  Wanted nodes(two_readers());
  nodes.offer("a");
  nodes.want("a");
  CHECK(nodes.source("a") == "head");
}

TEST_CASE("one that failed somebody is asked no more, and the head gives instead") {
  Wanted nodes(two_readers());
  nodes.offer("a");
  nodes.want("b");
  nodes.want("c");
  CHECK(nodes.source("b") == "a");
  nodes.missed("b");
  CHECK(nodes.source("b") == "head");
  CHECK(nodes.dismissed == std::vector<std::string>{"a"});
  nodes.want("d");
  CHECK(nodes.source("d") == "head");
  nodes.over("c");  // which still had it from a
  nodes.over("b");
  nodes.over("d");
}

TEST_CASE("who waits for the head goes before those that anybody may serve") {
  Wanted nodes(two_readers());
  nodes.want("a");
  nodes.want("b");
  nodes.want("c");  // waits
  nodes.offer("x");
  CHECK(nodes.source("c") == "x");
  nodes.want("d");
  nodes.want("e");  // waits
  nodes.missed("c");
  CHECK(nodes.source("c") == "x");  // so far
  nodes.over("a");
  CHECK(nodes.source("c") == "head");
  CHECK(nodes.source("e").empty());
}

TEST_CASE("slow ones keep nobody waiting for ever") {
  Wanted nodes(two_readers());
  nodes.want("a");
  nodes.want("b");
  nodes.want("c");
  REQUIRE(nodes.all.next_look());
  CHECK(*nodes.all.next_look() == nodes.now + nodes.limits.counted);
  nodes.now += nodes.limits.counted - 1ms;
  nodes.all.look(nodes.now);
  CHECK(nodes.source("c").empty());
  nodes.now += 1ms;
  nodes.all.look(nodes.now);
  CHECK(nodes.source("c") == "head");
  // Their end is not counted twice.
  nodes.over("a");
  nodes.over("b");
  nodes.want("d");
  nodes.want("e");
  CHECK(nodes.source("d") == "head");
  CHECK(nodes.source("e").empty());
}

TEST_CASE("of much a reader may take longer") {
  Wanted nodes(two_readers());
  nodes.bytes = nodes.limits.slow * 100;
  nodes.want("a");
  CHECK(*nodes.all.next_look() == nodes.now + nodes.limits.counted + 100s);
}

TEST_CASE("a reader that had to begin again counts from then on") {
  Wanted nodes(two_readers());
  nodes.offer("x");
  nodes.want("a");
  nodes.now += nodes.limits.counted - 1s;
  nodes.missed("a");  // to the head
  nodes.want("b");    // the head's second
  nodes.want("c");
  nodes.now += 2s;  // the time of a's first try is over
  nodes.all.look(nodes.now);
  CHECK(nodes.source("c").empty());
}

TEST_CASE("what nobody wants is not given for long") {
  Wanted nodes(two_readers());
  nodes.offer("a");
  nodes.want("b");
  nodes.now += nodes.limits.kept;
  nodes.all.look(nodes.now);
  CHECK(nodes.dismissed.empty());
  nodes.over("b");
  REQUIRE(nodes.all.next_look());
  CHECK(*nodes.all.next_look() == nodes.now + nodes.limits.kept);
  nodes.now += nodes.limits.kept;
  nodes.all.look(nodes.now);
  CHECK(nodes.dismissed == std::vector<std::string>{"a"});
  nodes.all.withdraw(nodes.offers.at("a"));
  nodes.now += nodes.limits.counted;
  nodes.all.look(nodes.now);
  CHECK_FALSE(nodes.all.next_look());
}

TEST_CASE("of those that give to nobody only so many are kept") {
  Wanted nodes(two_readers());
  for (std::size_t i = 0; i < nodes.limits.idle + 3; ++i) nodes.offer("n" + std::to_string(i));
  CHECK(nodes.dismissed.size() == 3);
  nodes.want("a");
  CHECK(nodes.source("a") == "n0");
}

TEST_CASE("one that withdraws, or that leaves while it waits, is forgotten") {
  Wanted nodes(two_readers());
  nodes.offer("x");
  nodes.all.withdraw(nodes.offers.at("x"));
  CHECK(nodes.dismissed.empty());
  for (const char* node : {"a", "b", "c", "d"}) nodes.want(node);
  CHECK(nodes.source("a") == "head");
  nodes.over("c");
  nodes.over("a");
  CHECK(nodes.source("c").empty());
  CHECK(nodes.source("d") == "head");
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
