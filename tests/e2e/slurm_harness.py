"""What tests of clusters out of Slurm's allocations share. Each program has a Slurm of its own:
tests/support/slurm.py."""

import sys

from harness import *

sys.path.insert(0, str(SOURCE / "tests" / "support"))
from lab import enter, which  # noqa: E402
from slurm import SKIPPED, Slurm, missing, sh  # noqa: E402


# Counts its lines over all attempts, and keeps the count where the ranks' files are not.
COUNTS = """
n=$(cat "$COUNT" 2>/dev/null || echo 0)
keep() { echo $n >"$COUNT.new"; mv "$COUNT.new" "$COUNT"; }
trap 'keep; exit 0' TERM
while [ ! -e "$COUNT.end" ]; do
for i in 1 2 3 4 5 6 7 8 9 10; do echo line $((n+1)); n=$((n+1)); done
keep; sleep 0.2
done
echo done
"""


LINES = 300
# Writes as many as a pipe holds for sure, and ends.
NUMBERED = f"n=0; while [ $n -lt {LINES} ]; do n=$((n+1)); echo line $n; done"


def start_slurm(**what):
    """For the module that is being set up."""
    SlurmCase.slurm = Slurm(**what)
    SlurmCase.slurm.__enter__()
    unittest.addModuleCleanup(SlurmCase.slurm.__exit__)


class SlurmCase(ClusterCase):
    nodes = 0
    slurm = None

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

    def assert_numbered(self, job, ranks=1):
        """Of each rank of NUMBERED every line once, in its order."""
        for rank in range(ranks):
            self.assertEqual(self.written(job, rank=rank, attempts=[1]), list(range(1, LINES + 1)), f"of rank {rank}")

    def fail_node(self, name):
        """The machine is dead: nothing of it runs any more, nor says so; slurmctld notices."""
        daemon = int((self.slurm.folder / f"slurmd-{name}.pid").read_text())
        steps = {parent_of(pid) for pid in processes_with_environment(f"SLURMD_NODENAME={name}")} - {None}
        # All at once: none sees another die and has a word to say about it.
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for pid in [daemon, *steps, *processes_with_environment(f"SLURMD_NODENAME={name}")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sent)
        eventually(lambda: not processes_with_environment(f"SLURMD_NODENAME={name}"), f"{name} is dead")
        sh("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=burnt")
        self.addCleanup(self.repair_node, name)

    def repair_node(self, name):
        daemon = self.slurm.folder / f"slurmd-{name}.pid"

        def is_back():
            # One that finds its port taken still, by what is about to die, ends again.
            if not daemon.exists() or not Path(f"/proc/{daemon.read_text().strip()}").exists():
                sh("slurmd", "-N", name, check=False)
            state = sh("sinfo", "-h", "-n", name, "-o", "%T", check=False).strip()
            if state.startswith(("down", "drain")):
                sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            return bool(state) and set(state.split()) <= {"idle", "mixed", "allocated"}
        eventually(is_back, f"{name} is back", pause=0.5)

    def down(self):
        self.ok("down", "-y", deadline=3 * DEADLINE)
        self.assertEqual(self.queue(), {})
        self.assertEqual(self.pids(), [])
        self.assertEqual([str(p) for p in (self.folder / "home" / ".dtrain").glob("pool-*/*")], [])


__all__ = ["COUNTS", "LINES", "NUMBERED", "SKIPPED", "SlurmCase", "enter", "missing", "sh", "start_slurm", "which"]
