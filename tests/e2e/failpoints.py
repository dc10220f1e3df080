"""Agents crash before and after each fsync, rename and send of the paths that change state
(launcher/core/failpoint.hpp), and what was promised is asked afterwards."""

from collections import Counter

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
REACHED = set()  # points at which an agent was crashed


def part_of(detail):
    """Of what a point tells the part that is the same for each job."""
    return detail[:detail.index("points-")] + "points-" if "points-" in detail.split("/")[-1] else detail.split("/")[-1]


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

    # ---- a job's life, and what was promised of it

    def asked(self, verb, *args):
        """What is only asked may be asked again, while who answers has just crashed."""
        done = eventually(lambda: (d := self.run_dtrain(verb, *args)).returncode == 0 and d, f"{verb} is answered", 30)
        return done.stdout

    def life(self):
        """From its submit to its removal; its attempts."""
        job = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        ended = {"succeeded", "failed", "stopped"}
        result = eventually(lambda: (r := json.loads(self.asked("result", "--json", job)))["state"] in ended and r,
                            f"{job} ends", 30)
        self.assertEqual([each["job"] for each in json.loads(self.asked("status", "--json", "--all"))["jobs"]], [job])
        seen = Seen(acknowledged=[job], jobs={job: result})
        for attempt in result["attempts"]:
            self.read_logs(seen, job, attempt["attempt"])
        seen.followed = seen.logs
        self.assertEqual(broken(seen), [], result)
        self.assertEqual([each["step"] for each in result["checkpoints"]], [2, 3])
        kept = [Path(each["path"]) for each in result["checkpoints"]]
        self.assertEqual(sorted(kept), sorted(kept[0].parent.glob("checkpoint_*")))
        for path in kept:
            self.assertTrue((path / "manifest.json").exists())
        self.assertEqual(result["metrics"]["loss"], 1 / 3)
        self.remove(job)
        return result["attempts"]

    def read_logs(self, seen, job, attempt):
        for line in self.asked("logs", "--json", job, "--attempt", attempt).splitlines():
            row = json.loads(line)
            if row["type"] != "log" or row["stream"] != "out":
                continue
            if row["text"].startswith("note "):
                seen.notes.setdefault((job, row["rank"]), []).append(row["text"][5:])
            seen.logs.setdefault((job, attempt, row["rank"]), []).append(row["text"])

    def remove(self, job):
        eventually(lambda: self.run_dtrain("rm", "-y", job).returncode in (0, 2), f"{job} is removed", 30)
        eventually(lambda: not [path for path in below(self.root(), job)], f"no folder of {job} is left", 30)

    # ---- the points

    def crash(self, point, role, part, hits, must):
        """Lives through a crash there."""
        self.cases += 1
        # To the watch the one before was long ago, so that it starts the next at once.
        self.set_clock(self.name(), monotonic_s=11 * self.cases)
        self.arm(point, role, part, hits)
        try:
            attempts = self.life()
        finally:
            for job in json.loads(self.asked("status", "--json", "--all"))["jobs"]:  # of one that failed
                self.run_dtrain("stop", job["job"])
                self.run_dtrain("rm", "-y", job["job"])
        gone_off = self.disarm()
        self.assertTrue(gone_off or not must, "it is not reached")
        # One attempt fails by itself, one at most with its supervisor.
        self.assertLessEqual(len(attempts), 3 if role == "supervise" and gone_off else 2, attempts)
        return gone_off

    def each_point_of(self, role):
        """At the first time that it is reached in a job's life, and at one in the middle."""
        with self.reached() as found:
            self.assertEqual(len(self.life()), 2)
        counted = Counter((point, part_of(detail)) for point, of, detail in found if of == role)
        self.assertGreater(len(counted), 10)
        self.cases = 0
        for (point, part), times in sorted(counted.items()):
            for hits in sorted({1, times // 2 + 1}):
                with self.subTest(point=point, part=part, hits=hits):
                    self.crash(point, role, part, hits, must=hits == 1)
        self.assertEqual(self.examine()[0], [])
        REACHED.update(point for point, _ in counted)

    def test_of_the_head(self):
        self.each_point_of("head")

    def test_of_the_node_agent(self):
        self.each_point_of("node")

    def test_of_the_supervisor(self):
        self.each_point_of("supervise")


if __name__ == "__main__":
    main()
