"""Agents crash before and after each fsync, rename and send of the paths that change state
(launcher/core/failpoint.hpp), and what was promised is asked afterwards."""

from failing import *

sys.path.insert(0, str(SOURCE / "tests" / "chaos"))
from checker import Seen, broken  # noqa: E402

TRAIN = """
import json, os, socket, tempfile
from pathlib import Path
rank, world, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "DTRAIN_ATTEMPT"))
assert os.environ["TOKEN"] == "hidden"
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
answers = stream.makefile()
def tell(**report):
    stream.sendall(json.dumps({**report, "ack": True}).encode() + b"\\n")
    answer = json.loads(answers.readline())
    assert answer.get("ok"), answer
step, line = 0, 0
if start := os.environ.get("DTRAIN_CHECKPOINT"):
    step = int((Path(start) / f"shard-{rank:05}-of-{world:05}" / "step").read_text())
    print("note", attempt, "resumed", step, 0, ".", flush=True)
while step < 3:
    step += 1
    for _ in range(5):
        line += 1
        print("line", line, "in", attempt, flush=True)
    tell(type="metrics", step=step, metrics={"loss": 1 / step})
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("SAVE_IN")))
    (folder / "step").write_text(str(step))
    tell(type="checkpoint", step=step, path=str(folder), shard=rank, shards=world, metrics={"attempt": attempt})
    print("note", attempt, "accepted", step, 0, ".", flush=True)
    if attempt == 1 and rank == 1:
        raise SystemExit(9)
print("end", line, "in", attempt, flush=True)
"""


class Points(FailingCase):
    def setUp(self):
        super().setUp()
        self.env.update(DTRAIN_STAGE="1", TOKEN="hidden")
        self.ok("up", self.folder / "cluster.yaml")
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text(TRAIN)
        (self.folder / "saved").mkdir()
        (self.folder / "job.yaml").write_text(json.dumps({
            "name": "points", "command": ["python3", "train.py"], "workdir": str(self.work), "nnodes": 2,
            "max_restarts": 6, "restart": {"same_failure": "restart"}, "setup": "echo set up", "secrets": ["TOKEN"],
            "env": {"SAVE_IN": str(self.folder / "saved")}, "checkpoint": {"num_to_keep": 2}, "stop_grace_s": 1}))

    def life(self):
        """A job from its submit to its removal, and what was promised of it."""
        job = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        self.assertEqual(self.wait_state(job, "succeeded", "failed", deadline=30), "succeeded", self.job(job))
        self.assertEqual([each["job"] for each in self.json("status", "--all")["jobs"]], [job])
        seen = Seen(acknowledged=[job], jobs={job: self.job(job)})
        for attempt in seen.jobs[job]["attempts"]:
            for line in self.ok("logs", "--json", job, "--attempt", attempt["attempt"]).splitlines():
                row = json.loads(line)
                if row["type"] != "log" or row["stream"] != "out":
                    continue
                if row["text"].startswith("note "):
                    seen.notes.setdefault((job, row["rank"]), []).append(row["text"][5:])
                seen.logs.setdefault((job, row["attempt"], row["rank"]), []).append(row["text"])
        seen.followed = seen.logs
        self.assertEqual(broken(seen), [])
        self.assertEqual([each["step"] for each in seen.jobs[job]["checkpoints"]], [2, 3])
        for each in seen.jobs[job]["checkpoints"]:
            self.assertTrue((Path(each["path"]) / "manifest.json").exists(), each)
        self.remove(job)
        return len(seen.jobs[job]["attempts"])

    def remove(self, job):
        eventually(lambda: (done := self.run_dtrain("rm", "-y", job)).returncode in (0, 2) and done, "it is removed", 30)
        eventually(lambda: not [path for path in below(self.root(), job)], f"no folder of {job} is left", 30)

    def test_find(self):
        with self.reached() as found:
            self.life()
        from collections import Counter
        for key, n in sorted(Counter(found).items()):
            print(n, *key)


if __name__ == "__main__":
    main()
