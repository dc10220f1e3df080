#include "launcher/remote/spread.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

using namespace dtrain;
using From = SpreadChoice::From;

namespace {

// As the laptop's side goes through it: each host joins, is told, and then gives.
class Many {
 public:
  explicit Many(SpreadLimits limits = {}) : limits_(limits) {}

  std::size_t join() {
    hosts_.emplace_back();
    return hosts_.size() - 1;
  }
  SpreadChoice choose(std::size_t who) {
    const SpreadChoice choice = choose_source(hosts_, who, limits_);
    hosts_[who].here = choice.from == From::here;
    hosts_[who].peer.reset();
    if (choice.from == From::peer) hosts_[who].peer = choice.peer;
    return choice;
  }
  std::size_t arrive(bool gives = true) {
    const std::size_t who = join();
    hosts_[who].announced = true;
    hosts_[who].gives = gives;
    choose(who);
    return who;
  }
  void fail(std::size_t who, bool met = false) {
    ++hosts_[who].failures;
    hosts_[who].lost = hosts_[who].peer;
    hosts_[*hosts_[who].peer].met = met;
    hosts_[*hosts_[who].peer].suspect = !met;
    hosts_[who].peer.reset();
  }
  int from_here() const {
    int count = 0;
    for (const SpreadHost& host : hosts_) count += host.here ? 1 : 0;
    return count;
  }
  int depth(std::size_t who) const {
    int depth = 0;
    for (; hosts_[who].peer; who = *hosts_[who].peer) ++depth;
    return depth;
  }
  std::vector<SpreadHost> hosts_;

 private:
  SpreadLimits limits_;
};

}  // namespace

TEST_CASE("spread: 32 hosts are one chain, of which the first gets it from here") {
  Many many;
  for (int i = 0; i < 32; ++i) many.arrive();
  CHECK(many.from_here() == 1);
  CHECK(many.depth(31) == 31);
}

TEST_CASE("spread: more hosts are several chains, and no host gives it to more than two") {
  Many many;
  for (int i = 0; i < 1000; ++i) many.arrive();
  CHECK(many.from_here() == 1);
  std::vector<int> readers(1000, 0);
  int deepest = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    if (many.hosts_[i].peer) ++readers[*many.hosts_[i].peer];
    deepest = std::max(deepest, many.depth(i));
  }
  for (const int count : readers) CHECK(count <= 2);
  CHECK(deepest == 31);
}

TEST_CASE("spread: a peer that fell silent is not tried again by who left it") {
  Many many;
  for (int i = 0; i < 3; ++i) many.arrive();
  many.fail(2, true);
  CHECK(many.choose(2) == SpreadChoice{From::peer, 0});
}

TEST_CASE("spread: as many as are asked for get it from here; with 0, all") {
  for (const int seeds : {0, 1, 4}) {
    CAPTURE(seeds);
    SpreadLimits limits;
    limits.seeds = seeds;
    Many many(limits);
    for (int i = 0; i < 20; ++i) many.arrive();
    CHECK(many.from_here() == (seeds == 0 ? 20 : seeds));
  }
}

TEST_CASE("spread: who comes before any host listens waits for it") {
  SpreadLimits limits;
  limits.seeds = 2;
  Many many(limits);
  many.choose(many.join());
  many.choose(many.join());
  const std::size_t third = many.join();
  CHECK(many.choose(third).from == From::wait);
  many.hosts_[1].announced = true;
  many.hosts_[1].gives = true;
  CHECK(many.choose(third) == SpreadChoice{From::peer, 1});
}

TEST_CASE("spread: hosts that cannot give leave it to this machine") {
  Many many;
  for (int i = 0; i < 20; ++i) many.arrive(false);
  CHECK(many.from_here() == 20);
}

TEST_CASE("spread: who fails with a peer has one more try, with another, and then this machine") {
  Many many;
  for (int i = 0; i < 12; ++i) many.arrive();
  const std::size_t first = *many.hosts_[11].peer;
  many.fail(11);
  REQUIRE(many.choose(11).from == From::peer);
  CHECK(*many.hosts_[11].peer != first);
  many.fail(11);
  CHECK(many.choose(11).from == From::here);
}

TEST_CASE("spread: where hosts do not reach each other, the rest does not try it") {
  Many many;
  for (int i = 0; i < 6; ++i) many.arrive();
  for (const std::size_t who : {2, 3, 4, 5}) many.fail(who);
  CHECK(many.choose(2).from == From::here);
  CHECK(many.hosts_[many.arrive()].here);
  // Unless somebody has got something of somebody.
  many.hosts_[0].met = true;
  many.hosts_[0].suspect = false;
  CHECK_FALSE(many.hosts_[many.arrive()].here);
}

TEST_CASE("spread: who hangs in the middle is nobody's choice until something is heard of it") {
  Many many;
  for (int i = 0; i < 4; ++i) many.arrive();
  // 2 hangs: it has no reader then, and would be the first choice.
  many.fail(3, true);
  many.hosts_[2].silent = true;
  many.join();
  CHECK(choose_source(many.hosts_, 4, {}) == SpreadChoice{From::peer, 0});
  CHECK(many.choose(3) == SpreadChoice{From::peer, 0});
  const std::size_t late = many.join();
  CHECK(many.choose(late) == SpreadChoice{From::peer, 3, 1});
  many.hosts_[2].silent = false;
  CHECK(many.choose(late) == SpreadChoice{From::peer, 3, 1});
  CHECK(many.choose(many.join()) == SpreadChoice{From::peer, 2, 2});
}

TEST_CASE("spread: nor does it count as a seed, nor as one that is whole") {
  Many many;
  many.arrive();
  many.hosts_[0].silent = true;
  SUBCASE("a seed") {}
  SUBCASE("whole") {
    many.hosts_[0].whole = true;
    many.hosts_[0].here = false;
  }
  CHECK(many.choose(many.join()).from == From::here);
}

TEST_CASE("spread: silence is held against a host until it gets more, or is told of a source") {
  const auto spread =
      std::make_shared<Spread>(SpreadLimits{}, std::stop_token(), [](auto&&, auto&&) {});
  std::vector<std::unique_ptr<Spread::Seat>> seats;
  const auto joins = [&](const std::string& address) -> std::string {
    seats.push_back(spread->join(address));
    seats.back()->announce(address);
    const std::optional<Spread::Peer> peer = seats.back()->source();
    return peer ? peer->address : "here";
  };
  CHECK(joins("a") == "here");
  CHECK(joins("b") == "a");
  CHECK(joins("c") == "b");
  const auto loses = [&](SpreadLoss how) {
    seats[2]->failed("said so", how);
    seats.pop_back();
  };
  SUBCASE("as long as nothing is heard") {
    loses(SpreadLoss::silent);
    CHECK(joins("d") == "a");
  }
  SUBCASE("it gets more") {
    loses(SpreadLoss::silent);
    seats[1]->got_more();
    CHECK(joins("d") == "b");
  }
  SUBCASE("it gets it whole") {
    loses(SpreadLoss::silent);
    seats[1]->got_it_whole();
    CHECK(joins("d") == "a");
    CHECK(joins("e") == "b");
  }
  SUBCASE("it has another source") {
    loses(SpreadLoss::silent);
    seats[1]->failed("said so", SpreadLoss::ended);
    seats[1]->source();
    CHECK(joins("d") == "a");
    CHECK(joins("e") == "b");
  }
  SUBCASE("it had ended") {
    loses(SpreadLoss::ended);
    CHECK(joins("d") == "b");
  }
  SUBCASE("who could not be met stays so") {
    loses(SpreadLoss::unmet);
    seats[1]->got_more();
    CHECK(joins("d") == "a");
  }
}

TEST_CASE("spread: who brings others along goes where they do not become too deep") {
  SpreadLimits limits;
  limits.chain = 6;
  limits.readers = 2;
  Many many(limits);
  for (int i = 0; i < 6; ++i) many.arrive();  // 5 of 4 of 3 of 2 of 1 of 0
  const std::size_t other = many.arrive();    // beside them
  REQUIRE(many.hosts_[other].peer == 0);
  const std::size_t last = many.arrive();
  REQUIRE(many.hosts_[last].peer == other);
  // 3 has 4 and 5 behind it.
  many.fail(3, true);
  many.hosts_[2].gone = true;
  many.hosts_[1].gives = false;
  SUBCASE("the idlest that is not too deep") {
    CHECK(many.choose(3) == SpreadChoice{From::peer, last, 2});
    CHECK(many.depth(5) == 5);
  }
  SUBCASE("not below one that is") {
    many.hosts_[many.join()] = {.peer = last, .announced = true, .gives = true};
    // The idlest is 8, at depth 3: 5 would be the seventh of the chain.
    CHECK(many.choose(3) == SpreadChoice{From::peer, other, 1});
    CHECK(many.depth(5) == 4);
  }
}

TEST_CASE("spread: nobody gets it from those who get it from him") {
  SpreadLimits limits;
  limits.seeds = 1;
  limits.readers = 1;
  Many many(limits);
  for (int i = 0; i < 4; ++i) many.arrive();  // 3 of 2 of 1 of 0
  // The seed ends, and 1 has nobody; 2 and 3 hang on it.
  many.hosts_[0].gone = true;
  many.fail(1, true);
  CHECK(many.choose(1).from == From::here);
}

TEST_CASE("spread: a host that has it whole spares another copy from here") {
  Many many;
  many.arrive();
  many.hosts_[0].whole = true;
  const std::size_t late = many.arrive();
  CHECK(many.hosts_[late].peer == 0);
  many.hosts_[0].gone = true;
  many.hosts_[late].gone = true;
  CHECK(many.hosts_[many.arrive()].here);
}
