#include "cli/log_printer.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <nlohmann/json.hpp>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;

namespace {

// A screen on two files.
struct Stage {
  explicit Stage(Terminal terminal = {}, LogStyle style = {})
      : out(open_file(folder / "out", O_RDWR | O_CREAT)),
        err(open_file(folder / "err", O_RDWR | O_CREAT)),
        screen(terminal, false, nullptr, out.get(), err.get()),
        printer(screen, style) {}

  void piece(int rank, std::uint64_t offset, std::string_view bytes, bool is_err = false) {
    printer.piece({1, rank, "node-0", is_err, offset, bytes});
  }
  std::string said() {
    screen.flush();
    return read_file(folder / "out");
  }
  std::string complained() {
    screen.flush();
    return read_file(folder / "err");
  }

  testing::TemporaryFolder folder;
  UniqueFd out;
  UniqueFd err;
  Screen screen;
  LogPrinter printer;
};

Terminal a_terminal(bool color) {
  return {.out = true, .err = true, .color_out = color, .color_err = color, .dumb = false};
}

}  // namespace

TEST_CASE("into a pipe: whole lines of each rank, bytes as they are") {
  Stage stage;
  stage.piece(0, 0, "a\x1b[31m");
  stage.piece(1, 0, "other\xff\n");
  stage.piece(0, 6, "b\n");
  stage.piece(0, 8, "no end");
  stage.piece(1, 0 + 7, "to stderr\n", true);
  stage.printer.finish();
  CHECK(stage.said() == "[1] other\xff\n[0] a\x1b[31mb\n[0] no end\n");
  CHECK(stage.complained() == "[1] to stderr\n");
}

TEST_CASE("without a prefix, bytes go through at once and unchanged") {
  Stage stage({}, {.prefix = false, .json = false});
  stage.piece(0, 0, "half a li");
  CHECK(stage.said() == "half a li");
  stage.piece(0, 9, "ne\r\n\0more");
  stage.printer.finish();
  CHECK(stage.said() == "half a line\r\n");
}

TEST_CASE("on a terminal: colours for ranks, escapes shown and not obeyed, bars as they end") {
  Stage stage(a_terminal(true));
  stage.piece(1, 0, "\x1b]0;evil\x07\n10%\r20%\r30%\n");
  CHECK(stage.said() == "\x1b[35m[1]\x1b[0m \\x1b]0;evil\\x07\n\x1b[35m[1]\x1b[0m 30%\n");
  Stage plain(a_terminal(false));
  plain.piece(1, 0, "x\n");
  CHECK(plain.said() == "[1] x\n");
}

TEST_CASE("on a terminal: colours of ranks pass, and end with the line") {
  Stage stage(a_terminal(true), {.prefix = false, .json = false});
  stage.piece(0, 0, "\x1b[31mred\nnot red\n");
  CHECK(stage.said() == "\x1b[31mred\x1b[0m\nnot red\n");
  Stage plain(a_terminal(false), {.prefix = false, .json = false});
  plain.piece(0, 0, "\x1b[31mred\n");
  CHECK(plain.said() == "red\n");
}

TEST_CASE("setup's lines name their node, and go to stderr unless they are what was asked for") {
  Stage stage({}, {.prefix = false, .json = false});
  const auto setup = [&](const std::string& node, std::uint64_t offset, std::string_view bytes) {
    stage.printer.piece({1, 0, node, false, offset, bytes, true});
  };
  setup("node-0", 0, "mak");
  setup("node-1", 0, "make\n");
  setup("node-0", 3, "e\n");
  CHECK(stage.complained() == "[setup node-1] make\n[setup node-0] make\n");
  CHECK(stage.said().empty());
  Stage alone({}, {.prefix = false, .json = false, .setup_to_out = true});
  alone.printer.piece({1, 0, "node-0", false, 0, "x\n", true});
  CHECK(alone.said() == "[setup node-0] x\n");
  Stage json({}, {.prefix = false, .json = true});
  json.printer.piece({1, 0, "node-0", false, 0, "x\n", true});
  const auto event = nlohmann::json::parse(json.said() + json.complained());
  CHECK(event["stream"] == "setup");
  CHECK(event["rank"].is_null());
}

TEST_CASE("a server that begins again is not heard twice; a gap is counted") {
  Stage stage;
  stage.piece(0, 0, "one\ntwo\n");
  stage.piece(0, 0, "one\ntwo\n");
  stage.piece(0, 4, "two\nthree\n");
  CHECK(stage.said() == "[0] one\n[0] two\n[0] three\n");
  CHECK(stage.printer.received() == 14);
  CHECK(stage.printer.missing() == 0);
  stage.piece(0, 20, "five\n");
  CHECK(stage.printer.missing() == 6);
}

TEST_CASE("beginning at an offset is no gap, and attempts are streams of their own") {
  Stage stage;
  stage.piece(0, 100, "tail\n");
  CHECK(stage.printer.missing() == 0);
  stage.printer.piece({2, 0, "node-0", false, 0, "again\n"});
  CHECK(stage.said() == "[0] tail\n[0] again\n");
}

TEST_CASE("JSON: a line an event, with the offset of the line; base64 for what is not text") {
  Stage stage({}, {.prefix = true, .json = true});
  stage.piece(0, 10, "on");
  stage.piece(0, 12, "e\n\xff\xfe\nend");
  stage.printer.finish();
  std::vector<nlohmann::json> events;
  for (const std::string& line : split(stage.said(), '\n')) {
    if (!line.empty()) events.push_back(nlohmann::json::parse(line));
  }
  REQUIRE(events.size() == 3);
  CHECK(events[0] == nlohmann::json::parse(R"({"type": "log", "attempt": 1, "rank": 0,
      "node": "node-0", "stream": "out", "offset": 10, "text": "one"})"));
  CHECK(events[1]["offset"] == 14);
  CHECK(events[1]["base64"] == "//4=");
  CHECK(events[2]["offset"] == 17);
  CHECK(events[2]["partial"] == true);
}

TEST_CASE("what was released is told where it was, and is no loss on the way") {
  const auto released = [](Stage& stage, std::uint64_t offset, std::uint64_t bytes,
                           std::string_view behind) {
    stage.printer.piece({1, 0, "node-0", false, offset, behind, false, bytes});
  };
  const std::string mark = "bytes of output are missing here: released, as log_limit says]\n";
  Stage lines;
  lines.piece(0, 0, "");
  released(lines, 100, 100, "kept\nhalf");
  released(lines, 200, 91, "more\n");
  CHECK(lines.said() ==
        "[0] [dtrain: 100 " + mark + "[0] kept\n[0] half\n[0] [dtrain: 91 " + mark + "[0] more\n");
  CHECK(lines.printer.missing() == 0);
  CHECK(lines.printer.received() == 14);
  // Where bytes go through too: there they are not the rank's.
  Stage raw({}, {.prefix = false, .json = false});
  released(raw, 100, 100, "kept\nhalf");
  released(raw, 200, 91, "more\n");
  CHECK(raw.said() == "[dtrain: 100 " + mark + "kept\nhalf\n[dtrain: 91 " + mark + "more\n");
  Stage json({}, {.prefix = true, .json = true});
  json.piece(0, 0, "half");
  released(json, 200, 196, "more\n");
  std::vector<nlohmann::json> events;
  for (const std::string& line : split(json.said(), '\n')) {
    if (!line.empty()) events.push_back(nlohmann::json::parse(line));
  }
  REQUIRE(events.size() == 3);
  CHECK(events[0]["partial"] == true);
  CHECK(events[1] == nlohmann::json::parse(R"({"type": "released", "attempt": 1, "rank": 0,
      "node": "node-0", "stream": "out", "offset": 4, "bytes": 196})"));
  CHECK(events[2]["offset"] == 200);
}
