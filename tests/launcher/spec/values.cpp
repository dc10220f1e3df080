#include "launcher/spec/values.hpp"

#include <doctest/doctest.h>

using namespace dtrain;

TEST_CASE("node counts are read and written") {
  CHECK(parse_node_count("4") == NodeCount{4, 4});
  CHECK(parse_node_count("2:8") == NodeCount{2, 8});
  CHECK(to_string(NodeCount{2, 8}) == "2:8");
  CHECK(to_string(NodeCount{3, 3}) == "3");
  for (const char* wrong : {"", ":", "2:", ":2", "a", "1:2:3", "1.5", " 2", "99999999999"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_node_count(wrong), Error);
  }
}

TEST_CASE("numbers of ranks are read and written") {
  CHECK(parse_procs_per_node("8") == ProcsPerNode{ProcsKind::number, 8});
  CHECK(parse_procs_per_node("gpu").kind == ProcsKind::gpu);
  CHECK(to_string(parse_procs_per_node("cpu")) == "cpu");
  CHECK_THROWS_AS(parse_procs_per_node("auto"), Error);
  CHECK_THROWS_AS(parse_procs_per_node("GPU"), Error);
}

TEST_CASE("amounts of memory have units") {
  CHECK(parse_bytes("1073741824") == 1073741824U);
  CHECK(parse_bytes("4GiB") == 4ULL << 30);
  CHECK(parse_bytes("4 gib") == 4ULL << 30);
  CHECK(parse_bytes("4Gi") == 4ULL << 30);
  CHECK(parse_bytes("500MB") == 500'000'000U);
  CHECK(parse_bytes("2k") == 2000U);
  CHECK(parse_bytes("1.5KiB") == 1536U);
  CHECK(parse_bytes("7B") == 7U);
  for (const char* wrong :
       {"", "GiB", "4XB", "4Gx", "-1", "1e3", "4GiBB", "1..2", "9999PB", "4iB"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_bytes(wrong), Error);
  }
}

TEST_CASE("a wrong word names the right one") {
  try {
    parse_on_head_lost("stopp");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.message() == "'stopp' is not one of: continue, stop");
    CHECK(error.hint() == "did you mean stop?");
  }
}

TEST_CASE("a job is named after its program") {
  const auto name = [](std::vector<std::string> command, bool shell = false) {
    JobSpec spec;
    spec.command = std::move(command);
    spec.shell = shell;
    return default_job_name(spec);
  };
  CHECK(name({"./build/train", "--epochs", "3"}) == "train");
  CHECK(name({"python3", "-u", "src/fit.py", "x"}) == "fit");
  CHECK(name({"python3", "-c", "print(1)"}) == "python3");
  CHECK(name({"FOO=1 ./a/b.sh x | tee log"}, true) == "b.sh");
  CHECK(name({"echo hello"}, true) == "echo");
  CHECK(name({"/usr/bin/env", "A=1", "prog"}) == "prog");
  CHECK(name({"./-weird name$"}) == "weird-name");
  CHECK(name({"é"}) == "job");
  CHECK(name({}) == "job");
  CHECK(name({std::string(100, 'a')}).size() == 40);
}
