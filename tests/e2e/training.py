"""Real training under dtrain: the examples, resumed after a kill, and an unchanged torchrun script."""

import sys

from harness import *

MLP = BUILD / "examples" / "mnist_mlp" / "mnist_mlp"
PEERS = SOURCE / ".deps" / "bench"
LIBTORCH = SOURCE / ".deps" / "libtorch"


def python_torch():
    """The environment in which python3 can import torch, and the module dtrain; None without torch."""
    libraries = ":".join(str(path) for path in sorted(PEERS.glob("nvidia/*/lib")))
    for extra in ({}, {"PYTHONPATH": f"{PEERS}:{LIBTORCH}", "LD_LIBRARY_PATH": libraries}):
        done = subprocess.run([sys.executable, "-c", "import torch, numpy"],
                              env={**os.environ, **extra}, capture_output=True)
        if done.returncode == 0:
            path = extra.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
            module = str(SOURCE / "trainer" / "python")
            return {**extra, "PYTHONPATH": f"{path}:{module}" if path else module}
    return None


def losses(text):
    """{step: [loss of each line]} of rank 0."""
    found = {}
    for step, loss in re.findall(r"(?m)^\[0\] step (\d+)\s+loss (\S+)", text):
        found.setdefault(int(step), []).append(loss)
    return found


class Training(ClusterCase):
    nodes = 2

    def train(self, *flags, arguments=()):
        return self.ok("submit", *flags, "--", MLP, "--limit", "4000", "--epochs", "2",
                       "--batch-size-per-worker", "32", *arguments)

    def test_two_nodes_train_as_one(self):
        one = self.train("--nproc-per-node", "2")
        two = self.train("--nnodes", "2")
        self.assertGreater(len(losses(one)), 2)
        self.assertEqual(losses(one), losses(two))
        self.assertGreater(self.json("result")["metrics"]["accuracy"], 0.5)

    def test_a_killed_run_goes_on_from_its_checkpoint_bit_for_bit(self):
        arguments = ("--checkpoint-every", "20")
        whole = losses(self.train("--nproc-per-node", "2", arguments=arguments))
        # Once more where a machine was so busy that all steps were done before the kill.
        for _ in range(5):
            job = self.json("submit", "-d", "--nproc-per-node", "2", "--max-restarts", "1", "--", "/bin/sh", "-c",
                            # The first attempt's rank 1 is killed once a checkpoint is committed.
                            f'if [ $DTRAIN_ATTEMPT = 1 ] && [ $RANK = 1 ]; then "{MLP}" "$@" & p=$!; '
                            'while [ ! -e "$DTRAIN_STORAGE_PATH/checkpoints/checkpoint_000001" ]; do sleep 0.01; done; '
                            f'kill -9 $p; exit 9; else exec "{MLP}" "$@"; fi', "sh", "--limit", "4000",
                            "--epochs", "2", "--batch-size-per-worker", "32", *arguments)["job"]
            self.wait_state(job, "succeeded", "failed")
            result = self.job(job)
            self.assertEqual([a["state"] for a in result["attempts"]], ["failed", "succeeded"], result)
            resumed = losses(self.ok("logs", job, "--attempt", "2"))
            if resumed:
                break
        self.assertGreater(len(resumed), 0)
        self.assertGreater(min(resumed), 20, "it began anew")
        for step, values in resumed.items():
            self.assertEqual(values, whole[step], f"step {step}")

    def test_a_rank_that_is_held_is_named_as_the_one_that_lags(self):
        self.hold_a_rank("shared_memory")

    def test_a_rank_that_is_held_is_named_where_they_talk_by_gloo(self):
        self.hold_a_rank("gloo")

    def hold_a_rank(self, transport):
        job = self.json("submit", "-d", "--nproc-per-node", "2", "--hang-timeout-s", "5",
                        "--env", f"DTRAIN_TRANSPORT={transport}", "--", MLP, "--limit", "4000",
                        "--epochs", "100000", "--batch-size-per-worker", "32")["job"]

        def ranks():
            attempts = self.job(job)["attempts"]
            return attempts[-1]["ranks"] if attempts else []

        def sequences():
            return [((rank.get("heartbeat") or {}).get("collective") or {}).get("sequence", 0) for rank in ranks()]

        eventually(lambda: (found := sequences()) and min(found) > 20, "both have come into the collectives")
        held = ranks()[1]["pid"]
        os.kill(held, signal.SIGSTOP)
        try:
            eventually(lambda: "rank 1 on node-0" in self.job(job)["reason"], "it is named")
            # By where it stands, else by its silence; the other's last word may be from just before its wait.
            self.assertRegex(self.job(job)["reason"], r"^hang: no progress for .*(has not entered|is still in|has not "
                             r"been heard of since) .*; the other (waits in (it|.*#\d+)|has entered it|sends heartbeats)$")
        finally:
            os.kill(held, signal.SIGCONT)
        eventually(lambda: not self.job(job)["reason"], "it goes on")
        self.ok("stop", job)

    def test_pulled_checkpoints_are_whole(self):
        self.train("--nproc-per-node", "2")
        target = self.folder / "pulled"
        self.ok("pull", "--best", "-o", target)
        manifest = next(target.rglob("manifest.json"))
        import hashlib
        for file in json.loads(manifest.read_text())["files"]:
            content = (manifest.parent / file["path"]).read_bytes()
            self.assertEqual(hashlib.sha256(content).hexdigest(), file["sha256"], file["path"])


class Examples(ClusterCase):
    nodes = 2

    def test_every_example_trains_with_two_ranks(self):
        tool = BUILD / "trainer" / "tools" / "dtrain-data"
        for form in ("cifar10", "idx"):
            subprocess.run([tool, "make", form, self.folder / form, "--samples", "64", "--test", "16"],
                           check=True, stdout=subprocess.DEVNULL)
        for name, form, images, batch, more in (
                ("mnist_mlp", "idx", 16, 4, []), ("fashion_mnist_resnet18", "idx", 16, 4, []),
                ("cifar10_resnet18", "cifar10", 16, 4, ["--epochs", "1"]), ("cifar10_vit", "cifar10", 4, 2, [])):
            for shape in (("--nproc-per-node", "2"), ("--nnodes", "2")):
                out = self.ok("submit", *shape, "--", BUILD / "examples" / name / name, "--data",
                              self.folder / form, "--limit", images, "--batch-size-per-worker", batch, *more,
                              deadline=120)
                self.assertIn("images with 2 ranks", out, name)
                self.assertIn("accuracy", self.json("result")["metrics"], name)


class Python(ClusterCase):
    nodes = 2

    def setUp(self):
        self.torch = python_torch()
        if self.torch is None:
            self.skipTest("no python3 with torch here (scripts/bench installs one)")
        super().setUp()
        self.flags = [word for name, value in self.torch.items()
                      for word in ("--env", f"{name}={value}")]

    def test_a_torchrun_script_on_one_and_two_nodes(self):
        for shape in (("--nproc-per-node", "2"), ("--nnodes", "2", "--nproc-per-node", "1")):
            out = self.ok("submit", *shape, *self.flags, "--workdir", SOURCE / "examples" / "python_ddp", "--",
                          sys.executable, "train.py", "--steps", "5", deadline=120)
            self.assertIn("[1]", out)

    def test_ranks_have_every_variable_that_torchrun_sets(self):
        probe = self.folder / "probe.py"
        probe.write_text("import json, os, sys\n"
                         "json.dump(dict(os.environ), open(sys.argv[1] + os.environ['RANK'], 'w'))\n")
        base = {k: v for k, v in os.environ.items() if not k.startswith("DTRAIN_")}
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                        str(probe), str(self.folder / "torchrun.")], env={**base, **self.torch}, check=True,
                       capture_output=True, timeout=120)
        self.ok("submit", "--nproc-per-node", "2", *self.flags, "--", sys.executable, probe,
                self.folder / "dtrain.")
        for rank in (0, 1):
            theirs = json.loads((self.folder / f"torchrun.{rank}").read_text())
            ours = json.loads((self.folder / f"dtrain.{rank}").read_text())
            added = set(theirs) - set(base) - set(self.torch)
            self.assertGreater(len(added), 15)
            # What torchrun says to itself is left out: its signals, NUMA and thread settings.
            missing = {name for name in added - set(ours)
                       if name.startswith(("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"))
                       and name != "TORCHELASTIC_SIGNALS_TO_HANDLE"}
            self.assertEqual(missing, set())
            for name in added & set(ours):
                if name.startswith(("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_RANK", "ROLE_WORLD", "TORCHELASTIC_RESTART")):
                    self.assertEqual(ours[name], theirs[name], name)


if __name__ == "__main__":
    main()
