#include "launcher/provider/aws/intents.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

TEST_CASE("aws intents: what is noted is there for who comes after, the oldest first") {
  const testing::TemporaryFolder folder;
  aws::Intents intents(folder / "intents");
  CHECK(intents.all().empty());  // nobody has asked for anything yet
  aws::Intent intent;
  intent.token = "b";
  intent.cluster = ClusterId("c-abcdef");
  intent.type = "gpu";
  intent.head = true;
  intent.nodes = {NodeId("node-1"), NodeId("node-2")};
  intent.asked = from_millis(2000);
  intents.write(intent);
  intent.token = "a";
  intent.asked = from_millis(1000);
  intents.write(intent);
  intent.ids = {"i-1", "i-2"};
  intents.write(intent);
  const std::vector<aws::Intent> all = intents.all();
  REQUIRE(all.size() == 2);
  CHECK(all[0].token == "a");
  CHECK(all[0].cluster == intent.cluster);
  CHECK(all[0].type == "gpu");
  CHECK(all[0].head);
  CHECK(all[0].nodes == intent.nodes);
  CHECK(all[0].asked == intent.asked);
  CHECK(all[0].ids == intent.ids);
  CHECK(all[1].ids.empty());
  intents.remove("a");
  intents.remove("a");
  CHECK(intents.all().size() == 1);
}

TEST_CASE("aws intents: notes that cannot be read are not notes that are not there") {
  const testing::TemporaryFolder folder;
  write_file_atomic(folder / "file", "");
  CHECK_THROWS_AS(aws::Intents(folder / "file").all(), Error);
  for (const char* damaged : {"", "{", "{}", "[]", R"({"token": 1})"}) {
    write_file_atomic(folder / "note.json", damaged);
    CHECK_THROWS_AS(aws::Intents(folder.path()).all(), Error);
  }
}
