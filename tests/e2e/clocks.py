"""Clocks that jump by an hour while jobs run, on the head and on a node: nothing follows from it."""

from failing import *

HOUR = 3600

WORK = """
import json, os, socket, time
rank, attempt = int(os.environ["RANK"]), os.environ["DTRAIN_ATTEMPT"]
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["DTRAIN_REPORT_SOCKET"])
answers = stream.makefile()
def tell(**report):
    stream.sendall(json.dumps(report).encode() + b"\\n")
    if report.get("ack"):
        answer = json.loads(answers.readline())
        assert answer.get("ok"), answer
line = step = 0
while not os.path.exists(os.environ["STOP"]):
    line += 1
    print(f"line {line} in {attempt}", flush=True)
    tell(type="heartbeat", step=step, phase="compute")
    if line % 20 == 0 and rank == 0:
        step += 1
        tell(type="metrics", step=step, metrics={"loss": step}, ack=True)
        folder = os.path.join(os.environ["SAVE_IN"], str(step))
        os.makedirs(folder)
        open(os.path.join(folder, "step"), "w").write(str(step))
        tell(type="checkpoint", step=step, path=folder, ack=True)
    elif line % 20 == 0:
        step += 1
    time.sleep(0.01)
print(f"end {line} in {attempt}", flush=True)
"""


class Clocks(FailingCase):
    def setUp(self):
        super().setUp()
        self.ok("up", self.folder / "cluster.yaml")
        (self.folder / "work.py").write_text(WORK)
        self.stop = self.folder / "stop"
        (self.folder / "job.yaml").write_text(json.dumps({
            "name": "works", "command": ["python3", str(self.folder / "work.py")], "nnodes": 2, "timeout_s": 900,
            "hang_timeout_s": 60, "on_hang": "restart", "on_head_lost": "stop", "resources": {"CPU": 2},
            "env": {"STOP": str(self.stop), "SAVE_IN": str(self.folder / "saved")}}))
        self.works = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        self.wait_state(self.works, "running")
        # There is no room for it beside the other.
        (self.folder / "waits.yaml").write_text(json.dumps({
            "name": "waits", "command": "echo done", "nnodes": 2, "queue_timeout_s": 900, "resources": {"CPU": 2}}))
        self.waits = self.json("submit", "-d", self.folder / "waits.yaml")["job"]
        self.said = self.folder / "said"
        with self.said.open("w") as said:
            self.follower = self.start("logs", "-f", "--json", self.works, stdout=said)
        eventually(lambda: self.said.stat().st_size, "it follows")

    def steps(self):
        return [each["step"] for each in self.job(self.works)["checkpoints"]]

    def goes_on(self):
        """Checkpoints are committed, heartbeats come, and both jobs are where they were."""
        before = len(self.steps())
        eventually(lambda: len(self.steps()) >= before + 3, "checkpoints are committed")
        status = self.json("status")
        self.assertEqual([node["state"] for node in status["nodes"]], ["ready", "ready"])
        self.assertEqual({job["job"]: job["state"] for job in status["jobs"]},
                         {self.works: "running", self.waits: "queued"})

    def offsets(self):
        return {node["node"]: node["clock"]["offset_ms"] for node in self.json_of_doctor()["nodes"] if node["clock"]}

    def json_of_doctor(self):
        return json.loads(self.run_dtrain("doctor", "--json").stdout)

    def assert_offsets(self, **wanted_s):
        offsets = self.offsets()
        self.assertEqual(set(offsets), {"node-0", "node-1"})
        for node, offset in offsets.items():
            self.assertAlmostEqual(offset / 1000, wanted_s.get(node.replace("-", "_"), 0), delta=30)

    def ends_well(self):
        self.stop.touch()
        self.assertEqual(self.follower.wait(DEADLINE), 0)
        said = self.said.read_text()
        self.wait_state(self.works, "succeeded")
        self.wait_state(self.waits, "succeeded")
        result = self.job(self.works)
        self.assertEqual([attempt["attempt"] for attempt in result["attempts"]], [1])
        steps = self.steps()
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        for text in (said, self.ok("logs", "--json", self.works)):
            self.assertNotIn('"error":{', text)
            for rank in range(2):
                lines = [row["text"] for row in map(json.loads, text.splitlines())
                         if row["type"] == "log" and row["rank"] == rank and row["stream"] == "out"]
                last = int(lines[-1].split()[1])
                self.assertEqual(lines, [f"line {n} in 1" for n in range(1, last + 1)] + [f"end {last} in 1"])
        events = [row["message"] for row in map(json.loads, said.splitlines()) if row["type"] == "event"]
        self.assertEqual([words for words in events if re.search("hang|lost|not heard|timeout", words)], [])

    def test_the_heads_clock(self):
        for ahead in (HOUR, 0, -HOUR, HOUR, 0):
            self.set_clock("head", wall_s=ahead)
            self.goes_on()
            self.assert_offsets(node_0=-ahead, node_1=-ahead)
        self.ends_well()

    def test_a_nodes_clock(self):
        for ahead in (HOUR, 0, -HOUR, HOUR, 0):
            self.set_clock("node-1", wall_s=ahead)  # its supervisor's too
            self.goes_on()
            self.assert_offsets(node_1=ahead)
            if ahead:
                said = self.run_dtrain("doctor").stdout
                self.assertRegex(said, f"its clock is (1 h|59 m).* {'ahead of' if ahead > 0 else 'behind'} the head's")
        self.ends_well()

    def test_a_clock_that_jumps_before_its_process_is_started_again(self):
        for place, role in (("head", "head"), ("node-1", "node")):
            for ahead in (HOUR, -HOUR, 0):
                self.set_clock(place, wall_s=ahead)
                for pid in self.agents(role):
                    if place.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                eventually(lambda: self.run_dtrain("status", "--json").returncode == 0 and all(
                    node["state"] == "ready" for node in self.json("status")["nodes"]), "all are back")
                self.goes_on()
        self.ends_well()


if __name__ == "__main__":
    main()
