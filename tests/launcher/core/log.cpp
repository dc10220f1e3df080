#include "launcher/core/log.hpp"

#include <doctest/doctest.h>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

TEST_CASE("a line is one line, whatever is in it") {
  const WallTime time = from_millis(1767323045678);
  CHECK(log::format(log::Level::info, time, "head", "node ready", {{"node", "node-0"}}) ==
        R"(2026-01-02T03:04:05.678Z level=info role=head msg="node ready" node=node-0)");
  CHECK(log::format(log::Level::warn, time, "head", "x",
                    {{"a", ""},
                     {"b", "q\"uote"},
                     {"c", "back\\slash"},
                     {"d", "new\nline"},
                     {"e", "k=v"},
                     {"f", "\033[2J"}}) ==
        R"(2026-01-02T03:04:05.678Z level=warn role=head msg=x a="" b="q\"uote" c="back\\slash" )"
        R"(d="new\\x0aline" e="k=v" f=\x1b[2J)");
}

TEST_CASE("a file is appended to and rotated at 8 MiB") {
  const dtrain::testing::TemporaryFolder folder;
  const fs::path path = folder / "log";
  write_file_atomic(path, "before\n");
  log::open("test", path.string());
  log::debug("not written");
  log::error("written");
  const std::string text = read_file(path);
  CHECK(text.find("before\n") == 0);
  CHECK(text.find("level=error role=test msg=written\n") != std::string::npos);
  CHECK(text.find("not written") == std::string::npos);
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 10; ++i) log::info(large);
  CHECK(fs::exists(path.string() + ".1"));
  CHECK(fs::file_size(path) < (std::size_t{8} << 20));
  log::open("test", "/dev/null");
}
