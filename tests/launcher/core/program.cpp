#include "launcher/core/program.hpp"

#include <doctest/doctest.h>

#include "launcher/core/files.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

struct Folder {
  fs::path make(const std::string& name, const std::string& text, mode_t mode = 0755) const {
    write_file_atomic(folder.path() / name, text, mode);
    return folder.path() / name;
  }
  std::string why(const std::string& word, Interpreters where = Interpreters::here) const {
    return why_not_startable(folder.path() / word, word, where, "/usr/bin:/bin").value_or("");
  }
  testing::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("why a file cannot be started") {
  const Folder in;
  in.make("train", "#!/bin/sh\n");
  CHECK(in.why("./train").empty());
  CHECK(in.why("./trian") == "is not there: did you mean ./train?");
  CHECK(in.why("./nothing-like-it") == "is not there");
  CHECK(in.why("train/below") == "is not there");
  in.make("fit.py", "print()\n", 0644);
  CHECK(in.why("./fit.py") == "is not executable: did you mean python3 ./fit.py?");
  in.make("binary",
          std::string("\x7f"
                      "ELF\0",
                      5),
          0644);
  CHECK(in.why("./binary") == "is not executable: did you mean chmod +x ./binary?");
  in.make("script.py", "print()\n");
  CHECK(in.why("script.py", Interpreters::elsewhere) ==
        "is a script without a #! line: did you mean python3 script.py?");
  in.make("lines", "echo\n");
  CHECK(in.why("./lines") == "is a script without a #! line: did you mean sh ./lines?");
  in.make("other", std::string("\x7f"
                               "ELF\0",
                               5));
  CHECK(in.why("./other").empty());
  in.make("empty", "");
  CHECK(in.why("./empty") == "is empty");
  CHECK(in.why(".") == "is a folder");
}

TEST_CASE("interpreters are looked for on their own machine only") {
  const Folder in;
  in.make("gone", "#!/no/such/sh -e\n");
  CHECK(in.why("./gone") == "wants the interpreter /no/such/sh, which is not there");
  CHECK(in.why("./gone", Interpreters::elsewhere).empty());
  in.make("env", "#!/usr/bin/env no-such-python\n");
  CHECK(in.why("./env") == "wants the interpreter no-such-python, which PATH does not have");
  in.make("split", "#!/usr/bin/env -S no-such-python -u\n");
  CHECK(in.why("./split").empty());
  in.make("tab", "#!/bin/sh\t-e\n");
  CHECK(in.why("./tab").empty());
  in.make("windows", "#!/bin/sh\r\n");
  CHECK(in.why("./windows").starts_with("has Windows' line ends"));
  in.make("nothing", "#!\n");
  CHECK(in.why("./nothing") == "names no interpreter behind its #!");
}

TEST_CASE("a word that PATH does not have") {
  const Folder in;
  in.make("train", "#!/bin/sh\n");
  in.make("fit.py", "print()\n", 0644);
  const std::string path = "relative::" + in.folder.path().string();
  CHECK(find_in_path("train", path) == in.folder.path() / "train");
  CHECK_FALSE(find_in_path("fit.py", path));
  CHECK_FALSE(find_in_path("train", "relative:"));
  CHECK(why_not_in_path("fit.py", in.folder.path(), "") ==
        "is not in PATH: did you mean python3 fit.py?");
  CHECK(why_not_in_path("train", in.folder.path(), "") == "is not in PATH: did you mean ./train?");
  CHECK(why_not_in_path("trian", "/", path) == "is not in PATH: did you mean train?");
  CHECK(why_not_in_path("x y | z", "/", path) == "is not in PATH");
}
