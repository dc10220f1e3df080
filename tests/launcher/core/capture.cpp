#include "launcher/core/capture.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include "tests/launcher/core/children.hpp"

using namespace dtrain;
using namespace dtrain::testing;

TEST_CASE("capture: input, both outputs, exit, deadline") {
  Captured captured =
      capture(shell("cat; echo err >&2; exit 4"), std::string(1 << 20, 'x'), kDeadline);
  CHECK(captured.out == std::string(1 << 20, 'x'));
  CHECK(captured.err == "err\n");
  CHECK(captured.exit.code == 4);
  CHECK_FALSE(captured.timed_out);
  // A program that does not read what it is given is no trouble.
  captured = capture(shell("exit 0"), std::string(1 << 20, 'x'), kDeadline);
  CHECK(captured.exit.ok());
  // Again with more time where a busy machine did not let it begin.
  for (const int limit_ms : {300, 3000, 30000}) {
    captured = capture(shell("echo begun; sleep 1000"), "", std::chrono::milliseconds(limit_ms));
    CHECK(captured.timed_out);
    CHECK(captured.exit.signal == SIGKILL);
    if (!captured.out.empty()) break;
  }
  CHECK(captured.out == "begun\n");
  // It has closed its outputs, and yet it is held to its deadline.
  captured = capture(shell("exec >&- 2>&-; sleep 1000"), "", std::chrono::milliseconds(300));
  CHECK(captured.timed_out);
  CHECK(captured.exit.signal == SIGKILL);
}
