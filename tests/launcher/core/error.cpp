#include "launcher/core/error.hpp"

#include <doctest/doctest.h>

#include <cerrno>

using namespace dtrain;

TEST_CASE("an error gathers what was being done, innermost first") {
  try {
    while_doing("bringing up", [] {
      while_doing("syncing", [] {
        throw Error(ErrorCode::io, "disk on fire").at({"a.yaml", 3, 0});
      });
    });
    FAIL("not thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "a.yaml:3: disk on fire, while syncing, while bringing up");
    CHECK(error.message() == "disk on fire");
    CHECK(error.context() == std::vector<std::string>{"syncing", "bringing up"});
  }
  CHECK(while_doing("counting", [] { return 3; }) == 3);
}

TEST_CASE("codes have names, both ways") {
  for (const auto code :
       {ErrorCode::usage, ErrorCode::invalid, ErrorCode::not_found, ErrorCode::conflict,
        ErrorCode::unreachable, ErrorCode::denied, ErrorCode::timeout, ErrorCode::exhausted,
        ErrorCode::io, ErrorCode::failed, ErrorCode::internal}) {
    CHECK(error_code_from(to_string(code)) == code);
  }
  CHECK(error_code_from("of the future") == ErrorCode::internal);
}

TEST_CASE("errno has its text and its kind") {
  CHECK(std::string(errno_error("cannot open /x", ENOENT).what()) ==
        "cannot open /x: No such file or directory");
  CHECK(errno_error("x", ENOENT).code() == ErrorCode::not_found);
  CHECK(errno_error("x", EACCES).code() == ErrorCode::denied);
  CHECK(errno_error("x", ENOSPC).code() == ErrorCode::exhausted);
  CHECK(errno_error("x", EIO).code() == ErrorCode::io);
}
