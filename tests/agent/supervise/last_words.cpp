#include "agent/supervise/last_words.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "launcher/core/text.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using supervise::last_lines;
using supervise::read_error_file;
using Lines = std::vector<std::string>;

namespace {

struct Folder : dtrain::testing::TemporaryFolder {
  fs::path put(const std::string& content) const {
    write_file_atomic(*this / "file", content);
    return *this / "file";
  }
};

}  // namespace

TEST_CASE("last lines") {
  const Folder folder;
  CHECK(last_lines(folder / "missing").empty());
  CHECK(last_lines(folder.put("")).empty());
  CHECK(last_lines(folder.put(" \n\n\t\n")).empty());
  CHECK(last_lines(folder.put("one")) == Lines{"one"});
  CHECK(last_lines(folder.put("one\r\n\ntwo\n\n")) == Lines{"one", "", "two"});
  CHECK(last_lines(folder.put("10%\r20%\r30%\rdone\n")) == Lines{"done"});
  CHECK(last_lines(folder.put("\033[2Jx\xff\n")) == Lines{"\\x1b[2Jx\\xff"});
}

TEST_CASE("last lines are few and short, whatever is there") {
  const Folder folder;
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "line " + std::to_string(i) + "\n";
  const Lines lines = last_lines(folder.put(many));
  REQUIRE(lines.size() == 20);
  CHECK(lines.front() == "line 980");
  CHECK(lines.back() == "line 999");
  for (const std::string& text : {std::string(1 << 20, 'x'), std::string(1 << 20, '\1')}) {
    const Lines huge = last_lines(folder.put(text));
    REQUIRE(huge.size() == 1);
    CHECK(huge[0].size() == 500);
  }
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "é";
  CHECK(is_utf8(last_lines(folder.put("x" + wide))[0]));
}

TEST_CASE("error files: torchrun's, a plain message, any text, no plain file") {
  const Folder folder;
  const auto nested = read_error_file(folder.put(
      R"({"message":{"message":"ValueError: x\n","extraInfo":{"py_callstack":"...","timestamp":"1767323045"}}})"));
  CHECK(nested.message == "ValueError: x");
  CHECK(nested.time == 1767323045);
  CHECK(read_error_file(folder.put(R"({"message":"short"})")).message == "short");
  CHECK(read_error_file(folder.put("just text\n")).message == "just text");
  CHECK(read_error_file(folder.put(R"({"other":1})")).message == R"({"other":1})");
  CHECK(read_error_file(folder.put(R"({"message":{"message":"x","extraInfo":{"timestamp":{}}}})"))
            .time == 0);
  CHECK(read_error_file(folder.put(std::string(5 << 20, 'x'))).message.size() == 16384);
  CHECK(read_error_file(folder.put(std::string(100000, '['))).message.size() == 16384);
  CHECK(read_error_file(folder / "missing").message.empty());
  // None of these may block or be followed.
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(read_error_file(folder / "fifo").message.empty());
  fs::create_symlink(folder.put("secret"), folder / "link");
  CHECK(read_error_file(folder / "link").message.empty());
  CHECK(read_error_file(folder.path()).message.empty());
}

TEST_CASE("a shared library that the loader misses is named") {
  using supervise::missing_library;
  CHECK(missing_library(Lines{"a",
                              "./train: error while loading shared libraries: libfoo.so.1: cannot "
                              "open shared object file: No such file or directory"}) ==
        "its shared library libfoo.so.1 is missing");
  CHECK(
      missing_library(Lines{"./train: error while loading shared libraries: libfoo.so.1: file too "
                            "short"}) == "");
  CHECK(missing_library(Lines{": cannot open shared object file"}) == "");
  CHECK(missing_library(Lines{}) == "");
}

TEST_CASE("address in use, in the words of several libraries") {
  using supervise::says_address_in_use;
  CHECK(says_address_in_use(Lines{"a", "OSError: [Errno 98] Address already in use", "b"}));
  CHECK(says_address_in_use(
      Lines{"The server socket has failed to listen (errno: 98 - EADDRINUSE)"}));
  CHECK_FALSE(says_address_in_use(Lines{"address of nobody", ""}));
  CHECK_FALSE(says_address_in_use(Lines{}));
}
