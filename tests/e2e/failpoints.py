"""Agents crash before and after each fsync, rename and send of the paths that change state
(launcher/core/failpoint.hpp), and what was promised is asked afterwards."""

import http.client
from collections import Counter

from failing import *
from restore import RestoreCase

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
while step < int(os.environ.get("LAST", 3)):
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
FILE = "file.fsync.before file.rename.before file.rename.after file.fsync.after "
# What a job's life passes, in each agent.
HEAD = FILE + """store.commit.before store.commit.after shard.receive.before shard.receive.after checkpoint.rename.before
    checkpoint.rename.after checkpoint.fsync.after checkpoint.remove.before checkpoint.remove.after blob.rename.before
    blob.rename.after submit.answer.before submit.answer.after start.send.before start.send.after command.send.before
    command.send.after forget.send.before forget.send.after event.take.before event.take.after log.write.before
    log.write.after"""
NODE = FILE + """trash.rename.before trash.rename.after blob.rename.before blob.rename.after bundle.rename.before
    bundle.rename.after start.take.before start.spawn.before start.spawn.after event.pass.before event.pass.after
    command.pass.before command.pass.after workdir.rename.before workdir.rename.after"""
SUPERVISE = FILE + """record.rename.before record.rename.after ranks.start.before ranks.start.after report.take.before
    report.answer.before report.answer.after event.send.before event.send.after ack.take.before ack.take.after"""
# What it does not.
INHERIT = "inherit.rename.before inherit.rename.after"
PRUNE = "prune.bundle.before prune.bundle.after prune.blob.before prune.blob.after"
SHARD = "shard.rename.before shard.rename.after"
COPY = "copy.fsync.before copy.rename.before copy.rename.after"
RESTORE = "restore.aside.before restore.rename.before restore.rename.after"
IDENTITY = "identity.rename.before identity.rename.after"


def part_of(detail):
    """Of what a point tells the part that is the same for each job."""
    name = detail.split("/")[-1]
    return detail[:detail.index("points-")] + "points-" if "points-" in name else name


class PointsCase(FailingCase):
    """One cluster for many crashes: what is armed next is written while its agents run."""

    def setUp(self):
        super().setUp()
        self.env.update(DTRAIN_STAGE="1", TOKEN="hidden")
        self.ok("up", self.folder / "cluster.yaml")
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text(TRAIN)
        (self.folder / "saved").mkdir()
        self.cases = 0
        self.write_job()

    def write_job(self, env=None, **more):
        (self.folder / "job.yaml").write_text(json.dumps({
            "name": "points", "command": ["python3", "train.py"], "workdir": str(self.work), "nnodes": 2,
            "max_restarts": 6, "restart": {"same_failure": "restart"}, "setup": "echo set up", "secrets": ["TOKEN"],
            "env": {"SAVE_IN": str(self.folder / "saved"), **(env or {})}, "checkpoint": {"num_to_keep": 2}, "stop_grace_s": 1, **more}))

    # ---- a job's life, and what was promised of it

    def asked(self, verb, *args):
        """What is only asked may be asked again, while who answers has just crashed."""
        done = eventually(lambda: (d := self.run_dtrain(verb, *args)).returncode == 0 and d, f"{verb} is answered", 60)
        return done.stdout

    def jobs(self):
        return [each["job"] for each in json.loads(self.asked("status", "--json", "--all"))["jobs"]]

    def run_job(self, *flags):
        """Its result, once it has ended: submitted once, and there once."""
        before = self.jobs()
        job = self.json("submit", "-d", *flags)["job"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run_dtrain("logs", "-f", job, deadline=60)  # until it ends, or this has crashed too
        ended = {"succeeded", "failed", "stopped"}
        result = eventually(lambda: (r := json.loads(self.asked("result", "--json", job)))["state"] in ended and r,
                            f"{job} ends", 60)
        self.assertEqual(self.jobs(), [job, *before])
        return result

    def life(self):
        """From its submit to its removal; its attempts."""
        (self.work / "case").write_text(str(self.cases))  # other content each time
        result = self.run_job(self.folder / "job.yaml")
        job = result["job"]
        self.check(result)
        self.assertEqual([each["step"] for each in result["checkpoints"]], [2, 3])
        kept = [Path(each["path"]) for each in result["checkpoints"]]
        eventually(lambda: sorted(kept) == sorted(kept[0].parent.glob("checkpoint_*")), "no other folder is left", 30)
        for path in kept:
            self.assertTrue((path / "manifest.json").exists())
        self.assertEqual(result["metrics"]["loss"], 1 / 3)
        self.remove(job)
        return result["attempts"]

    def check(self, result):
        job = result["job"]
        seen = Seen(acknowledged=[job], jobs={job: result})
        for attempt in result["attempts"]:
            for line in self.asked("logs", "--json", job, "--attempt", attempt["attempt"]).splitlines():
                row = json.loads(line)
                if row["type"] != "log" or row["stream"] != "out":
                    continue
                if row["text"].startswith("note "):
                    seen.notes.setdefault((job, row["rank"]), []).append(row["text"][5:])
                seen.logs.setdefault((job, row["attempt"], row["rank"]), []).append(row["text"])
        seen.followed = seen.logs
        self.assertEqual(broken(seen), [], result)

    def remove(self, job):
        eventually(lambda: self.run_dtrain("rm", "-y", job).returncode in (0, 2), f"{job} is removed", 60)
        eventually(lambda: not [path for path in below(self.root(), job)], f"no folder of {job} is left", 60)

    def remove_all(self):
        """Of a case that failed, so that the next has its cluster to itself."""
        for job in self.jobs():
            self.run_dtrain("stop", job)
            self.run_dtrain("rm", "-y", job)

    # ---- the points

    def crash(self, point, role, part="-", hits=1, action="crash"):
        self.cases += 1
        # To the watch the one before was long ago, so that it starts the next at once.
        self.set_clock(self.name(), monotonic_s=11 * self.cases)
        self.arm(point, role, part, hits, action)

    def went_off(self, must=True):
        gone = self.disarm()
        self.assertTrue(gone or not must, "the point is not reached")
        return gone

    def live_through(self, point, role, part, hits, must):
        self.crash(point, role, part, hits)
        try:
            attempts = self.life()
        finally:
            self.remove_all()
        gone = self.went_off(must)
        # One attempt fails by itself, one at most with its supervisor.
        self.assertLessEqual(len(attempts), 3 if role == "supervise" and gone else 2, attempts)

    def each_point_of(self, role, only=lambda point: True):
        """At the first time that it is reached in a job's life, and at one in the middle."""
        with self.reached() as found:
            self.assertEqual(len(self.life()), 2)
        counted = Counter((point, part_of(detail)) for point, of, detail in found if of == role and only(point))
        self.assertGreater(len(counted), 0)
        for (point, part), times in sorted(counted.items()):
            for hits in sorted({1, times // 2 + 1}):
                with self.subTest(point=point, part=part, hits=hits):
                    self.live_through(point, role, part, hits, must=hits == 1)
        self.assertEqual(self.examine()[0], [])
        return {point for point, _ in counted}

    def assert_all(self, reached, names):
        """Those that the life passes: another test has the others, by name."""
        self.assertEqual(set(names.split()) - reached, set())


class Points(PointsCase):
    def test_of_the_head(self):
        self.assert_all(self.each_point_of("head"), HEAD)

    def test_of_the_node_agent(self):
        self.assert_all(self.each_point_of("node"), NODE)

    def test_of_the_supervisor(self):
        self.assert_all(self.each_point_of("supervise"), SUPERVISE)


class More(PointsCase):
    """What a job's life does not pass."""

    def test_what_a_job_takes_over_from_another(self):
        first = self.run_job(self.folder / "job.yaml")
        # It has nothing left to train; its own would be the next.
        self.write_job(env={"LAST": "4"})
        again = self.folder / "job.yaml"
        for point in INHERIT.split():
            for flags in (["--resume", first["job"]], ["--from-checkpoint", first["job"], again]):
                with self.subTest(point=point, flag=flags[0]):
                    self.crash(point, "head")
                    result = self.run_job(*flags)
                    self.went_off()
                    self.check(result)
                    self.assertEqual(result["checkpoints"][-1]["step"], 4 if flags[0] == "--from-checkpoint" else 3)
                    self.remove(result["job"])

    def test_content_that_nobody_needs(self):
        work = self.program()
        for point in PRUNE.split():
            with self.subTest(point=point):
                result = self.run_job("--workdir", work, "--", "./train")
                self.assertEqual(result["state"], "succeeded", result)
                self.remove(result["job"])
                # First: whoever else has it collected meets the point too.
                self.crash(point, "node")
                self.make_old()
                self.run_dtrain("prune")
                self.went_off()
                eventually(lambda: all(node["state"] == "ready" for node in self.json("status")["nodes"]), "it is back")
        self.ok("prune")
        result = self.run_job("--workdir", work, "--", "./train")
        self.assertEqual(result["state"], "succeeded", result)

    def make_old(self):
        """All content, for whoever asks how long nobody has used it."""
        for place in (self.root() / "head", *self.root().glob("nodes/*")):
            content = place / "content"
            with contextlib.suppress(FileNotFoundError):  # it goes meanwhile
                for path in below(content / "blobs"):
                    os.utime(path, ns=(1, path.stat().st_mtime_ns))
                for path in (content / "bundles").glob("*"):
                    os.utime(path, (1, 1))

    def program(self):
        """A folder with a program whose library no loader would find."""
        work, hidden = self.folder / "program", self.folder / "hidden"
        work.mkdir()
        hidden.mkdir()
        (hidden / "answer.cpp").write_text('extern "C" int answer() { return 0; }')
        (hidden / "main.cpp").write_text('extern "C" int answer(); int main() { return answer(); }')
        library = hidden / "libanswer.so.1"
        for args in (["-shared", "-fPIC", "-Wl,-soname,libanswer.so.1", hidden / "answer.cpp", "-o", library],
                     [hidden / "main.cpp", library, f"-Wl,-rpath,{hidden}", "-o", work / "train"]):
            subprocess.run(["g++", *map(str, args)], check=True, timeout=DEADLINE)
        return work

    def test_a_disk_that_is_full_or_broken(self):
        """Where a file is written whole the job goes on, or says why it does not."""
        with self.reached() as found:
            self.life()
        files = sorted({(role, part_of(detail)) for point, role, detail in found if point == "file.fsync.before"})
        for role, part in files:
            for action in ("full", "broken"):
                with self.subTest(role=role, part=part, action=action):
                    self.crash("file.fsync.before", role, part, action=action)
                    done = self.run_dtrain("submit", self.folder / "job.yaml")
                    self.went_off()
                    if done.returncode:
                        self.assertRegex(done.stdout + done.stderr, "No space left on device|Input/output error")
                    self.remove_all()
        self.assertEqual(len(self.life()), 2)


class Here(PointsCase):
    """Where the head sees its nodes' files."""

    machines = {}

    def test_shards_that_are_moved(self):
        points = self.each_point_of("head", lambda point: point.startswith("shard."))
        self.assert_all(points, SHARD)


class Database(RestoreCase, PointsCase):
    nodes_wanted = 1

    def setUp(self):
        super().setUp()
        self.write_job(nnodes=1)
        self.job = self.run_job(self.folder / "job.yaml")

    def still_there(self):
        self.assertEqual(json.loads(self.asked("result", "--json", self.job["job"]))["state"], self.job["state"])
        self.check(self.job)

    def test_its_copy(self):
        self.back_up()
        for point in COPY.split():
            with self.subTest(point=point):
                self.crash(point, "head")
                with contextlib.suppress(OSError, http.client.HTTPException, StopIteration):
                    self.ask("POST", "/v1/backup")
                eventually(lambda: not (self.faults / "armed").exists(), "it goes off")
                self.still_there()
                self.back_up()
                self.still_there()

    def test_the_way_back(self):
        for point in RESTORE.split():
            with self.subTest(point=point):
                self.back_up()
                with self.head_away():
                    self.wipe()
                    self.crash(point, "head")
                self.back()
                self.went_off()
                self.still_there()
                self.assertEqual(self.ok("status").count("restored"), 1)


class Identity(PointsCase):
    def test_killed_over_a_new_certificate(self):
        """Half of its life is over for all: the head looks when it starts, a node when it joins."""
        for number, (role, point) in enumerate((role, point) for role in ("head", "node") for point in IDENTITY.split()):
            with self.subTest(role=role, point=point):
                self.crash(point, role)
                for place in ("head", "node-0", "node-1"):
                    self.set_clock(place, wall_s=16 * 86400 * (number + 1))
                [head] = self.agents("head")
                os.kill(head, signal.SIGKILL)
                eventually(lambda: not (self.faults / "armed").exists(), "it goes off")
                self.assertEqual(len(self.life()), 2)


class Up(FailingCase):
    def test_each_file_of_up(self):
        with self.reached() as found:
            self.ok("up", self.folder / "cluster.yaml")
        files = sorted({(point, role, part_of(detail)) for point, role, detail in found
                        if role not in ("head", "node", "supervise")})
        self.assertGreater(len(files), 5)
        for point, role, part in files:
            with self.subTest(point=point, role=role, part=part):
                self.ok("down", "-y", "-c", self.name())
                self.arm(point, role, part)
                self.run_dtrain("up", self.folder / "cluster.yaml")
                self.assertTrue(self.disarm(), "the point is not reached")
                self.ok("up", self.folder / "cluster.yaml")
                self.assertIn("works", self.ok("submit", "--", "echo", "works"))


class All(unittest.TestCase):
    def test_each_point_has_its_test(self):
        names = subprocess.run([AGENT, "failpoints"], capture_output=True, text=True, check=True).stdout.split()
        tested = " ".join((HEAD, NODE, SUPERVISE, INHERIT, PRUNE, SHARD, COPY, RESTORE, IDENTITY)).split()
        self.assertEqual(sorted(set(tested)), sorted(names))


if __name__ == "__main__":
    main()
