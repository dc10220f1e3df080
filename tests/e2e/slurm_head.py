"""A head in allocations of its own, with a real Slurm of four nodes: tests/support/slurm.py."""

import fcntl
import shutil
import sys
import threading

from harness import *
from slurm_harness import *


def setUpModule():
    start_slurm(nodes=4, gpus=2)


class HeadCase(SlurmCase):
    def setUp(self):
        super().setUp()
        # Also of a test that has failed: the next has a cluster of the same name.
        self.addCleanup(lambda: eventually(lambda: not sh("squeue", "-h", "--me"), "no job is left"))
        self.addCleanup(sh, "scancel", "--me")

    def write(self, count, options="exclusive: true", head="time: 30", **keys):
        more = "".join(f"{key}: {value}\n" for key, value in keys.items())
        (self.folder / "pool.yaml").write_text(
            f"cluster_name: pool\nprovider: {{type: slurm}}\nhead_node_type: head\n{more}available_node_types:\n"
            f"  head: {{resources: {{CPU: 1}}, node_config: {{{head}}}}}\n"
            f"  gpu:\n    min_workers: {count}\n    node_config: {{{options}}}\n")

    def nodes_by_state(self, state):
        return sorted(n["node"] for n in self.json("status")["nodes"]
                      if n["state"] == state and n["node"] != "head-node")

    def heads(self):
        """The head's jobs that are not over, by age, as (id, state, reason)."""
        rows = sh("squeue", "-h", "--me", "-n", "dtrain-pool", "-S", "i", "-o", "%i|%T|%r|%k").split("\n")
        return [tuple(row.split("|")[:3]) for row in rows if "dtrain-head" in row]

    def head(self):
        """The id of the one that runs."""
        return next((job for job, state, _ in self.heads() if state == "RUNNING"), None)

    def nodes_jobs(self):
        return sorted(set(self.queue()) - {job for job, *_ in self.heads()})

    def succession(self):
        return self.json("status")["cluster"]["head"]["succession"]

    def place(self):
        [root] = (self.folder / "home" / ".dtrain").glob("pool-*/head")
        return root

    def wait_answers(self):
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head answers", 2 * DEADLINE, pause=0.2)


class Up(HeadCase):
    def test_up_use_and_down(self):
        self.write(2)
        report = self.up()
        self.assertEqual([(t["type"], t["wanted"], t["ready"]) for t in report["asked"]],
                         [("gpu", 2, ["gpu-1", "gpu-2"])])
        status = self.json("status")
        self.assertEqual([n["node"] for n in status["nodes"]], ["gpu-1", "gpu-2", "head-node"])
        # Nothing of it runs beside Slurm's jobs.
        job = self.head()
        for pid in self.agents("head") + self.agents("watch"):
            self.assertIn(b"SLURM_JOB_ID=", Path(f"/proc/{pid}/environ").read_bytes())
        eventually(lambda: self.succession()["next"], "a successor is asked for")
        [_, (successor, state, reason)] = self.heads()
        self.assertEqual((state, reason, self.succession()["job"]), ("PENDING", "Dependency", job))
        # No rank runs beside the head.
        self.assertIn("can never run", self.run_dtrain("submit", "--nnodes", "3", "--", "/bin/true").stderr)
        said = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE")
        for rank in range(2):
            self.assertIn(f"{rank} of 2", said)
        # On the head's own node.
        self.assertEqual(self.ok("exec", "--node", "head-node", "--", "/bin/sh", "-c", "echo here $SLURM_JOB_ID").strip(),
                         f"here {job}")
        # The same again is nothing new.
        queue = self.queue()
        report = self.up()
        self.assertEqual((report["action"], report["each"][0]["steps"], self.queue()), ("none", [], queue))
        # The next is to be asked for as the YAML says now, and there is one.
        self.write(2, head="time: 31")
        self.up()
        eventually(lambda: [each for each, *_ in self.heads()] not in ([job], [job, successor]), "another successor")
        eventually(lambda: len(self.heads()) == 2, "there is one")
        self.assertEqual(self.head(), job)
        queue = self.queue()
        report = self.up()
        # From another laptop, which knows the YAML.
        shutil.rmtree(self.folder / "state")
        found = self.up()
        self.assertEqual((found["id"], found["each"][0]["steps"], self.queue()), (report["id"], [], queue))
        # Its agents are started anew in place.
        report = self.up("--force")
        self.assertEqual((self.head(), self.queue()), (job, queue))
        self.wait_ready("gpu-1", "gpu-2")
        self.down()

    def test_a_second_head_is_refused(self):
        self.write(0)
        self.up()
        eventually(lambda: self.succession()["next"], "a successor is asked for")
        queue = self.queue()
        yaml = self.folder / "pool.yaml"
        yaml.write_text("".join(line for line in yaml.read_text().splitlines(True)
                                if not line.startswith(("head_node_type:", "  head:"))))
        done = self.run_dtrain("up", yaml)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("head_node_type was head, and is not given", done.stderr)
        self.assertIn("dtrain down -c pool first", done.stderr)
        self.assertEqual(self.queue(), queue)
        self.assertEqual(len(self.agents("head")), 1)
        self.down()

    def test_it_waits_in_the_queue_and_says_why(self):
        other = sh("sbatch", "--parsable", "--exclusive", "--nodes=4", "--wrap", "exec sleep 1000",
                   "--output=/dev/null").strip()
        self.write(1)
        said = self.folder / "said"
        with open(said, "w") as out:
            process = self.start("up", self.folder / "pool.yaml", "-y", stdout=out)
        eventually(lambda: re.search("head-node: .*waits in partition normal: (Resources|Priority)", said.read_text()),
                   "why it waits")
        done = self.run_dtrain("status")
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=DEADLINE), 0)
        # The next goes on with what is asked for, or asks anew where that is other now.
        [(first, *_)] = self.heads()
        self.write(1, head="time: 29")
        done = self.run_dtrain("up", self.folder / "pool.yaml", "--dry-run")
        self.assertIn("what waits was asked for otherwise", done.stdout + done.stderr)
        with open(said, "w") as out:
            process = self.start("up", self.folder / "pool.yaml", "-y", stdout=out)
        eventually(lambda: [id for id, *_ in self.heads() if id != first], "it is asked for anew")
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=DEADLINE), 0)
        [(job, *_)] = self.heads()
        self.assertNotEqual(job, first)
        sh("scancel", other)
        self.assertEqual(self.up()["asked"][0]["ready"], ["gpu-1"])
        self.assertEqual(self.head(), job)
        self.down()

    def test_what_can_never_run_is_said_at_once(self):
        self.write(1, head="time: 30, constraint: gold")
        done = self.run_dtrain("up", self.folder / "pool.yaml", "-y", deadline=2 * DEADLINE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("Invalid feature specification", done.stderr)
        self.assertEqual(self.queue(), {})


class HandOver(HeadCase):
    """The head's allocation ends while a job runs: the next takes over, and no line is lost."""

    def setUp(self):
        super().setUp()
        self.count = self.folder / "count"
        self.write(1)
        self.up()
        self.job_id = self.submit(COUNTS, "--env", f"COUNT={self.count}")
        self.wait_state(self.job_id, "running")
        self.lines()
        eventually(lambda: len(self.heads()) == 2, "a successor is asked for")
        self.before = self.head()
        self.most = 0
        self.watching = True
        thread = threading.Thread(target=self.watch_heads)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(setattr, self, "watching", False)

    def watch_heads(self):
        while self.watching:
            heads = self.agents("head")
            # What one has just forked is not another.
            forked = [pid for pid in heads if parent_of(pid) in heads]
            self.most = max(self.most, len(heads) - len(forked))
            time.sleep(0.05)

    def lines(self):
        before = int(self.count.read_text()) if self.count.exists() else 0
        eventually(lambda: self.count.exists() and int(self.count.read_text() or before) > before + 10, "lines")

    def goes_on(self):
        """In the next allocation, the job in its first attempt."""
        eventually(lambda: self.head() not in (None, self.before), "the next head runs", 2 * DEADLINE)
        self.lines()
        self.wait_answers()
        self.wait_ready("gpu-1")
        self.lines()
        eventually(lambda: len(self.heads()) == 2, "a successor is asked for")
        self.assertEqual(self.most, 1)

    def ends_well(self):
        self.assertEqual(self.state(self.job_id), "running")
        Path(f"{self.count}.end").touch()
        self.wait_state(self.job_id, "succeeded")
        result = self.json("result", self.job_id)
        self.assertEqual(([a["attempt"] for a in result["attempts"]], result["exit_code"]), ([1], 0))
        written = self.written(self.job_id, attempts=[1])
        self.assertEqual(written, list(range(1, len(written) + 1)))
        self.assertEqual(len(written), int(self.count.read_text()))
        self.down()

    def test_its_time_is_over(self):
        sh("scancel", "--signal=USR1", "--batch", self.before)
        self.goes_on()
        self.assertIn('"ended":false', (self.place() / "turn.json").read_text())
        # And once more, while somebody follows.
        self.before = self.head()
        said, told = self.folder / "said", self.folder / "told"
        with said.open("w") as out, told.open("w") as errors:
            follower = self.start("logs", "-f", self.job_id, stdout=out, stderr=errors)
        eventually(lambda: said.stat().st_size, "it follows")
        sh("scancel", "--signal=USR1", "--batch", self.before)
        self.goes_on()
        self.ends_well()
        self.assertEqual(follower.wait(DEADLINE), 0, told.read_text())
        written = [int(line.split()[-1]) for line in said.read_text().split("\n") if " line " in f" {line}"]
        self.assertEqual(written, list(range(1, int(self.count.read_text()) + 1)), told.read_text())

    def test_it_is_cancelled(self):
        sh("scancel", self.before)
        self.goes_on()
        self.ends_well()

    def test_its_node_dies(self):
        [node] = sh("squeue", "-h", "-j", self.before, "-o", "%N").split()
        self.fail_node(node)
        self.goes_on()
        # Whoever comes after one that did not end in order says so.
        self.assertIn("did not end in order", (self.place() / "head.log").read_text())
        self.ends_well()

    def test_its_watch_leaves_a_lock_on_the_storage(self):
        """As that of a machine that has died, or is cut off, where flock(2) counts on all machines."""
        root = self.place().parent / "head-node"
        lock = os.open(root / "watch.lock", os.O_RDWR)
        self.addCleanup(os.close, lock)
        # In the queue before the next watch is.
        thread = threading.Thread(target=fcntl.flock, args=(lock, fcntl.LOCK_EX))
        thread.start()
        eventually(lambda: re.search(r"-> FLOCK +ADVISORY +WRITE", Path("/proc/locks").read_text()), "it waits for the lock")
        elsewhere = dict(json.loads((root / "watch.pid").read_text()), boot_id="another")
        (root / "watch.new").write_text(json.dumps(elsewhere))
        (root / "watch.new").rename(root / "watch.pid")
        sh("scancel", self.before)
        thread.join()
        self.goes_on()
        self.assertIn("holds the lock", (root / "watch.log").read_text())
        self.ends_well()

    def test_no_successor_is_left(self):
        """All of its jobs are cancelled by hand: jobs go on, and the next `up` brings the head back."""
        def none_is_left():  # nor one that the head submits meanwhile
            jobs = [job for job, *_ in self.heads()]
            if jobs:
                sh("scancel", *jobs)
            return not jobs

        eventually(none_is_left, "its jobs are over", pause=0.5)
        done = self.run_dtrain("status")
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("has no allocation", done.stderr)
        self.lines()
        self.up()
        self.ends_well()


if __name__ == "__main__":
    enter()
    why = missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    main()
