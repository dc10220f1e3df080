"""docs/trainer.md is what scripts/reference makes of the headers; and what the script refuses."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()

HEADER = """#pragma once
namespace dtrain::train {
class Later;
// A thing that counts. It has more to say.
template <typename T>
class Counter final : public Base {
 public:
  explicit Counter(int start = {});
  int next() { return "}"[0] + '{'; }  // the next one
  T value = T{};

 private:
  int hidden_ = 0;
};
// Adds them
// up: all.
int add(std::vector<int> a, int b = 0);
int add(double a);

enum class Way { one, two };  // which way
namespace inside {
int secret();
}
inline constexpr int kMost = 3;  // at most so many
}
"""
ENTRIES = "## Things\nCounter = itertools.count\nadd = - | Sums\n## More\nWay = -\nkMost = -\n"


class Reference(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-reference-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("scripts", "trainer/api", "docs"):
            (self.folder / name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "reference", self.folder / "scripts")
        self.write("trainer/trainer.hpp", '#include "trainer/api/a.hpp"\n')
        self.write("trainer/api/a.hpp", HEADER)
        self.write("scripts/reference.txt", ENTRIES)

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def run_script(self, *flags):
        return subprocess.run([sys.executable, self.folder / "scripts" / "reference", *flags],
                              capture_output=True, text=True)

    def test_the_page_is_what_the_headers_say(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "reference", "--check"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_names_comments_and_members(self):
        self.assertEqual(self.run_script().stderr, "")
        page = (self.folder / "docs" / "trainer.md").read_text()
        rows = [line for line in page.splitlines() if line.startswith("| [")]
        at = "(../trainer/api/a.hpp)"
        self.assertEqual(rows, [
            f"| [`Counter`]{at} | A thing that counts. `next`, `value` | itertools.count |",
            f"| [`add`]{at} | Sums |  |",
            f"| [`Way`]{at} | which way |  |",
            f"| [`kMost`]{at} | at most so many |  |"])
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.write("trainer/api/a.hpp", HEADER.replace("that counts", "that rolls"))
        self.assertIn("run scripts/reference", self.run_script("--check").stderr)

    def test_a_name_without_comment_entry_or_header_is_told(self):
        self.write("trainer/api/a.hpp", HEADER.replace("  // which way", "\nint lost(); // found"))
        said = self.run_script("--check").stderr
        self.assertIn("trainer/api/a.hpp:20: Way has no comment", said)
        self.assertIn("trainer/api/a.hpp:21: lost has no entry", said)
        self.write("trainer/api/a.hpp", HEADER.replace("Way", "Road"))
        said = self.run_script().stderr
        self.assertIn("Road has no entry", said)
        self.assertIn("Way is in no header", said)

    def test_names_are_added_to_the_entries(self):
        self.write("scripts/reference.txt", ENTRIES.replace("Way = -\n", ""))
        self.assertNotEqual(self.run_script().returncode, 0)
        self.assertEqual(self.run_script("--add").stderr, "")
        self.assertIn("Way = -", (self.folder / "scripts" / "reference.txt").read_text())
        self.assertEqual(self.run_script("--check").returncode, 0)


if __name__ == "__main__":
    unittest.main()
