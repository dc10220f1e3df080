"""Every example trains alone, with srun's environment, and under torchrun --no-python where python3
has torch; predict then classifies with what was learned. (Under dtrain: tests/e2e/training.py.)"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(sys.argv[1])
PYTHON_TORCH = os.environ.get("DTRAIN_PYTHON_TORCH", "").split()
EXAMPLES = {  # name: (data, images, batch size of a rank, other flags)
    "mnist_mlp": ("mnist", 64, 16, []),
    "fashion_mnist_resnet18": ("mnist", 32, 8, []),
    "cifar10_resnet18": ("cifar10", 16, 4, ["--epochs", 1]),
    "cifar10_vit": ("cifar10", 4, 2, ["--precision", "bf16"]),
}
# Not from where this test was started.
FOREIGN = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|MASTER_|DTRAIN_|TORCHELASTIC_|SLURM_)")


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="dtrain-examples-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        tool = BUILD / "trainer" / "tools" / "dtrain-data"
        for form, name, more in (("cifar10", "cifar10", []), ("idx", "mnist", []),
                                 ("folder", "pictures", ["--image", "png"])):
            subprocess.run([tool, "make", form, cls.folder / name, "--samples", "64", "--test", "16",
                            *more], check=True, stdout=subprocess.DEVNULL)
        cls.env = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
        cls.env["OMP_NUM_THREADS"] = "1"

    def command(self, name, *more):
        data, images, batch, flags = EXAMPLES[name]
        return [str(part) for part in
                (BUILD / "examples" / name / name, "--data", self.folder / data, "--limit", images,
                 "--batch-size-per-worker", batch, *flags, *more)]

    def check(self, text, ranks):
        self.assertRegex(text, rf"images with {ranks} ranks")
        self.assertRegex(text, r"test accuracy 0\.\d+|test accuracy 1\.0")

    def run_one(self, command, **env):
        done = subprocess.run(command, env={**self.env, **env}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_alone(self):
        for name in EXAMPLES:
            with self.subTest(name):
                self.check(self.run_one(self.command(name)), 1)

    def test_with_sruns_environment(self):
        for number, name in enumerate(EXAMPLES):
            with self.subTest(name):
                ranks = []
                for rank in range(2):
                    env = {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank,
                           "SLURM_NODEID": 0, "SLURM_JOB_NODELIST": "localhost",
                           # The port comes of the job's id: another one for each.
                           "SLURM_JOB_ID": os.getpid() * 10 + number}
                    ranks.append(subprocess.Popen(
                        self.command(name), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                        text=True, env={**self.env, **{k: str(v) for k, v in env.items()}}))
                outputs = [process.communicate(timeout=300)[0] for process in ranks]
                self.assertEqual([process.returncode for process in ranks], [0, 0], outputs)
                self.check(outputs[0], 2)
                self.assertEqual(outputs[1], "")  # rank 0 speaks for all

    def test_under_torchrun(self):
        if not PYTHON_TORCH:
            self.skipTest("no python3 with torch here: scripts/bench_train --install-only")
        for name in EXAMPLES:
            with self.subTest(name):
                torchrun = [*PYTHON_TORCH, "-m", "torch.distributed.run", "--standalone",
                            "--nproc-per-node=2", "--no-python"]
                self.check(self.run_one(torchrun + self.command(name)), 2)

    def test_the_three_ways_of_the_page_train(self):
        for name, expected in (("functions", "step 2  loss"), ("module", "val_accuracy"),
                               ("creators", "val_accuracy")):
            with self.subTest(name):
                work = self.folder / name
                work.mkdir()
                program = BUILD / "examples" / "from_pytorch" / name
                done = subprocess.run([program, self.folder / "mnist", "32"], cwd=work, text=True,
                                      env=self.env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, timeout=300)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn(expected, done.stdout)

    def test_a_last_batch_of_one_image_is_left_out_of_a_resnets_training(self):
        program = BUILD / "examples" / "fashion_mnist_resnet18" / "fashion_mnist_resnet18"
        text = self.run_one([str(program), "--data", str(self.folder / "mnist"), "--limit", "17",
                             "--batch-size-per-worker", "8"])
        self.assertIn("17 images with 1 ranks, 2 steps an epoch", text)
        self.assertRegex(text, r"loss \d+\.\d+  after 2 steps")

    def test_the_rate_that_is_logged_is_the_one_the_step_was_taken_with(self):
        metrics = self.folder / "rates.jsonl"
        # 26 steps of one cycle, of which the 25th is logged.
        self.run_one([str(BUILD / "examples/cifar10_resnet18/cifar10_resnet18"), "--data", str(self.folder / "cifar10"),
                      "--limit", "26", "--batch-size-per-worker", "1", "--epochs", "1", "--lr", "0.1",
                      "--metrics-file", str(metrics)])
        logged = {line["step"]: line["metrics"] for line in map(json.loads, metrics.read_text().splitlines())
                  if "lr" in line.get("metrics", {})}
        top, peak, end = 0.1, 0.3 * 26 - 1, 26 - 1
        last = top / 25 / 1e4
        part = (24 - peak) / (end - peak)  # 24 steps were done before
        self.assertEqual(list(logged), [25])
        self.assertAlmostEqual(logged[25]["lr"], last + (top - last) * (1 + math.cos(math.pi * part)) / 2, 9)

    def test_predict_classifies_png_files_with_a_runs_best_checkpoint(self):
        storage = self.folder / "run"
        self.run_one(self.command("cifar10_resnet18", "--storage", storage))
        pictures = sorted((self.folder / "pictures").rglob("*.png"))[:6]
        self.assertEqual(len(pictures), 6)
        sheet = self.folder / "sheet.svg"
        text = self.run_one([str(BUILD / "examples/predict/predict"), str(storage), "--output", str(sheet),
                             *map(str, pictures)])
        for picture in pictures:
            self.assertIn(picture.name, text)
        self.assertIn("<svg", sheet.read_text()[:200])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
