"""What tests of clusters out of Slurm's allocations share. Each program has a Slurm of its own:
tests/support/slurm.py."""

import sys

from harness import *

sys.path.insert(0, str(SOURCE / "tests" / "support"))
from lab import enter, which  # noqa: E402
from slurm import SKIPPED, Slurm, missing, sh  # noqa: E402


class SlurmCase(ClusterCase):
    nodes = 0

    def name(self):
        return "pool"

    def setUp(self):
        super().setUp()
        # What it sends along as the jobs' files.
        self.work = self.folder / "work"
        self.work.mkdir()

    def run_dtrain(self, *args, **more):
        if args[0] == "submit":
            args = ("submit", "--workdir", self.work, *args[1:])
        return super().run_dtrain(*args, **more)

    def write(self, count, options="exclusive: true", **keys):
        more = "".join(f"{key}: {value}\n" for key, value in keys.items())
        (self.folder / "pool.yaml").write_text(
            f"cluster_name: pool\nprovider: {{type: slurm}}\n{more}available_node_types:\n"
            f"  gpu:\n    min_workers: {count}\n    node_config: {{{options}}}\n")
        return self.folder / "pool.yaml"

    def up(self, *flags, **more):
        """Its last line; those before it are progress."""
        said = self.ok("up", self.folder / "pool.yaml", "--json", *flags, deadline=3 * DEADLINE, **more)
        return json.loads(said.rstrip().split("\n")[-1])

    def queue(self, *flags):
        """Our jobs that are not over, as {id: state}."""
        rows = sh("squeue", "-h", "--me", "-n", "dtrain-pool", *flags, "-o", "%i %T").split("\n")
        return dict(row.split() for row in rows if row)

    def nodes_by_state(self, state):
        return sorted(n["node"] for n in self.json("status")["nodes"] if n["state"] == state and n["node"] != "login")

    def wait_ready(self, *names):
        eventually(lambda: self.nodes_by_state("ready") == sorted(names), f"{names} are ready", 2 * DEADLINE)

    def written(self, job, rank=0, attempts=(1, 2)):
        """The numbers of the lines of COUNTS."""
        numbers = []
        for attempt in attempts:
            said = self.ok("logs", job, "--attempt", str(attempt), "--rank", str(rank))
            numbers += [int(line.split()[1]) for line in said.split("\n") if line.startswith("line ")]
        return numbers

    def down(self):
        self.ok("down", "-y", deadline=3 * DEADLINE)
        self.assertEqual(self.queue(), {})
        self.assertEqual(self.pids(), [])
        self.assertEqual([str(p) for p in (self.folder / "home" / ".dtrain").glob("pool-*/*")], [])


__all__ = ["SKIPPED", "Slurm", "SlurmCase", "enter", "missing", "sh", "which"]
