#include "agent/node/departure.hpp"
#include "tests/support/patience.hpp"

#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

using namespace dtrain;
using namespace std::chrono_literals;
using node::Departure;

namespace {

// What a departure asks for, written down; its surroundings are as a test says.
struct World {
  boost::asio::io_context context;
  std::chrono::milliseconds limit;
  bool connected = true;
  bool running = true;
  bool unfinished = true;
  bool gave_up = false;
  int redials = 0;
  std::vector<std::string> said;
  std::optional<Departure> departure;

  explicit World(std::chrono::milliseconds limit) : limit(limit) {
    Departure::Hooks hooks;
    hooks.stop = [this](const wire::StopRanks& stop) {
      said.push_back("stop " + (stop.grace ? std::to_string(stop.grace->count()) : "by the job's"));
      CHECK(stop.reason == "node-1 leaves the cluster: told");
    };
    hooks.tell = [this](const wire::Leaving& leaving) {
      said.push_back((leaving.over ? "over " : "leaving ") + leaving.reason);
    };
    hooks.connected = [this] { return connected; };
    hooks.running = [this] { return running; };
    hooks.unfinished = [this] { return unfinished; };
    hooks.redial = [this] { ++redials; };
    hooks.give_up = [this] { gave_up = true; };
    departure.emplace(context.get_executor(), NodeId("node-1"), hooks);
  }
  void begin(const std::string& reason) { departure->begin(reason, limit); }
  // Until it gives up; how long that took.
  std::chrono::steady_clock::duration give_up() {
    const auto begun = std::chrono::steady_clock::now();
    while (!gave_up && std::chrono::steady_clock::now() - begun < dtrain::testing::kPatience)
      context.run_one_for(100ms);
    CHECK(gave_up);
    return std::chrono::steady_clock::now() - begun;
  }
};

using Said = std::vector<std::string>;

}  // namespace

TEST_CASE("the head hears that a node leaves, its attempts stop, and it hears when all is over") {
  World world(40s);
  world.departure->look();  // nobody has told it to leave
  CHECK_FALSE(world.departure->under_way());
  world.begin("told");
  CHECK(world.departure->under_way());
  CHECK(world.said == Said{"leaving told", "stop by the job's", "stop 30"});
  world.departure->look();
  world.running = false;
  world.departure->look();
  CHECK(world.said.size() == 3);
  world.unfinished = false;
  world.departure->look();
  world.departure->look();
  REQUIRE(world.said.size() == 4);
  CHECK(world.said.back() == "over told");
  CHECK_FALSE(world.gave_up);
}

TEST_CASE("a node without attempts has left at once") {
  World world(40s);
  world.running = world.unfinished = false;
  world.begin("told");
  CHECK(world.said[0] == "leaving told");
  CHECK(world.said[1] == "over told");
}

TEST_CASE("a head that comes anew hears all of it again") {
  World world(40s);
  world.begin("told");
  world.unfinished = world.running = false;
  world.departure->look();
  world.said.clear();
  world.connected = false;
  world.departure->look();
  CHECK(world.said.empty());
  world.connected = true;
  world.departure->look();
  CHECK(world.said == Said{"leaving told", "over told"});
}

TEST_CASE("told once more changes nothing; in a hurry it kills what runs") {
  World world(1h);
  world.begin("told");
  world.said.clear();
  world.begin("another");
  CHECK(world.said.empty());
  world.departure->hurry();
  CHECK(world.said == Said{"stop 0"});
  CHECK(world.give_up() >= Departure::kHurried - 1s);
}

TEST_CASE("told once more that it is to be over sooner, ranks get less") {
  World world(2h);
  world.begin("told");
  world.said.clear();
  world.departure->begin("another", 40s);
  CHECK(world.departure->reason() == "told");
  CHECK(world.said == Said{"stop 30"});
  world.departure->begin("another", 1h);
  CHECK(world.said.size() == 1);
  world.departure->begin("another", 200ms);
  const auto took = world.give_up();
  CHECK(took >= 100ms);
  CHECK(took < 36s);  // what the 40 s were good for
}

TEST_CASE("no wait is without an end") {
  SUBCASE("for attempts, or for a head that is there") {
    World world(200ms);
    world.begin("told");
    CHECK(world.give_up() >= 100ms);
  }
  SUBCASE("for a head that is not, once nothing is owed to it") {
    World world(1h);
    world.connected = false;
    world.begin("told");
    world.context.run_for(10ms);
    CHECK_FALSE(world.gave_up);  // ranks run: they get their grace
    CHECK(world.redials == 1);
    world.running = false;
    world.departure->look();
    CHECK(world.redials == 2);
    world.context.run_for(Departure::kNoHead + 100ms);
    CHECK_FALSE(world.gave_up);  // their last events are still owed to it
    world.unfinished = false;
    world.departure->look();
    CHECK(world.give_up() >= Departure::kNoHead - 1s);
    CHECK(world.redials == 2);
  }
}
