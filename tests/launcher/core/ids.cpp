#include "launcher/core/ids.hpp"

#include <doctest/doctest.h>

#include <set>

#include "launcher/core/names.hpp"

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

TEST_CASE("a long name of a cluster is cut where it becomes part of something") {
  CHECK(short_name("gpu-cluster") == "gpu-cluster");
  CHECK(short_name(std::string(40, 'x')) == std::string(40, 'x'));
  const std::string one = std::string(80, 'x') + "1";
  const std::string two = std::string(80, 'x') + "2";
  CHECK(short_name(one).size() == 40);
  CHECK(short_name(one).starts_with("xxxx"));
  CHECK(short_name(one) != short_name(two));
  CHECK(short_name(short_name(one)) == short_name(one));
  CHECK(valid_cluster_name(one));
  CHECK(valid_cluster_name(std::string(255, 'x')));
  CHECK_FALSE(valid_cluster_name(std::string(256, 'x')));
  CHECK_FALSE(valid_cluster_name("../" + one));
  CHECK_FALSE(valid_cluster_name(""));
  CHECK(valid_name(make_cluster_id(one).str()));
  CHECK(make_cluster_id(one).str().starts_with(short_name(one) + "-"));
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
