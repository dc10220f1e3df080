#include "launcher/provider/machine.hpp"

#include <doctest/doctest.h>

using namespace dtrain;

TEST_CASE("what tags are made of a machine is what is read from them") {
  Machine machine;
  machine.node = NodeId("node-7");
  machine.type = "gpu";
  machine.cluster = ClusterId("c-abcdef");
  machine.launch = "0123456789abcdef";
  for (const bool head : {false, true}) {
    machine.head = head;
    const Tags tags = tags_of("c", machine);
    const auto read = machine_of("c", tags);
    REQUIRE(read);
    CHECK(tags_of("c", *read) == tags);
    CHECK(read->head == head);
    CHECK(!machine_of("d", tags));
  }
}

TEST_CASE("tags of anybody else's are no machine of ours") {
  CHECK(!machine_of("c", {}));
  CHECK(!machine_of("c", {{"dtrain-cluster", "c"}}));
  CHECK(!machine_of("c", {{"dtrain-cluster", "c"}, {"dtrain-node", "../x"}}));
}
