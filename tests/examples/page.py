"""docs/from_pytorch.md shows C++ that is compiled: each of its blocks is in an example."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1])


class Page(unittest.TestCase):
    def test_every_block_is_in_a_program(self):
        page = (ROOT / "docs" / "from_pytorch.md").read_text()
        blocks = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
        self.assertGreater(len(blocks), 3)
        programs = [path.read_text() for path in (ROOT / "examples").glob("*/*.cpp")]
        for block in blocks:
            self.assertTrue(any(block.strip() in program for program in programs), block)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
