"""A contained watch as PID 1 of a namespace: its node leaves the cluster in order, and nothing is left."""

from harness import *

AGENT = BUILD / "agent" / "dtrain-agent"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"]


def why_not():
    """None where this process may make a PID namespace."""
    try:
        probe = subprocess.run([*NAMESPACE, "/bin/true"], capture_output=True, text=True)
    except FileNotFoundError:
        return "needs unshare of util-linux"
    return None if probe.returncode == 0 else "needs a PID namespace: " + probe.stderr.strip()


# Counts until it is asked to end, then says three lines more; leaves daemons behind, two living and one dead.
COUNTS = """
(setsid sleep 1000 &); (setsid sh -c "trap '' TERM; sleep 1000" &); (setsid true &)
trap 'for n in 1 2 3; do echo last $n; done; exit 0' TERM
i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done
"""
# Does not end when it is asked to, only says so.
STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"

# Saves when it is asked to end, a shard of 8 MB a rank; begins with nothing else to do where there is a checkpoint.
SAVES = """
import json, os, signal, socket
start = os.environ.get("DTRAIN_CHECKPOINT")
if start:
    sizes = [os.path.getsize(os.path.join(start, shard, "weights")) for shard in sorted(os.listdir(start))
             if shard.startswith("shard-")]
    print("from", os.path.basename(start), sizes)
    raise SystemExit(0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
rank = int(os.environ["RANK"])
folder = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-%d" % rank)
os.makedirs(folder)
with open(os.path.join(folder, "weights"), "wb") as file:
    file.write(os.urandom(8 << 20))
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
s.sendall(json.dumps({"type": "checkpoint", "step": 7, "path": folder, "shard": rank,
                      "shards": int(os.environ["WORLD_SIZE"]), "ack": True}).encode() + b"\\n")
print(s.makefile().readline(), flush=True)
"""


@unittest.skipIf(why_not(), str(why_not()))
class Contained(ClusterCase):
    nodes = 2

    def setUp(self):
        super().setUp()
        self.box = self.folder / "box"
        self.box.mkdir()
        # node-1 goes from the cluster's own watch into the box.
        config = json.loads((self.root() / "watch.json").read_text())
        inside = [child for child in config["children"] if child["name"] == "node-1"]
        self.assertEqual(len(inside), 1, config)
        config["children"] = [child for child in config["children"] if child["name"] != "node-1"]
        (self.root() / "watch.json").write_text(json.dumps(config))
        (self.box / "watch.json").write_text(json.dumps({"children": inside}))
        old = self.agents("watch")[0]
        os.kill(old, signal.SIGKILL)
        eventually(lambda: (w := self.agents("watch")) and old not in w, "a watch without node-1")
        node = next(p for p in self.agents("node")
                    if b"node-1" in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(node, signal.SIGTERM)
        eventually(lambda: not Path(f"/proc/{node}").exists(), "node-1 has ended")

    def contain(self, *flags, namespace=True):
        """Starts the box, without a namespace a mere process; returns once its node has joined."""
        (self.box / "said").unlink(missing_ok=True)
        with open(self.box / "said", "w") as said:
            self.process = subprocess.Popen(
                [*(NAMESPACE if namespace else []), AGENT, "watch", "--contained", "--root", self.box, *flags],
                env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        self.started.append(self.process)
        self.first = self.process.pid
        if namespace:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            self.first = int(eventually(lambda: children.read_text().split(), "PID 1 of the box")[0])
        self.wait_node("ready")

    def node(self):
        return next((n for n in self.json("status")["nodes"] if n["node"] == "node-1"), {"state": "none"})

    def wait_node(self, state):
        return eventually(lambda: (n := self.node())["state"] == state and n, f"node-1 is {state}")

    def inside(self):
        """What runs in the box, PID 1 aside, as {pid: state}; pids are ours."""
        found = {}
        space = os.stat(f"/proc/{self.first}/ns/pid").st_ino
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.stat(entry / "ns" / "pid").st_ino == space:
                    found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        found.pop(self.first, None)
        return found

    def tell(self, number=signal.SIGTERM):
        os.kill(self.first, number)

    def end(self):
        """The exit code of the box; nothing of it is left."""
        code = self.process.wait(timeout=DEADLINE)
        eventually(lambda: not [p for p in processes_with(str(self.box))], "nothing of the box runs")
        return code

    def said(self):
        return (self.box / "said").read_text()

    def lines(self, job, rank, attempt=1):
        """Of a rank that counted: all lines are there, in order, also the last."""
        out = self.ok("logs", job, "--rank", rank, "--attempt", attempt).splitlines()
        self.assertEqual(out[-3:], ["last 1", "last 2", "last 3"], out[-5:])
        self.assertEqual(out[:-3], [f"line {i + 1}" for i in range(len(out) - 3)])
        return len(out)

    def start_counting(self, *flags, nnodes="2"):
        job = self.submit(COUNTS, "--nnodes", nnodes, "--stop-grace-s", "10", *flags)
        self.wait_state(job, "running")
        for rank in (0, 1):
            eventually(lambda: self.rank_output(job, rank).read_text().count("\n") > 10, "it counts")
        return job

    def first_ended(self, job):
        """Its first attempt; the job itself begins anew, for a node that was told to leave is no failure of it."""
        return eventually(lambda: (a := self.job(job)["attempts"][0])["state"] not in ("starting", "running", "stopping")
                          and a, "the attempt has ended")

    def test_told_to_end_it_leaves_in_order_and_the_job_says_the_cause(self):
        self.contain()
        job = self.start_counting()
        eventually(lambda: "Z" not in self.inside().values(), "no zombie stays in the box")
        self.tell()
        self.assertEqual(self.end(), 0, self.said())
        cause = "node-1 leaves the cluster: its container was told to end (SIGTERM)"
        self.assertEqual(self.first_ended(job)["reason"], cause)
        for rank in (0, 1):
            self.assertGreater(self.lines(job, rank), 10)
        # Once it has left it does not come back, not even to hear so.
        log = next(self.root().glob("nodes/node-1/node.log")).read_text()
        self.assertNotIn("joined the head", log[log.index("told to leave"):])
        left = self.wait_node("gone")
        self.assertEqual(left["reason"], "its container was told to end (SIGTERM)")
        self.assertIn(left["reason"], self.ok("status"))
        # Who follows the job is told too.
        self.ok("stop", job)
        self.assertIn(cause, self.run_dtrain("logs", "-f", job).stderr)
        said = self.said()
        self.assertIn("told to end (SIGTERM): the ranks here stop by their job's grace", said)
        self.assertIn("node-1 ended: exit code 0", said)
        self.assertTrue(said.endswith("all has ended, and the head knows\n"), said)

    def test_the_job_goes_on_elsewhere_at_once_and_the_node_may_come_back(self):
        self.contain()
        job = self.start_counting(nnodes="1:2")
        begun = time.monotonic()
        self.tell(signal.SIGINT)
        again = lambda: self.job(job)["attempts"][-1]
        eventually(lambda: again()["attempt"] == 2 and again()["state"] == "running", "the job goes on")
        # Without the lease of 60 s.
        self.assertLess(time.monotonic() - begun, 50)
        self.assertEqual([n["node"] for n in again()["nodes"]], ["node-0"])
        self.assertEqual(self.end(), 0, self.said())
        self.contain()
        self.assertEqual(self.node()["reason"], "")
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.wait_state(self.submit("true", "--nnodes", "2"), "succeeded")

    def test_the_checkpoint_that_ranks_save_at_the_end_is_where_the_job_goes_on(self):
        self.contain()
        (self.folder / "save.py").write_text(SAVES)
        job = self.json("submit", "-d", "--nnodes", "1:2", "--max-restarts", "1", "--", "python3", "save.py")["job"]
        self.wait_state(job, "running")
        for rank in (0, 1):
            eventually(lambda: self.rank_output(job, rank).read_text() == "up\n", "it is up")
        self.tell()
        self.assertEqual(self.end(), 0, self.said())
        self.wait_state(job, "succeeded")
        self.assertEqual(self.ok("logs", job, "--rank", "0", "--attempt", "2"),
                         f"from checkpoint_000000 [{8 << 20}, {8 << 20}]\n")

    def test_it_reaps_what_is_left_to_it(self):
        self.contain()
        # Two forks make a daemon whose parent PID 1 is: one lives on, one has ended.
        self.ok("exec", "--node", "node-1", "--", "/bin/sh", "-c",
                "(setsid sleep 1000 >/dev/null 2>&1 </dev/null &); (setsid true >/dev/null 2>&1 &); exit 0")
        eventually(lambda: any(parent_of(pid) == self.first and b"1000" in Path(f"/proc/{pid}/cmdline").read_bytes()
                               for pid in self.inside()), "the daemon is a child of PID 1")
        eventually(lambda: "Z" not in self.inside().values(), "no zombie stays in the box")
        self.tell()
        self.assertEqual(self.end(), 0, self.said())

    def test_where_it_is_not_pid_1_it_leaves_nothing_behind_either(self):
        self.contain(namespace=False)
        file = self.folder / "daemon"
        self.ok("exec", "--node", "node-1", "--", "/bin/sh", "-c",
                "(setsid sh -c 'echo $$ >\"$0\"; exec sleep 1000' \"$0\" </dev/null >/dev/null 2>&1 &)", file)
        pid = int(eventually(lambda: file.exists() and file.read_text(), "there is a daemon"))
        eventually(lambda: parent_of(pid) == self.first, "it is left to the watch")
        self.tell()
        self.assertEqual(self.end(), 0, self.said())
        self.assertFalse(Path(f"/proc/{pid}").exists())

    def test_a_second_signal_shortens_it(self):
        self.contain("--end-within", "600")
        job = self.submit(STUBBORN, "--nnodes", "2", "--stop-grace-s", "500")
        self.wait_state(job, "running")
        for rank in (0, 1):
            eventually(lambda: self.rank_output(job, rank).read_text() == "up\n", "it is up")
        self.tell()
        out = self.rank_output(job, 1)
        eventually(lambda: "asked" in out.read_text(), "the ranks are asked")
        self.assertIsNone(self.process.poll())
        self.tell()
        # node-0's rank goes on: its grace is nobody else's to shorten.
        # A busy machine may need more than the 6 s that are left.
        code = self.end()
        self.assertIn(code, (0, 3), self.said())
        self.assertIn("told to end once more", self.said())
        if code == 0:
            self.assertEqual(self.wait_node("gone")["reason"], "its container was told to end (SIGTERM)")
        self.ok("stop", job, "--grace-s", "0")
        self.first_ended(job)

    def test_ranks_get_no_more_than_their_part_of_the_time(self):
        self.contain("--end-within", "60")
        job = self.submit(STUBBORN, "--nnodes", "2", "--stop-grace-s", "500")
        self.wait_state(job, "running")
        eventually(lambda: self.rank_output(job, 1).read_text() == "up\n", "it is up")
        begun = time.monotonic()
        self.tell()
        self.assertEqual(self.process.wait(timeout=DEADLINE), 0, self.said())
        self.assertGreater(time.monotonic() - begun, 44.9)  # three quarters of 60 s
        self.assertLess(time.monotonic() - begun, 100)      # and not its job's grace
        self.ok("stop", job, "--grace-s", "0")
        self.first_ended(job)

    def test_a_head_that_does_not_answer_is_not_waited_for(self):
        # Three quarters of it are the ranks' grace, and it is over before the head holds a silent node to be lost.
        self.contain("--end-within", "14")
        job = self.start_counting()
        head = self.agents("head")[0]
        stop_between_handlers(head)
        try:
            self.tell()
            self.assertEqual(self.end(), 3, self.said())
        finally:
            os.kill(head, signal.SIGCONT)
        self.assertTrue(self.said().splitlines()[-1].startswith("all has ended, but was cut short"), self.said())
        # What it said is heard all the same; what its ranks wrote comes when it does.
        self.contain()
        self.first_ended(job)
        self.assertIn("its container was told to end (SIGTERM)", self.first_ended(job)["reason"])
        eventually(lambda: "last 3" in self.ok("logs", job, "--attempt", "1", "--rank", "1"), "the last lines are at the head")
        self.lines(job, 1)
        self.ok("stop", job)
        self.wait_state(job, "stopped")

    def test_killed_where_it_is_not_pid_1_its_node_leaves_all_the_same(self):
        self.contain(namespace=False)
        job = self.start_counting()
        self.tell(signal.SIGKILL)
        self.assertEqual(self.end(), -signal.SIGKILL)
        self.first_ended(job)
        self.assertEqual(self.first_ended(job)["reason"], "node-1 leaves the cluster: its watch has died")
        self.assertEqual(self.wait_node("gone")["reason"], "its watch has died")
        for rank in (0, 1):
            self.lines(job, rank)

    def test_down_ends_it(self):
        self.contain()
        self.ok("down", "-y")
        self.assertEqual(self.end(), 0, self.said())


if __name__ == "__main__":
    main()
