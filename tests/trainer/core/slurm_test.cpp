#include "trainer/core/slurm.hpp"

#include <doctest/doctest.h>

#include "trainer/core/error.hpp"

using namespace dtrain::train;

TEST_CASE("lists of hosts as Slurm writes them") {
  const auto hosts = [](const std::string& list) { return slurm_hosts(list); };
  using Hosts = std::vector<std::string>;
  CHECK(hosts("a") == Hosts{"a"});
  CHECK(hosts("a,b.c-d") == Hosts{"a", "b.c-d"});
  CHECK(hosts("n[8-10]") == Hosts{"n8", "n9", "n10"});
  CHECK(hosts("n[08-10,12]x,z") == Hosts{"n08x", "n09x", "n10x", "n12x", "z"});
  CHECK(hosts("r[1-2]n[3,5]") == Hosts{"r1n3", "r1n5", "r2n3", "r2n5"});
  for (const char* bad : {"", ",", "a,", "n[", "n]", "n[]", "n[a]", "n[2-1]", "n[[1]]", "n[1-]",
                          "n[1-70000]", "n[1-999]m[1-999]"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(slurm_hosts(bad), Error);
  }
}

TEST_CASE("tasks by node as Slurm writes them") {
  CHECK(slurm_tasks_by_node("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(slurm_tasks_by_node("4") == std::vector<int>{4});
  for (const char* bad : {"", "x", "2(x", "2(x3", "2(x)", "2(x99999999)", "(x2)"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(slurm_tasks_by_node(bad), Error);
  }
}
