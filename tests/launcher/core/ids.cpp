#include "launcher/core/ids.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace dtrain;

TEST_CASE("the allow-list of names") {
  for (const std::string& name : {std::string("a"), std::string("A-b_c.9"), std::string(63, 'x')}) {
    CHECK(valid_name(name));
  }
  for (const std::string& name :
       {std::string(), std::string(64, 'x'), std::string(".hidden"), std::string("-o"),
        std::string("a b"), std::string("a/b"), std::string("a\nb"), std::string("$(x)"),
        std::string("a;b"), std::string("é"), std::string("a\0b", 3), std::string("..")}) {
    CAPTURE(name);
    CHECK_FALSE(valid_name(name));
  }
}

TEST_CASE("ids are the name, six letters, and never the same") {
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) {
    const std::string id = make_job_id("mnist").str();
    REQUIRE(id.size() == 12);
    CHECK(id.substr(0, 6) == "mnist-");
    CHECK(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz234567", 6) == std::string::npos);
    seen.insert(id);
  }
  CHECK(seen.size() == 200);
  CHECK(make_cluster_id("c").str().substr(0, 2) == "c-");
  CHECK(random_hex(16).size() == 32);
  CHECK(random_hex(16) != random_hex(16));
}
