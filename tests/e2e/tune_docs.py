"""docs/tune.md, followed to the letter: its files are written, its commands run in order."""

import csv

from harness import *

PAGE = SOURCE / "docs" / "tune.md"


class Searches(ClusterCase):
    def test_each_search_that_a_page_shows_is_one(self):
        (self.folder / "train").write_text("#!/bin/sh\n")
        (self.folder / "train").chmod(0o755)
        found = 0
        for page in ("tune.md", "search_yaml.md"):
            for block in re.findall(r"(?ms)^```yaml\n(.*?)^```$", (SOURCE / "docs" / page).read_text()):
                if "\nspace:" not in block:
                    continue
                (self.folder / "search.yaml").write_text(block)
                self.assertRegex(self.ok("tune", "search.yaml", "--dry-run"), r"(24|30) trials, the first with ")
                found += 1
        self.assertEqual(found, 3)


class Page(ClusterCase):
    nodes = 0  # the page brings it up

    def name(self):
        return "tune"

    def test_the_page_works_as_written(self):
        env = {**self.env, "PATH": f"{DTRAIN.parent}:{os.environ['PATH']}"}
        commands = 0
        for language, block in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE.read_text()):
            if name := re.match(r"# (\S+\.(?:yaml|py))\n", block):
                (self.folder / name[1]).write_text(block)
            elif language == "sh":
                for command in block.strip().split("\n"):
                    done = subprocess.run(["/bin/bash", "-o", "pipefail", "-c", command], cwd=self.folder, env=env,
                                          text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=900)
                    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
                    commands += 1
                    if command == "dtrain tune search.yaml":
                        self.assertRegex(done.stdout, r"best: trial \d+, accuracy (0\.9|1)")
                        self.assertRegex(done.stdout, r"\d+ complete, \d+ stopped")
                    if "importance" in command:
                        self.assertRegex(done.stdout, r"(?m)^lr +\d+ %")
        self.assertGreater(commands, 12)
        self.assertTrue(below(self.folder / "model", "state.json"))
        with open(self.folder / "trials.csv") as file:
            self.assertEqual(len(list(csv.DictReader(file))), 24)
        self.assertEqual(self.pids(), [])


if __name__ == "__main__":
    main()
