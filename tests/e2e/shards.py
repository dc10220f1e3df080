"""Checkpoints between nodes and a head that does not see their files."""

import hashlib
import random

from harness import *

# Each rank reports a shard of SIZE bytes; the first attempt then fails, and what it began with is looked at.
SAVE = """
import hashlib, json, os, random, socket, tempfile
rank, world, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["SIZE"])
start = os.environ.get("DTRAIN_CHECKPOINT")
if start:
    for of in range(world):
        files = os.path.join(start, f"shard-{of:05}-of-{world:05}")
        for name in ("model", "deep/same", "empty"):
            said = hashlib.sha256(open(os.path.join(files, name), "rb").read()).hexdigest()
            print(f"rank {rank} has {of} {name} {said}")
    raise SystemExit
folder = tempfile.mkdtemp(dir=os.environ["HOME"])
os.mkdir(f"{folder}/deep")
for name in ("model", "deep/same", "empty"):
    with open(f"{folder}/{name}", "wb") as file:
        file.write(random.Random(rank).randbytes(size if name != "empty" else 0))
print("folder", folder, flush=True)
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
stream.sendall(json.dumps({"type": "checkpoint", "step": 1, "path": folder, "shard": rank, "shards": world,
                           "ack": True}).encode() + b"\\n")
answer = json.loads(stream.makefile().readline())
print("answer", json.dumps(answer), flush=True)
raise SystemExit(1)
"""


class Shards(ClusterCase):
    nodes = 2
    apart = True

    def setUp(self):
        super().setUp()
        (self.folder / "save.py").write_text(SAVE)

    def save(self, size):
        return self.json("submit", "-d", "--nnodes", "2", "--max-restarts", "1", "--env", f"SIZE={size}", "--",
                         "python3", self.folder / "save.py")["job"]

    def check(self, job, size):
        self.wait_state(job, "succeeded", "failed", deadline=4 * DEADLINE)
        said = self.ok("logs", job)
        self.assertEqual(self.state(job), "succeeded", said)
        for rank in range(2):
            for of in range(2):
                for name, value in self.sums(of, size).items():
                    self.assertIn(f"rank {rank} has {of} {name} {value}", said)
        [checkpoint] = self.job(job)["checkpoints"]
        self.assertEqual(sorted(p.name for p in Path(checkpoint["path"]).iterdir()),
                         ["manifest.json", "shard-00000-of-00002", "shard-00001-of-00002"])
        self.assertEqual(list(Path(checkpoint["path"]).parent.glob(".tmp/*")), [])

    def sums(self, rank, size):
        data = hashlib.sha256(random.Random(rank).randbytes(size)).hexdigest()
        return {"model": data, "deep/same": data, "empty": hashlib.sha256(b"").hexdigest()}

    def parts(self):
        """What has come of shards that are on their way, in bytes."""
        found = {}
        for folder, _, names in os.walk(self.root()):  # which does not mind what goes meanwhile
            for name in names if folder.endswith(".part/incoming") else []:
                with contextlib.suppress(OSError):
                    found[f"{folder}/{name}"] = os.stat(f"{folder}/{name}").st_size
        return found

    def test_shards_come_to_the_head_and_the_checkpoint_to_the_nodes(self):
        job = self.save(3_000_000)
        self.check(job, 3_000_000)
        folders = re.findall(r"(?m)folder (.+)$", self.ok("logs", job, "--attempt", "1"))
        self.assertEqual(len(folders), 2)
        self.assertEqual([f for f in folders if Path(f).exists()], [], "what is not kept is moved")

    def goes_on(self, *roles):
        senders = self.agents("node")

        def amid():
            return any(0 < part < size for part in self.parts().values())

        def caught():
            """The senders stand still amid a shard; or all has come."""
            if amid():
                for pid in senders:
                    stop_between_handlers(pid)
                if amid():
                    return "midway"
                for pid in senders:
                    os.kill(pid, signal.SIGCONT)
            return (self.root() / "head" / "storage" / job / "checkpoints" / "checkpoint_000000").exists() and "past"

        # Again with other shards where a busy machine let them come before they were seen.
        for size in range(100_000_000, 100_000_005):
            job = self.save(size)
            moment = eventually(caught, "bytes of a shard are at the head", 4 * DEADLINE, pause=0.001)
            if moment == "midway":
                break
            self.check(job, size)
        self.assertEqual(moment, "midway", "it is cut off in its middle")
        for role in roles:
            for pid in self.agents(role):
                os.kill(pid, signal.SIGKILL)
        for pid in senders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head answers", 4 * DEADLINE)
        self.check(job, size)

    def test_a_shard_goes_on_when_node_agents_die(self):
        self.goes_on("node")

    def test_a_shard_goes_on_when_the_head_dies(self):
        self.goes_on("head")


if __name__ == "__main__":
    main()
