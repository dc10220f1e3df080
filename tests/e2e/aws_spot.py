"""AWS takes spot instances back, and tells them two minutes before."""

import datetime
import socket
import unittest.mock

from aws_harness import *
from harness import ClusterCase

ACTION = "latest/meta-data/spot/instance-action"
LIFE_CYCLE = "latest/meta-data/instance-life-cycle"

# Counts lines until /tmp/end is there; each rank saves where it is when it is asked to end, and goes on from there.
COUNTS = """
import json, os, signal, socket, time
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
n, start = 0, os.environ.get("DTRAIN_CHECKPOINT")
if start:
    shard = f"shard-{int(rank):05}-of-{world:05}"
    n = int(open(os.path.join(start, shard if os.path.isdir(os.path.join(start, shard)) else "", "n")).read())
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
while not os.path.exists("/tmp/end"):
    n += 1
    print("line", n, flush=True)
    if signal.sigtimedwait({signal.SIGTERM}, 0.02):
        break
else:
    raise SystemExit(0)
while "HOLD" in os.environ and not os.path.exists("/tmp/save"):
    time.sleep(0.01)
folder = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-" + rank)
os.makedirs(folder)
with open(os.path.join(folder, "n"), "w") as file:
    file.write(str(n))
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
s.sendall(json.dumps({"type": "checkpoint", "step": int(os.environ["DTRAIN_ATTEMPT"]), "path": folder, "shard": int(rank), "shards": world,
                      "ack": True}).encode() + b"\\n")
print(s.makefile().readline(), flush=True)
"""


class Spot(AwsCase):
    agents_on = "all"

    def setUp(self):
        super().setUp()
        (self.folder / "counts.py").write_text(COUNTS)
        self.write({"head": {"node_config": {"InstanceType": "m5.large", "ImageId": "latest_ubuntu"}},
                    "gpu": {"min_workers": 2, "max_workers": 2,
                            "node_config": {"InstanceType": "p3.2xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}}})
        self.up()
        self.ok("drain", "node-0")  # ranks are to be where machines are taken back

    def start_counting(self, *flags):
        job = self.json("submit", "-d", *flags, "--", "python3", "counts.py")["job"]
        self.more_lines(job, 1)
        return job

    def more_lines(self, job, attempt):
        # Of another attempt there is nothing to be read before it has begun.
        eventually(lambda: "line " in self.run_dtrain("logs", job, "--attempt", str(attempt)).stdout, f"lines of attempt {attempt}",
                   pause=0.1)

    def written(self, job, attempts, rank=0):
        said = [self.ok("logs", job, "--attempt", str(attempt), "--rank", str(rank)) for attempt in range(1, attempts + 1)]
        return [int(number) for number in re.findall(r"(?m)line (\d+)$", "".join(said))]

    def machine(self, node):
        return self.machines[self.by_node()[node].id]

    def node_of(self, job):
        return next(n["node"] for n in self.json("status")["nodes"] if job in n["jobs"])

    def row(self, node):
        return next(n for n in self.json("status")["nodes"] if n["node"] == node)

    def take_back(self, node, action="terminate", seconds=120):
        """AWS tells it; what the cluster says then is its reason."""
        when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        said = {"action": action, "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.machine(node).metadata[ACTION] = json.dumps(said)
        return f"its spot instance is taken back at {when:%H:%M:%S}Z ({action})"

    def has_left(self, node, reason):
        row = eventually(lambda: (row := self.row(node))["state"] == "gone" and row, f"{node} has left")
        self.assertEqual(row["reason"], reason)

    def kill_agent(self, node):
        for pid in self.machine(node).processes(text="dtrain-agent node"):
            os.kill(pid, signal.SIGKILL)

    def logs_of(self, node):
        [log] = self.machine(node).path("~/.dtrain").glob(f"*/{node}/node.log")
        return log.read_text()

    def touch_at_ranks(self, job, path):
        """Where they run: others may be made only now, in place of one that leaves."""
        nodes = [n["node"] for n in self.json("status")["nodes"] if job in n["jobs"]]
        self.assertNotEqual(nodes, [])
        for node in nodes:
            self.machine(node).path(path).touch()

    def end(self, job):
        self.touch_at_ranks(job, "/tmp/end")
        self.wait_state(job, "succeeded")

    def test_a_job_goes_on_elsewhere(self):
        job = self.start_counting()
        first = self.node_of(job)
        reason = self.take_back(first)
        self.more_lines(job, 2)
        second = self.node_of(job)
        self.assertNotEqual(first, second)
        self.has_left(first, reason)
        # The agent that its watch has started again stays away.
        eventually(lambda: f'"does not join" why="{reason}"' in self.logs_of(first), "the next agent knows", pause=0.1)
        self.cloud.end(self.by_node()[first].id)
        # The head asks for another in its place.
        eventually(lambda: self.states().get("gpu-1") == "ready", "another comes", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual(self.row(second)["state"], "ready")
        # Again, with less time.
        reason = self.take_back(second, "stop", 60)
        self.more_lines(job, 3)
        self.has_left(second, reason)
        self.end(job)
        result = self.json("result", job)
        # max_restarts is 0: none of it was a failure of the job's.
        self.assertEqual([attempt["state"] for attempt in result["attempts"]], ["failed", "failed", "succeeded"])
        self.assertEqual(result["attempts"][1]["reason"], f"{second} leaves the cluster: {reason}")
        numbers = self.written(job, 3)
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        # What is no spot instance is asked once.
        # Of the head's machine, which is none: its role's credentials aside.
        self.assertEqual([path for path in self.machine("node-0").asked() if "/iam/" not in path], [LIFE_CYCLE])
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_what_nobody_heard_a_notice_of_is_no_failure(self):
        job = self.start_counting()
        first = self.node_of(job)
        taken = self.by_node()[first].id
        self.cloud.end(taken)
        # Two attempts never run at once: its lease runs out first.
        eventually(lambda: len(self.json("result", job)["attempts"]) == 2, "the job goes on", deadline=3 * DEADLINE, pause=0.5)
        self.more_lines(job, 2)
        self.end(job)
        result = self.json("result", job)  # max_restarts is 0
        self.assertEqual(result["state"], "succeeded")
        self.assertRegex(result["attempts"][0]["reason"], rf"^{first} .*Server\.SpotInstanceTermination: no capacity")
        self.ok("down", "-y")
        self.assert_nothing_left()

    def test_a_job_that_needs_all_of_them_waits_for_another(self):
        job = self.start_counting("--nnodes", "2", "--stop-grace-s", "80", "--env", "HOLD=1")
        reason = self.take_back("node-2")
        eventually(lambda: self.row("node-2")["state"] == "draining", "it is about to leave")
        # An agent that is killed meanwhile: the next one goes on with it.
        self.kill_agent("node-2")
        eventually(lambda: self.logs_of("node-2").count("told to leave") == 2, "the next agent leaves too", pause=0.1)
        self.touch_at_ranks(job, "/tmp/save")
        self.has_left("node-2", reason)
        # The head has asked for another in its place, and the job goes on there.
        self.more_lines(job, 2)
        self.assertEqual(sorted(n["node"] for n in self.json("status")["nodes"] if job in n["jobs"]), ["gpu-1", "node-1"])
        # Whoever dies, the next agent asks before it joins.
        eventually(lambda: "does not join" in self.logs_of("node-2"), "it stays away", pause=0.1)
        self.kill_agent("node-2")
        eventually(lambda: self.logs_of("node-2").count("does not join") == 2, "and so does the next", pause=0.1)
        self.assertEqual(self.row("node-2")["reason"], reason)
        self.assertEqual(len(self.json("result", job)["attempts"]), 2)
        # AWS has thought better of it.
        del self.machine("node-2").metadata[ACTION]
        eventually(lambda: self.row("node-2")["state"] == "ready", "it comes back")
        self.assertEqual(self.row("node-2")["reason"], "")
        self.end(job)
        for rank in (0, 1):
            numbers = self.written(job, 2, rank)
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        self.ok("down", "-y")
        self.assert_nothing_left()


class Elsewhere(ClusterCase):
    def setUp(self):
        self.service = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.service.settimeout(0.1)
        address = f"http://127.0.0.1:{self.service.getsockname()[1]}"
        self.enterContext(unittest.mock.patch.dict(os.environ, AWS_EC2_METADATA_SERVICE_ENDPOINT=address))
        super().setUp()

    def test_machines_that_are_not_of_aws_ask_nobody(self):
        self.ok("submit", "--", "/bin/true")
        with self.assertRaises(TimeoutError):
            self.service.accept()


if __name__ == "__main__":
    main()
