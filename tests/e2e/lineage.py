"""Jobs that go on with an ended one (submit --resume), and warm starts (--from-checkpoint)."""

import shutil

from harness import *

# Counts steps from its checkpoint's on, reporting each; ends badly at FAIL_AT, well at LAST.
TRAIN = """
import json, os, socket
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
def ask(o):
    s.sendall(json.dumps({**o, "ack": True}).encode() + b"\\n")
    answer = json.loads(f.readline()); assert answer.get("ok"), answer
step, start = 0, os.environ.get("DTRAIN_CHECKPOINT")
if start:
    step = int(open(os.path.join(start, "shard-00000-of-00001", "step")).read())
print("began at", step, "version", open("version").read().strip(), os.environ.get("TOKEN", "none"))
while step < int(os.environ["LAST"]):
    step += 1
    ask({"type": "metrics", "step": step, "metrics": {"loss": 1.0 / step}})
    d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-%d" % step); os.makedirs(d)
    open(os.path.join(d, "step"), "w").write(str(step))
    ask({"type": "checkpoint", "step": step, "path": d, "metrics": {"score": -step}})
    if step == int(os.environ.get("FAIL_AT", "-1")):
        raise SystemExit(9)
"""


class Lineage(ClusterCase):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text(TRAIN)
        (self.work / "version").write_text("1")
        (self.work / "job.yaml").write_text(
            "name: count\ncommand: [/usr/bin/env, python3, train.py]\nenv: {LAST: '5', FAIL_AT: '3'}\n"
            "checkpoint: {num_to_keep: 1, score_attribute: score}\n")

    def run_job(self, *flags, code=0, **more):
        done = self.run_dtrain("submit", *flags, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def newest(self):
        return self.json("status")["jobs"][0]["job"]

    def began(self, job):
        return self.rank_output(job, 0).read_text().strip()

    def test_a_failed_job_goes_on_under_a_new_id(self):
        self.run_job("work/job.yaml", code=1)
        first = self.newest()
        before = self.job(first)
        self.assertEqual([c["step"] for c in before["checkpoints"]], [1, 3])
        done = self.run_job("--resume", first, "--env", "FAIL_AT=-1", "--env", "LAST=6")
        self.assertIn(f"goes on with {first}, which failed, from step 3", done.stderr)
        self.assertIn("began at 3", done.stdout)
        second = self.newest()
        result = self.job(second)
        self.assertEqual(result["resumed_from"], first)
        self.assertEqual(result["name"], "count")
        # The best and the newest of the whole line; numbers go on.
        self.assertEqual([(c["number"], c["step"]) for c in result["checkpoints"]], [(0, 1), (5, 6)])
        self.assertIn("resumed from", self.ok("result", second))
        self.assertIn(second, self.ok("result", first))
        points = self.json("plot", second, "--metric", "loss")["charts"][0]["curves"][0]["points"]
        self.assertEqual([p[0] for p in points], [1, 2, 3, 4, 5, 6])
        after = self.job(first)
        self.assertEqual({**after, "resumed_by": []}, before)
        self.ok("pull", first, "-o", self.folder / "pulled")

        # A succeeded one too, by the job YAML, and after its ancestor has gone.
        self.ok("rm", "-y", first)
        (self.work / "job.yaml").write_text(
            "name: longer\ncommand: [/usr/bin/env, python3, train.py]\nenv: {LAST: '7'}\n")
        done = self.run_job("work/job.yaml", "--resume", second)
        self.assertIn("had succeeded", done.stderr)
        result = self.json("result")
        self.assertEqual(result["name"], "longer")
        self.assertEqual([c["step"] for c in result["checkpoints"]], [1, 6, 7])
        points = self.json("plot", "--metric", "loss")["charts"][0]["curves"][0]["points"]
        self.assertEqual([p[0] for p in points], [1, 2, 3, 4, 5, 6, 7])

    def test_what_is_asked_for_again_and_what_is_refused(self):
        secrets = {"TOKEN": "s3cret", "OTHER": "x"}
        self.run_job("work/job.yaml", "--secret", "TOKEN", "--secret", "OTHER", code=1, env=secrets)
        first = self.newest()
        done = self.run_dtrain("submit", "--resume", first)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("secrets TOKEN, OTHER are not in the environment", done.stderr)
        done = self.run_job("--resume", first, "--env", "FAIL_AT=-1", env=secrets)
        self.assertIn("s3cret", done.stdout)
        running = self.submit("sleep 1000")
        done = self.run_dtrain("submit", "--resume", running)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("it goes on by itself", done.stderr)
        done = self.run_dtrain("submit", "--resume", first, "--from-checkpoint", first)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_its_files_are_those_of_then_unless_they_are_sent_anew(self):
        staged = {"DTRAIN_STAGE": "1"}
        self.run_job("work/job.yaml", code=1, env=staged)
        first = self.newest()
        (self.work / "version").write_text("2")
        done = self.run_job("--resume", first, "--env", "LAST=4", env=staged)
        self.assertIn("version 1", done.stdout)
        self.assertIn("its files are those of " + first, done.stderr)
        done = self.run_job("work/job.yaml", "--resume", first, "--env", "LAST=4", env=staged)
        self.assertIn("version 2", done.stdout)
        # The head has them no more: from the workdir as it is now.
        for content in self.root().glob("**/content"):
            shutil.rmtree(content)
        done = self.run_job("--resume", first, "--env", "LAST=4", env=staged)
        self.assertIn("version 2", done.stdout)
        self.assertIn("no more", done.stderr)

    def test_a_warm_start_from_a_job_and_from_a_folder(self):
        self.run_job("work/job.yaml", code=1)
        first = self.newest()
        last = ["--env", "LAST=4", "--env", "FAIL_AT=-1"]
        done = self.run_job("work/job.yaml", "--from-checkpoint", first + ":0", *last)
        self.assertIn("began at 1", done.stdout)
        result = self.json("result")
        self.assertEqual(result["checkpoints"][-1]["number"], 2)
        self.assertIsNone(result["resumed_from"])
        self.assertIn(first, result["started_from"])
        points = self.json("plot", "--metric", "loss")["charts"][0]["curves"][0]["points"]
        self.assertEqual([p[0] for p in points], [2, 3, 4])
        done = self.run_job("work/job.yaml", "--from-checkpoint", first, *last)
        self.assertIn("began at 3", done.stdout)

        self.ok("pull", first, "--checkpoints", "-o", self.folder / "pulled")
        folder = next((self.folder / "pulled").rglob("checkpoint_000002"))
        for env in ({}, {"DTRAIN_STAGE": "1"}):
            done = self.run_job("work/job.yaml", "--from-checkpoint", folder, *last, env=env)
            self.assertIn("began at 3", done.stdout)
        done = self.run_dtrain("submit", "work/job.yaml", "--from-checkpoint", first + ":1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has no checkpoint 1", done.stderr)
        self.assertIn("0, 2", done.stderr)
        done = self.run_dtrain("submit", "work/job.yaml", "--from-checkpoint", folder.parent)
        self.assertIn("checkpoint_000002", done.stderr)
        (folder / "shard-00000-of-00001" / "step").write_text("4")
        done = self.run_dtrain("submit", "work/job.yaml", "--from-checkpoint", folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("shard-00000-of-00001/step", done.stderr)


if __name__ == "__main__":
    main()
