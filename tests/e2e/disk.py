"""What is kept and what goes: checkpoints, `retention`, `down`'s question, `prune`."""

from harness import *

# Commits a checkpoint of so many bytes by a report.
CHECKPOINT = """
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
lines = s.makefile()
for step in range(1, int(sys.argv[1]) + 1):
    d = os.path.abspath("mine-%d-%s" % (step, os.environ["DTRAIN_JOB_ID"]))
    os.makedirs(d)
    open(d + "/model", "wb").write(os.urandom(int(sys.argv[2])))
    s.sendall(json.dumps({"type": "checkpoint", "step": step, "path": d, "ack": True}).encode() + b"\\n")
    assert "error" not in json.loads(lines.readline())
"""


class DiskCase(ClusterCase):
    def checkpoint_job(self, count=1, size=1000, *flags):
        (self.folder / "work").mkdir(exist_ok=True)
        (self.folder / "work" / "save.py").write_text(CHECKPOINT)
        job = self.json("submit", "-d", "--workdir", self.folder / "work", *flags, "--", "python3",
                        "save.py", str(count), str(size))["job"]
        self.wait_state(job, "succeeded")
        return job

    def restart_head(self):
        old = self.agents("head")
        os.kill(old[0], signal.SIGKILL)
        eventually(lambda: (now := self.agents("head")) and now != old
                   and self.run_dtrain("status").returncode == 0, "the head is back")

    def storage(self, job):
        return self.root() / "head" / "storage" / job

    def cluster_yaml(self, more):
        self.write_cluster(1)
        with (self.folder / "cluster.yaml").open("a") as file:
            file.write(more)


class Kept(DiskCase):
    def test_settings_alone_let_go_and_up_takes_them_over(self):
        job = self.checkpoint_job(size=100_000)
        self.cluster_yaml("retention: {size: 90kB}\n")
        self.assertEqual(self.json("up", self.folder / "cluster.yaml")["action"], "changed")
        eventually(lambda: not self.storage(job).exists(), "it is forgotten")
        status = self.ok("status")
        self.assertRegex(status, f"forgotten (.*ago|just now): {job} .*retention.size is")
        refused = self.run_dtrain("result", job)
        self.assertEqual(refused.returncode, 2)
        # Kept by the head, whatever happens; and taken back like any other key.
        self.restart_head()
        job = self.checkpoint_job(size=1000)
        self.assertEqual(self.json("up", self.folder / "cluster.yaml")["action"], "none")
        self.write_cluster(1)
        self.assertEqual(self.json("up", self.folder / "cluster.yaml")["action"], "changed")
        self.assertTrue(self.storage(job).exists())

    def test_down_names_all_whose_checkpoints_are_nowhere_else(self):
        shared = self.folder / "shared"
        shared.mkdir()
        elsewhere = self.checkpoint_job(1, 100, "--storage-path", shared)
        jobs = [self.checkpoint_job() for _ in range(3)]
        asked = self.run_dtrain("down")
        self.assertEqual(asked.returncode, 1)
        for job in jobs:
            self.assertIn(job, asked.stderr)
        self.assertNotIn(elsewhere, asked.stderr)
        self.assertIn("3 checkpoints", asked.stderr)
        self.assertIn("--keep-files", asked.stderr)
        # Pulled whole: nobody need be asked about it, also without a head. Its logs alone are not
        # enough.
        self.ok("pull", jobs[0])
        self.ok("pull", jobs[1], "--logs", "-o", "logs")
        self.restart_head()
        asked = self.run_dtrain("down")
        self.assertNotIn(jobs[0], asked.stderr)
        self.assertIn("2 checkpoints", asked.stderr)
        for job in jobs[1:]:
            self.ok("pull", job)
        self.ok("down")


class Prune(DiskCase):
    nodes = 0

    def setUp(self):
        super().setUp()
        # Sent by content over the network, as to machines elsewhere.
        self.env.update(DTRAIN_STAGE="1", DTRAIN_CONTENT_FETCH="network")
        self.write_cluster(1)
        self.ok("up", self.folder / "cluster.yaml")

    def workdir(self, name):
        folder = self.folder / name
        folder.mkdir()
        (folder / "data").write_bytes(os.urandom(100_000))
        return folder

    def stores(self):
        return {"head": self.root() / "head" / "content", "node-0": self.root() / "nodes" / "node-0" / "content"}

    def blobs(self, store):
        return [p for p in below(store / "blobs") if p.is_file()]

    def age(self):
        """As if the last use of all content were a day ago."""
        for store in self.stores().values():
            for blob in self.blobs(store):
                then = time.time() - 86400
                os.utime(blob, ns=(int(then * 1e9), blob.stat().st_mtime_ns))

    def test_content_of_jobs_that_are_gone_comes_back(self):
        gone = self.submit("cat data | wc -c", "--workdir", self.workdir("gone"))
        self.wait_state(gone, "succeeded")
        kept = self.submit("while [ ! -e go ]; do sleep 0.02; done; wc -c data", "--workdir",
                           self.workdir("kept"), "--max-restarts", "1")
        self.wait_state(kept, "running")
        self.ok("rm", "-y", gone)
        before = {name: len(self.blobs(store)) for name, store in self.stores().items()}
        self.assertEqual(self.json("prune")["bytes"], 0)  # used just now
        self.age()
        seen = self.json("prune", "--dry-run")
        self.assertTrue(seen["dry_run"])
        self.assertGreater(seen["bytes"], 200_000)
        self.assertEqual([n["node"] for n in seen["nodes"]], ["head", "node-0"])
        self.assertEqual({name: len(self.blobs(store)) for name, store in self.stores().items()}, before)
        self.assertRegex(self.ok("prune"), r"node-0 +content +2 .*\n.*came back\n$")
        for name, store in self.stores().items():
            self.assertEqual(len(self.blobs(store)), before[name] - 2)
        self.assertEqual(self.json("prune")["bytes"], 0)
        # What the job that runs is made of is there: also for its next attempt.
        for pid in self.agents("supervise"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: (d := next(self.root().glob(f"nodes/node-0/jobs/{kept}/workdir-2"), None))
                   and ((d / "go").touch() or True), "a second attempt")
        self.wait_state(kept, "succeeded")

    def test_an_attempt_that_ended_leaves_the_last_failed_workdir_alone(self):
        job = self.submit("echo $DTRAIN_ATTEMPT >mine; [ $DTRAIN_ATTEMPT = 4 ]", "--workdir",
                          self.workdir("work"), "--max-restarts", "3")
        self.wait_state(job, "succeeded")
        left = {p.name for p in self.root().glob(f"nodes/node-0/jobs/{job}/workdir-*")}
        self.assertEqual(left, {"workdir-3", "workdir-4"})

    def test_a_node_that_is_away_is_named(self):
        # A watch that stands still lives: nobody starts another, and it starts no node agent.
        watch = self.agents("watch")[0]
        os.kill(watch, signal.SIGSTOP)
        try:
            for pid in self.agents("node"):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: self.json("status")["nodes"][0]["state"] != "ready", "the node is away")
            pruned = self.run_dtrain("prune")
        finally:
            os.kill(watch, signal.SIGCONT)
        self.assertEqual(pruned.returncode, 1)
        self.assertIn("node-0: it is not connected", pruned.stderr)


@unittest.skipUnless(os.geteuid() == 0, "a small disk is made by mount(8)")
class SmallDisk(DiskCase):
    nodes = 0

    def setUp(self):
        super().setUp()
        state = self.folder / "state"
        state.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "dtrain-test", state])
        if mounted.returncode != 0:
            self.skipTest("no mount here")
        self.addCleanup(subprocess.run, ["umount", "-l", state])
        self.write_cluster(1)
        self.ok("up", self.folder / "cluster.yaml")

    def tearDown(self):
        self.run_dtrain("down", "-y")

    def test_a_checkpoint_stays_however_full_the_disk_is_and_status_tells(self):
        job = self.checkpoint_job(size=60_000_000)
        for _ in range(2):
            self.restart_head()
            status = eventually(lambda: (s := self.json("status"))["cluster"]["disk"]["ended_jobs"] and s,
                                "the head has looked at its disk")
            self.assertEqual(len(status["jobs"]), 1)
            self.assertTrue((self.storage(job) / "checkpoints/checkpoint_000000/manifest.json").exists())
        self.assertIn("dtrain rm", status["cluster"]["warnings"][0])
        self.assertIn("warning: the head's disk", self.ok("status"))


if __name__ == "__main__":
    main()
