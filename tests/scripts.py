"""The scripts that configure and test, where something was interrupted or does not work: what they say, and that the
next try is whole."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1])


class Scripts(unittest.TestCase):
    def setUp(self):
        self.clone = Path(tempfile.mkdtemp(prefix="dtrain scripts "))
        self.addCleanup(shutil.rmtree, self.clone)
        for name in ("scripts/build", "scripts/configure", "scripts/test", "scripts/lint", "tests/support/count_results.py"):
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.clone / name)
        self.programs = self.clone / "programs"
        self.env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.project("")

    def project(self, more):
        (self.clone / "meson.build").write_text(f"project('small', meson_version: '>=1.0.0')\n{more}\n")

    def fake(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_script(self, name):
        return subprocess.run([self.clone / "scripts" / name], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)

    def test_a_configuration_that_was_interrupted_is_made_anew(self):
        self.assertEqual(self.run_script("build").returncode, 0)
        (self.clone / "build/build.ninja").unlink()
        done = self.run_script("build")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.clone / "build/build.ninja").exists())

    def test_why_it_cannot_be_configured_is_said(self):
        self.project("error('a library is missing')")
        done = self.run_script("build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("a library is missing", done.stderr)

    def test_what_an_earlier_run_has_counted_is_not_counted_again(self):
        self.fake(self.clone / "scripts/setup", "exit 0")
        self.fake(self.programs / "meson", "exit 125")  # as where the code does not compile
        for build in ("build", "build-sanitize"):
            log = self.clone / build / "meson-logs/testlog.json"
            log.parent.mkdir(parents=True)
            log.write_text('{"name": "old", "result": "OK", "duration": 1, "stdout": ""}\n')
        done = self.run_script("test")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.strip().split("\n")[-1], "0 passed, 2 failed")

    def test_nothing_is_linted_where_git_refuses(self):
        self.env["GIT_DIR"] = "/nonexistent"
        done = self.run_script("lint")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("not a git repository", done.stderr)

    def test_no_package_is_removed_for_ours(self):
        shutil.copy(SOURCE / "scripts/setup", self.clone / "scripts/setup")
        asked = self.clone / "asked"
        self.fake(self.programs / "apt-get", f'echo "$*" >>"{asked}"; [ "$1" = update ]')
        self.fake(self.programs / "dpkg-query", "exit 0")
        self.fake(self.programs / "id", "echo 0")
        (self.clone / ".deps/libtorch").mkdir(parents=True)
        torch = next(line for line in (SOURCE / "scripts/setup").read_text().split("\n") if line.startswith("torch="))
        (self.clone / ".deps/libtorch" / f".complete-{torch[6:]}").touch()
        done = self.run_script("setup")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--no-remove", asked.read_text())
        self.assertIn("  apt-get install --no-install-recommends g++ meson", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
