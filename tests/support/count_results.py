"""Adds up what meson's test logs say and prints it as "N passed, N failed[, N skipped]".

A doctest or unittest program counts as many tests as it has cases, any other as one. Before that
line stands what failed, each with the end of what it printed: the last page of a long log is often
all that is kept of it. Exits with 1 when anything failed or when nothing ran.
"""

import json
import re
import sys

DOCTEST = re.compile(r"test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped")
UNITTEST = re.compile(r"^Ran (\d+) tests? in", re.MULTILINE)
UNITTEST_OUTCOME = re.compile(r"(failures|errors|skipped)=(\d+)")


def count(test):
    """The (passed, failed, skipped) of one record of testlog.json."""
    output = (test.get("stdout") or "") + (test.get("stderr") or "")
    ok = test["result"] in ("OK", "EXPECTEDFAIL")
    doctest = DOCTEST.findall(output)
    unittest = UNITTEST.search(output)
    if test["result"] == "SKIP":
        return 0, 0, int(unittest.group(1)) if unittest else 1
    if doctest:
        passed, failed, skipped = (sum(int(row[i]) for row in doctest) for i in range(3))
        skipped = 0  # doctest calls cases that a filter left out skipped
    elif unittest:
        outcome = {name: int(n) for name, n in UNITTEST_OUTCOME.findall(output)}
        failed = outcome.get("failures", 0) + outcome.get("errors", 0)
        skipped = outcome.get("skipped", 0)
        passed = int(unittest.group(1)) - failed - skipped
    else:
        passed, failed, skipped = (1, 0, 0) if ok else (0, 1, 0)
    if not ok and failed == 0:
        failed = 1  # it crashed or ran out of time
    return passed, failed, skipped


def tell(test, lines=60):
    """Prints the end of what a failed test printed."""
    output = (test.get("stdout") or "") + (test.get("stderr") or "")
    kept = output.rstrip().splitlines()[-lines:]
    print(f"--- {test['name']}: {test['result']} after {test['duration']:.0f} s", *kept, sep="\n")


def main():
    totals = [0, 0, 0]
    failures = []
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as log:
                records = [json.loads(line) for line in log if line.strip()]
        except FileNotFoundError:
            print(f"no test log {path}: its tests did not run")
            records = [{"result": "FAIL", "name": path, "duration": 0}]
        for record in records:
            counted = count(record)
            totals = [a + b for a, b in zip(totals, counted)]
            if counted[1]:
                failures.append(record)
    for record in failures[:10]:
        tell(record)
    if len(failures) > 10:
        print("--- and", ", ".join(record["name"] for record in failures[10:]))
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed or not passed else 0)


main()
