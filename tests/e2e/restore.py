"""The head's database on a disk that fails: what comes back, and that nothing is doubled or deleted."""

import sqlite3

from harness import *

# Counts steps from its checkpoint's on and commits each, until it is told to end; fails once, when told to.
COUNT = """
import json, os, socket, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
step, start = 0, os.environ.get("DTRAIN_CHECKPOINT")
if start:
    step = int(open(os.path.join(start, "shard-00000-of-00001", "step")).read())
print("began at", step, flush=True)
while not os.path.exists(os.environ["STOP"]):
    if os.path.exists(os.environ["STOP"] + ".fail"):
        os.remove(os.environ["STOP"] + ".fail"); raise SystemExit(9)
    if os.path.exists(os.environ["STOP"] + ".hold"):
        time.sleep(0.01); continue
    step += 1
    d = os.path.abspath("work-%d-%s" % (step, os.environ["DTRAIN_ATTEMPT"])); os.makedirs(d)
    open(os.path.join(d, "step"), "w").write(str(step))
    s.sendall(json.dumps({"type": "checkpoint", "step": step, "path": d, "ack": True}).encode() + b"\\n")
    answer = json.loads(f.readline()); assert answer.get("ok"), answer
    time.sleep(0.05)
"""


class RestoreCase(ClusterCase):
    def setUp(self):
        super().setUp()
        self.head = self.root() / "head"
        self.database = self.head / "head.db"

    def back_up(self):
        self.assertEqual(self.ask("POST", "/v1/backup")["path"], str(self.head / "head.db.backup"))

    @contextlib.contextmanager
    def head_away(self):
        """The head is killed, and not started again before this is over."""
        [watch] = self.agents("watch")
        os.kill(watch, signal.SIGSTOP)
        try:
            [head] = self.agents("head")
            os.kill(head, signal.SIGKILL)
            eventually(lambda: not Path(f"/proc/{head}/fd").exists() or not list(Path(f"/proc/{head}/fd").iterdir()),
                       "the head is away")
            yield
        finally:
            os.kill(watch, signal.SIGCONT)

    def wipe(self):
        """Nothing of the database can be read any more."""
        for file in (self.database, Path(f"{self.database}-wal")):
            file.write_bytes(b"\xa5" * file.stat().st_size)

    def back(self):
        """The head is back with a restored database: the status."""
        def restored():
            done = self.run_dtrain("status", "--json")
            status = json.loads(done.stdout) if done.returncode == 0 else {"cluster": {"store": {}}}
            return status["cluster"]["store"].get("restored") and status
        status = eventually(restored, "the head is back")
        eventually(lambda: [node["state"] for node in self.json("status")["nodes"]] == ["ready"], "its node too")
        return status

    def counting(self, *flags):
        stop = self.folder / "stop"
        (self.folder / "work").mkdir(exist_ok=True)
        (self.folder / "work" / "count.py").write_text(COUNT)
        job = self.json("submit", "-d", "--workdir", self.folder / "work", "--env", f"STOP={stop}", *flags, "--",
                        "python3", "count.py")["job"]
        self.wait_state(job, "running")
        return job, stop

    def steps(self, job):
        return [c["step"] for c in self.job(job)["checkpoints"]]


class Restore(RestoreCase):
    def test_a_database_that_is_gone_comes_back_under_a_running_job(self):
        ended = self.submit("echo before")
        self.wait_state(ended, "succeeded")
        job, stop = self.counting()
        self.back_up()
        known = len(self.steps(job))
        eventually(lambda: len(self.steps(job)) > known, "it goes on")
        later = self.submit("echo later")
        self.wait_state(later, "succeeded")
        hidden = self.rank_output(later, 0)
        supervisors = self.agents("supervise")
        with self.head_away():
            committed = sorted(p.name for p in (self.head / "storage" / job / "checkpoints").glob("checkpoint_*"))
            self.wipe()
        store = self.back()["cluster"]["store"]
        self.assertTrue(Path(store["restored"]["damaged"]).exists())
        self.assertLess(store["backup"]["age_s"], DEADLINE)
        # What was there is there, and what ran goes on.
        self.assertEqual(self.state(ended), "succeeded")
        self.assertEqual(self.ok("logs", ended), "before\n")
        self.wait_state(job, "running")
        self.assertEqual(self.agents("supervise"), supervisors)
        eventually(lambda: len(self.steps(job)) > len(committed), "checkpoints are committed")
        steps = self.steps(job)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        stop.touch()
        self.wait_state(job, "succeeded")
        self.assertEqual([a["attempt"] for a in self.job(job)["attempts"]], [1])
        folders = sorted(p.name for p in (self.head / "storage" / job / "checkpoints").glob("checkpoint_*"))
        self.assertEqual(folders[:len(committed)], committed)
        # It is said what was lost, and that is not deleted.
        status = self.ok("status")
        self.assertRegex(status, "head's database: restored .* from a copy of .*; what happened between is not known")
        self.assertIn(f"1 job not known to it, whose files stay: {later}", status)
        self.assertIn("was restored from a copy", json.dumps(self.ask("GET", f"/v1/jobs/{job}/events")))
        self.assertEqual(hidden.read_text(), "later\n")
        self.assertEqual(self.run_dtrain("result", later).returncode, 2)
        self.ok("rm", "-y", later)
        eventually(lambda: not hidden.exists(), "it is removed when somebody says so")
        self.assertNotIn(later, self.ok("status"))
        # From here on it is a head like any other.
        self.wait_state(self.submit("true"), "succeeded")

    def test_an_attempt_that_the_copy_does_not_know_is_ended_and_its_number_not_used(self):
        job, stop = self.counting("--max-restarts", "3")
        eventually(lambda: self.steps(job), "a checkpoint is committed")
        self.back_up()
        Path(f"{stop}.fail").touch()
        eventually(lambda: self.job(job)["checkpoints"][-1]["attempt"] == 2, "so is one of the next attempt")
        Path(f"{stop}.hold").touch()
        env = f"DTRAIN_JOB_ID={job}"
        with self.head_away():
            self.wipe()
        self.back()
        eventually(lambda: not processes_with_environment(env), "the attempt that it does not know has ended")
        eventually(lambda: self.job(job)["checkpoints"][-1]["attempt"] == 2, "what that has committed is found")
        newest = self.steps(job)[-1]
        self.assertIn("attempts may run until then", self.ok("status"))
        Path(f"{stop}.hold").unlink()
        self.wait_state(job, "running")
        first, last = self.job(job)["attempts"]
        self.assertEqual(first["state"], "lost")
        self.assertIn("how attempt 1 ended on node-0 is not known", first["reason"])
        self.assertGreater(last["attempt"], 1000)
        said = self.rank_output(job, 0, last["attempt"])
        eventually(lambda: said.read_text().endswith("\n"), "it says where it began")
        self.assertEqual(said.read_text(), f"began at {newest}\n")
        stop.touch()
        self.wait_state(job, "succeeded")
        steps = self.steps(job)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_what_can_still_be_read_is_not_lost(self):
        self.back_up()
        ended = self.submit("echo after the copy")
        self.wait_state(ended, "succeeded")
        job, stop = self.counting()
        with self.head_away():
            # All is in the file, and its log is lost: nobody can tell what it held.
            database = sqlite3.connect(self.database)
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            database.close()
            Path(f"{self.database}-wal").unlink(missing_ok=True)
        store = self.back()["cluster"]["store"]
        self.assertEqual(store["restored"]["jobs_saved"], 2)
        self.assertEqual(store["unknown_jobs"], [])
        self.assertEqual(self.ok("logs", ended), "after the copy\n")
        self.wait_state(job, "running")
        stop.touch()
        self.wait_state(job, "succeeded")
        self.assertEqual([a["attempt"] for a in self.job(job)["attempts"]], [1])

    def test_a_file_that_is_removed_under_the_head(self):
        ended = self.submit("echo before")
        self.wait_state(ended, "succeeded")
        self.database.unlink()
        # Acknowledged or not, none is lost that was.
        done = self.run_dtrain("submit", "--json", "-d", "--", "/bin/true")
        self.back()
        self.assertEqual(self.state(ended), "succeeded")
        self.assertTrue(self.database.exists())
        if done.returncode == 0:
            self.assertIn(json.loads(done.stdout)["job"], [j["job"] for j in self.json("status")["jobs"]])

    def test_without_a_whole_copy_it_says_so_and_touches_nothing(self):
        ended = self.submit("echo before")
        self.wait_state(ended, "succeeded")
        self.back_up()
        copies = [self.head / "head.db.backup", self.head / "head.db.backup.1"]
        with self.head_away():
            self.wipe()
            kept = copies[0].read_bytes()
            for copy in copies:
                copy.write_bytes(b"garbage")
            before = self.database.read_bytes()
        self.assertEqual(self.run_dtrain("status").returncode, 4)
        eventually(lambda: any("is damaged too" in log.read_text() for log in below(self.root(), "*.log")), "it is said")
        self.assertEqual(self.database.read_bytes(), before)
        # A whole one is put in its place.
        Path(f"{self.database}-wal").unlink()
        (self.folder / "whole").write_bytes(kept)
        (self.folder / "whole").rename(self.database)
        self.assertEqual(self.back()["cluster"]["store"]["restored"]["why"], "a copy was put in its place")
        self.assertEqual(self.ok("logs", ended), "before\n")


if __name__ == "__main__":
    main()
