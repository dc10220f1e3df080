"""A real head on this machine, and as many simulated nodes as wanted (simulated_nodes.cpp): for
scripts/bench_scale and scale.py."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

SOURCE = Path(os.environ.get("DTRAIN_SOURCE") or Path(__file__).resolve().parents[2])
BUILD = Path(os.environ.get("DTRAIN_BUILD") or SOURCE / "build")
TICKS = os.sysconf("SC_CLK_TCK")


class Simulation:
    """A local cluster of one real node, whose head lets `nodes` simulated ones in, `ranks` processors each."""

    def __init__(self, nodes, ranks=8, processes=2):
        self.nodes, self.ranks = nodes, ranks
        self.processes = min(processes, nodes)

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-scale-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DTRAIN_")}
        self.env.update(XDG_STATE_HOME=str(self.folder), NO_COLOR="1", DTRAIN_CLUSTER="scale")
        self.simulators = []
        try:
            yaml = self.folder / "cluster.yaml"
            yaml.write_text("cluster_name: scale\nprovider: {type: local}\n")
            self.run("up", "-y", yaml, stderr=subprocess.DEVNULL)
            self.pid = self.status()["cluster"]["head"]["pid"]
            self.root = Path(self.status()["cluster"]["head"]["root"])
            first = 0
            for i in range(self.processes):
                count = (self.nodes - first) // (self.processes - i)
                self.simulators.append(subprocess.Popen(
                    [BUILD / "tests" / "scale" / "simulated_nodes", self.root, str(first), str(count),
                     str(self.ranks)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env={**self.env, "TMPDIR": str(self.folder)}))
                first += count
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for each in self.simulators:
            each.stdin.close()
        for each in self.simulators:
            each.wait()
            each.stdout.close()
        self.run("down", "-y", check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *args, check=True, **more):
        return subprocess.run([str(BUILD / "cli" / "dtrain"), *map(str, args)], env=self.env, check=check,
                              stdin=subprocess.DEVNULL, **{"stdout": subprocess.DEVNULL, **more})

    def output(self, *args):
        return self.run(*args, stdout=subprocess.PIPE, text=True).stdout

    def start(self, *args, **more):
        return subprocess.Popen([str(BUILD / "cli" / "dtrain"), *map(str, args)], env=self.env,
                                stdin=subprocess.DEVNULL, text=True, **more)

    def status(self):
        return json.loads(self.output("status", "--json"))

    def ask(self, command, of=None):
        """Each simulator's answer; asked all at once."""
        asked = self.simulators if of is None else [self.simulators[of]]
        for each in asked:
            each.stdin.write(command + "\n")
            each.stdin.flush()
        return [json.loads(each.stdout.readline()) for each in asked]

    def submit(self, nodes, seconds, reports=1, lines=0, *flags):
        """Of a job of all ranks of `nodes` nodes: its id."""
        answer = self.output("submit", "--json", "-d", "--nnodes", nodes, "--nproc-per-node", self.ranks, "--cpus", 1,
                             *flags, "--", "true", seconds, reports, lines)
        return json.loads(answer.splitlines()[0])["job"]

    def job(self, job):
        return json.loads(self.output("result", "--json", job))

    def wait_for(self, job, *states, limit=120):
        """Until its state is one of them; (that state, seconds)."""
        begin = time.monotonic()
        while True:
            state = next(each["state"] for each in self.status()["jobs"] if each["job"] == job)
            if state in states or time.monotonic() - begin > limit:
                return state, time.monotonic() - begin
            time.sleep(0.02)

    def processor(self):
        """Seconds of the head until now."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self):
        """MiB of the head."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0

    def figures(self):
        """What the simulators measured since the last call; the worst of each."""
        all_ = self.ask("figures")
        worst = {"connected": sum(each["connected"] for each in all_),
                 "events": sum(each["events"] for each in all_),
                 "dials_failed": sum(each["dials_failed"] for each in all_),
                 "processor_s": sum(each["processor_s"] for each in all_)}
        for kind in ("heartbeats", "acks"):
            worst[kind] = {name: max(each[kind][name] for each in all_) for name in ("p50_ms", "p99_ms", "max_ms")}
        return worst

    def kill_head(self):
        os.kill(self.pid, signal.SIGKILL)

    def await_head(self, killed):
        """Until another than that one answers."""
        while True:
            done = self.run("status", "--json", check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            pid = json.loads(done.stdout)["cluster"]["head"]["pid"] if done.returncode == 0 else killed
            if pid != killed:
                self.pid = pid
                return
            time.sleep(0.005)
