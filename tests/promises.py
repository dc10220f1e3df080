"""Each test that docs/reliability.md names beside a promise is where it says."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
CELL = re.compile(r"\| ([^|]*) \|$")  # the last of a row
PLACE = re.compile(r"`([^` ]+)`,?")


def named(page):
    """(file or folder, a test's name or the beginning of one) of each; "": all that is there."""
    for row in page.splitlines():
        cell = CELL.search(row)
        for part in cell[1].split("; ") if cell else []:
            places = []
            while place := PLACE.match(part.strip()):
                places.append(place[1])
                part = part.strip()[place.end():]
            for name in part.strip().split(", "):
                yield from ((place, name) for place in places)


def files_of(place):
    """A path from the root where it begins with tests/, else the name of one file; None: neither is there."""
    if "/" in place:
        path = ROOT / place
        return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".cpp", ".py")) or None
    return sorted((ROOT / "tests").rglob(place)) or None


def has(text, name):
    """Whether a test is called so; "…" stands for whatever is left out."""
    return re.search(".*".join(re.escape(piece.strip()) for piece in name.split("…")), text) is not None


def wrong_in(page):
    for place, name in named(page):
        if not place.startswith("tests/") and not place.endswith((".py", ".cpp")):
            continue
        files = files_of(place)
        if files is None:
            yield f"{place} is not there"
            continue
        # A long name is written in several pieces.
        text = "\n".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in files)
        if not has(text, name):
            yield f"{place} has no test {name}"


class Promises(unittest.TestCase):
    def test_each_test_is_where_the_page_says(self):
        page = (ROOT / "docs" / "reliability.md").read_text()
        self.assertGreater(len(list(named(page))), 100)
        self.assertEqual(list(wrong_in(page)), [])

    def test_what_is_not_there_is_told(self):
        page = "| a fault | what follows | `layering.py` test_…_sources, test_of_nothing; `none_such.py` |"
        self.assertEqual(list(wrong_in(page)), ["layering.py has no test test_of_nothing", "none_such.py is not there"])


if __name__ == "__main__":
    unittest.main()
