"""Installs the training library into a folder and builds examples/own_project with it, outside of
the tree, by CMake, by Meson and by pkg-config; each must train. Another LibTorch is refused in one line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
CXX = sys.argv[3:]


def run(*command, **more):
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **more)
    return result.returncode, result.stdout


class OwnProject(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="dtrain-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        code, text = run("meson", "install", "-C", BUILD, "--no-rebuild", "--tags", "devel",
                         "--destdir", cls.folder / "staged")
        assert code == 0, text
        # Moved from where it was installed to, and away from where it was configured for.
        [pc] = (cls.folder / "staged").rglob("dtrain-trainer.pc")
        prefix = pc
        while not (prefix / "include").is_dir():
            prefix = prefix.parent
        cls.prefix = cls.folder / "moved"
        prefix.rename(cls.prefix)
        [cls.pc] = cls.prefix.rglob("dtrain-trainer.pc")
        cls.env = {**os.environ, "PKG_CONFIG_PATH": str(cls.pc.parent), "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "CC", "CXX"):
            cls.env.pop(name, None)
        cls.project = cls.folder / "own_project"
        shutil.copytree(SOURCE / "examples" / "own_project", cls.project)

    def check_trains(self, program):
        code, text = run(program, env=self.env, timeout=120)
        self.assertEqual(code, 0, text)
        accuracy = [float(x) for x in re.findall(r"val_accuracy ([\d.]+)", text)]
        self.assertGreater(accuracy[-1], 0.95, text)

    def pkg_config(self, *arguments):
        code, text = run("pkg-config", *arguments, "dtrain-trainer", env=self.env)
        self.assertEqual(code, 0, text)
        return text.split()

    def test_cmake(self):
        code, text = run("cmake", "-S", self.project, "-B", self.folder / "cmake",
                         f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_BUILD_TYPE=Release",
                         f"-DCMAKE_CXX_COMPILER={CXX[-1]}",
                         *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={CXX[0]}"] if len(CXX) > 1 else []),
                         env=self.env)
        self.assertEqual(code, 0, text)
        code, text = run("cmake", "--build", self.folder / "cmake", env=self.env)
        self.assertEqual(code, 0, text)
        self.check_trains(self.folder / "cmake" / "circle")

    def built_by_meson(self):
        """The folder that it was built in, once for all tests."""
        for tool in ("meson", "ninja"):
            if not shutil.which(tool):
                self.skipTest(f"{tool} is not installed")
        folder = self.folder / "meson"
        if not folder.exists():
            code, text = run("meson", "setup", folder, self.project, f"--pkg-config-path={self.pc.parent}",
                             env={**self.env, "CXX": " ".join(CXX)})
            self.assertEqual(code, 0, text)
            code, text = run("ninja", "-C", folder, env=self.env)
            self.assertEqual(code, 0, text)
        return folder

    def test_meson(self):
        self.check_trains(self.built_by_meson() / "circle")

    def test_pkg_config(self):
        """Meson has compiled by its flags, and what it made is linked by them."""
        folder = self.built_by_meson()
        [compiled] = json.loads((folder / "compile_commands.json").read_text())
        flags = self.pkg_config("--cflags")
        self.assertGreater(len(flags), 0)
        for flag in flags:
            self.assertIn(flag, shlex.split(compiled["command"]))
        program = self.folder / "circle"
        code, text = run(*CXX, "-o", program, folder / compiled["output"], *self.pkg_config("--libs"), env=self.env)
        self.assertEqual(code, 0, text)
        self.check_trains(program)

    def test_a_libtorch_at_another_place_is_linked_there_alone(self):
        mine = self.pkg_config("--variable=libtorch")[0]
        there = self.folder / "elsewhere"
        libs = self.pkg_config(f"--define-variable=libtorch={there}", "--libs")
        self.assertIn(f"-L{there}/lib", libs)
        self.assertNotIn(mine, " ".join(libs))
        there.symlink_to(mine)
        folder = self.folder / "cmake elsewhere"
        code, text = run("cmake", "-S", self.project, "-B", folder, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                         f"-DDTRAIN_LIBTORCH={there}", env=self.env)
        self.assertEqual(code, 0, text)
        link = (folder / "CMakeFiles/circle.dir/link.txt").read_text()
        self.assertIn(f"-Wl,-rpath,{there}/lib", link)
        self.assertNotIn(mine, link)

    def other_libtorch(self):
        """A folder that says it is LibTorch of the next minor version."""
        mine = Path(self.pkg_config("--variable=libtorch")[0])
        fake = self.folder / "libtorch"
        for header in mine.glob("include/torch/**/version.h"):
            copy = fake / header.relative_to(mine)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(re.sub(r"(TORCH_VERSION_MINOR) (\d+)",
                                   lambda m: f"{m[1]} {int(m[2]) + 1}", header.read_text()))
        return fake

    def test_another_libtorch(self):
        fake = self.other_libtorch()
        code, text = run("cmake", "-S", self.project, "-B", self.folder / "refused",
                         f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DDTRAIN_LIBTORCH={fake}",
                         env=self.env)
        self.assertNotEqual(code, 0)
        self.assertIn(f"needs LibTorch {self.pkg_config('--variable=libtorch_version')[0]}, and",
                      " ".join(text.split()))
        check = self.folder / "check.cpp"
        check.write_text('#include "trainer/core/libtorch_check.hpp"\n')
        for libtorch, expected in ((None, 0), (fake, 1)):
            flags = self.pkg_config("--cflags", *(
                [f"--define-variable=libtorch={libtorch}"] if libtorch else []))
            code, text = run(CXX[-1], "-E", "-o", os.devnull, *flags, check)
            self.assertEqual(code, expected, text)
            if libtorch:
                self.assertEqual(text.count("error:"), 1, text)
                self.assertIn("not of the version that dtrain-trainer was built with", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)  # skips say why
