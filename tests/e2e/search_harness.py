"""What the tests of searches share: a program whose trials report, and the head's API."""

import http.client
import random

from harness import *

# Waits at step GATE for the file GO (`go`), at its first one for MEET trials to come as far. Reports an
# accuracy that depends on lr, each with a checkpoint if it is asked for; goes on from one. A report
# that is not acknowledged is not made again: the head that dies has it from the node. Ranks but 0
# report better ones that are not so, of later steps.
TRAIN = """
import json, os, socket, sys, time
params = json.loads(os.environ["DTRAIN_PARAMS"])
lr, last, pause, keeps = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "keeps"
assert lr == params["lr"], (lr, params)
assert os.environ["DTRAIN_JOB_ID"].startswith("count-" + os.environ["DTRAIN_TRIAL"] + "-")
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
def say(o, ack):
    s.sendall(json.dumps({**o, "ack": ack}).encode() + b"\\n")
    if ack:
        answer = json.loads(f.readline()); assert answer.get("ok"), answer
step, start = 0, os.environ.get("DTRAIN_CHECKPOINT")
if start:
    step = int(open(os.path.join(start, "shard-00000-of-00001", "step")).read())
print("began at", step, flush=True)
rank = int(os.environ["RANK"])
while step < last:
    step += 1
    time.sleep(pause)
    if rank == 0:
        open("at-%s-%d" % (os.environ["DTRAIN_TRIAL"], step), "w")
    while step == int(os.environ.get("GATE", -1)) and not os.path.exists(os.environ.get("GO", "go")):
        time.sleep(0.01)
    while step == 1 and len([f for f in os.listdir() if f.startswith("at-")]) < int(os.environ.get("MEET", 0)):
        time.sleep(0.01)
    if rank:
        say({"type": "metrics", "step": 1000 * step, "metrics": {"accuracy": 7 + rank}}, False)
        continue
    say({"type": "metrics", "step": step, "metrics": {"accuracy": 1 - (lr - 0.3) ** 2 + step / 1000}}, not keeps)
    if keeps:
        d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-%s-%d" % (os.environ["DTRAIN_ATTEMPT"], step))
        os.makedirs(d)
        open(os.path.join(d, "step"), "w").write(str(step))
        say({"type": "checkpoint", "step": step, "path": d}, True)
"""


class SearchCase(ClusterCase):
    def setUp(self):
        super().setUp()
        (self.folder / "train.py").write_text(TRAIN)

    def request(self, method, target, body=None):
        """Status and answer; asked again while there is no head."""
        def once():
            with contextlib.suppress(OSError, StopIteration, http.client.HTTPException):
                door = self.door()
                door.request(method, target, body=json.dumps(body or {}))
                answer = door.getresponse()
                said = answer.status, json.loads(answer.read())
                door.close()
                return said
            return None
        return eventually(once, f"{method} {target} is answered")

    def get(self, target):
        status, said = self.request("GET", target)
        self.assertEqual(status, 200, said)
        return said

    def spec(self, last=9, pause=0.0, keeps=False, job=None, **search):
        words = ["python3", "train.py", "{lr}", str(last), str(pause), "keeps" if keeps else "drops"]
        return {"job": {"name": "count", "command": words, "workdir": str(self.folder), "stop_grace_s": 60,
                        "resources": {"CPU": 0.5}, "resources_given": True, **(job or {})},
                "space": {"lr": {"uniform": [0, 1]}}, "metric": "accuracy", "mode": "max",
                "search": {"seed": 1}, **search}

    def begin(self, spec, **more):
        # The same submission is the same search, if the head dies before it answers.
        status, said = self.request("POST", "/v1/searches", {
            "submission_id": f"sub-{random.random()}", "spec": spec, **more})
        self.assertEqual(status, 200, said)
        return said["search"]

    def search(self, name):
        return self.get(f"/v1/searches/{name}")

    def trials(self, name):
        return self.get(f"/v1/searches/{name}/trials")["trials"]

    def wait_search(self, name, *states):
        return eventually(lambda: (s := self.search(name))["state"] in states and s,
                          f"{name} is {' or '.join(states)}", pause=0.05)

    def rows(self, job):
        """What its rank 0 has reported."""
        return [(r["step"], r["metrics"]["accuracy"]) for r in self.get(f"/v1/jobs/{job}/metrics?rank=0")["metrics"]]

    def kill(self, role):
        """Kills one, also of "rank"; false: there is none just now."""
        pids = [p for p in self.pids() if b"train.py" in self.command_of(p)] if role == "rank" else self.agents(role)
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(pids), signal.SIGKILL)
        return True

    def kill_while_running(self, name, kills, roles):
        """So many of them, while trials run; the search goes on to its end once `go` is there."""
        left = kills
        while self.search(name)["state"] == "running":
            left -= left > 0 and self.kill(random.choice(roles))
            if left == 0:
                (self.folder / "go").touch()
            time.sleep(random.uniform(0.2, 0.6))
        self.assertEqual(left, 0)

    def check_whole(self, name, trials, last, resumed=False):
        """Each trial is there once, and each of its reports counts once."""
        listed = self.trials(name)
        self.assertEqual([t["trial"] for t in listed], list(range(trials)))
        legs = [leg for t in listed for leg in t["legs"]]
        self.assertEqual(len(legs), len(set(legs)))
        jobs = {j["job"]: j for j in self.get("/v1/jobs")["jobs"] if j["search"] == name}
        self.assertEqual(set(legs), set(jobs))
        for t in listed:
            self.assertIn(t["state"], ("complete", "stopped"), t)
            rows = {step: value for leg in t["legs"] for step, value in self.rows(leg)}
            self.assertEqual(t["iteration"], t["step"], t)
            self.assertEqual(t["value"], rows[t["step"]], t)
            lr = t["params"]["lr"]
            self.assertAlmostEqual(t["value"], 1 - (lr - 0.3) ** 2 + t["step"] / 1000)
            self.assertLessEqual(t["iteration"], last)
            if not resumed:
                self.assertEqual(len(t["legs"]), 1, t)
                reported = [step for step, _ in self.rows(t["job"])]
                self.assertEqual(reported, list(range(1, len(reported) + 1)), t)
                # What is stopped may say more until it hears that, which takes longer where the head dies meanwhile.
                self.assertTrue(len(reported) == t["step"] or t["state"] == "stopped", (reported, t))
        return listed

    def command_of(self, pid):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""


__all__ = ["ClusterCase", "Path", "SearchCase", "contextlib", "eventually", "json", "main", "os", "random", "re", "signal",
           "sys", "time", "unittest"]
