#include "launcher/remote/gzip.hpp"

#include <doctest/doctest.h>

#include "launcher/remote/local.hpp"

using namespace dtrain;

TEST_CASE("gzip: what gzip -dc gives back") {
  std::string content;
  SUBCASE("nothing") {}
  SUBCASE("less than a member") {
    content = "a few words";
  }
  SUBCASE("several members, the last one short") {
    for (int i = 0; content.size() < (std::size_t{5} << 19); ++i) content += std::to_string(i);
  }
  LocalTransport here;
  const Captured back = here.run({"gzip", "-dc"}, gzip_of(content), std::chrono::seconds(60));
  CHECK(back.exit.ok());
  CHECK(back.out == content);
}
