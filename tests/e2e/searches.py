"""Searches over hyperparameters: their trials are jobs, asked for through the head's API, and whatever dies is
started again."""

import random
import http.client

from harness import *

# Waits at step GATE for the file `go`, at its first one for MEET trials to come as far. Reports an
# accuracy that depends on lr, each with a checkpoint if it is asked for; goes on from one. A report
# that is not acknowledged is not made again: the head that dies has it from the node.
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
while step < last:
    step += 1
    time.sleep(pause)
    open("at-%s-%d" % (os.environ["DTRAIN_TRIAL"], step), "w")
    while step == int(os.environ.get("GATE", -1)) and not os.path.exists("go"):
        time.sleep(0.01)
    while step == 1 and len([f for f in os.listdir() if f.startswith("at-")]) < int(os.environ.get("MEET", 0)):
        time.sleep(0.01)
    say({"type": "metrics", "step": step, "metrics": {"accuracy": 1 - (lr - 0.3) ** 2 + step / 1000}}, not keeps)
    if keeps:
        d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-%s-%d" % (os.environ["DTRAIN_ATTEMPT"], step))
        os.makedirs(d)
        open(os.path.join(d, "step"), "w").write(str(step))
        say({"type": "checkpoint", "step": step, "path": d}, True)
"""


# By hand with more: SEARCH_TRIALS=100 SEARCH_KILLS=50 python3 tests/e2e/searches.py Searches.test_promoted…
TRIALS, KILLS = (int(os.environ.get(name, 16)) for name in ("SEARCH_TRIALS", "SEARCH_KILLS"))


class Searches(ClusterCase):
    nodes = 2

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
        return [(r["step"], r["metrics"]["accuracy"]) for r in self.get(f"/v1/jobs/{job}/metrics")["metrics"]]

    def kill(self, *roles):
        pids = [pid for role in roles for pid in self.agents(role)]
        if not pids:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(pids), signal.SIGKILL)

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
        return listed

    def test_asha_stops_the_worse_trials_though_heads_die(self):
        name = self.begin(self.spec(pause=0.2, num_samples=18, max_concurrent=4,
                                    scheduler={"algorithm": "asha", "max_t": 9, "reduction_factor": 3}))
        kills = 0
        while self.search(name)["state"] == "running":
            if kills < 8:
                self.kill("head")
                kills += 1
            time.sleep(random.uniform(0.2, 0.6))
        self.assertGreater(kills, 5)
        search = self.wait_search(name, "succeeded")
        listed = self.check_whole(name, 18, 9)
        stopped = [t for t in listed if t["state"] == "stopped"]
        self.assertGreater(len(stopped), 4)
        self.assertTrue(all(t["iteration"] < 9 for t in stopped))
        best = max(listed, key=lambda t: t["value"])
        self.assertEqual(search["best"]["trial"], best["trial"])
        self.assertEqual(best["iteration"], 9)
        # What was decided follows from what was recorded: read anew, it is the same.
        self.kill("head")
        self.assertEqual(self.trials(name), listed)

        # Status is for jobs of their own, and can be asked for all.
        status = self.get("/v1/status")
        self.assertEqual(status["jobs"], [])
        self.assertEqual([s["search"] for s in status["searches"]], [name])
        self.assertEqual(len(self.get("/v1/status?trials=1")["jobs"]), 18)
        self.assertEqual(len(self.get("/v1/status?trials=1&jobs=3")["jobs"]), 3)
        self.assertEqual(self.request("GET", "/v1/status?job=1")[0], 400)
        self.assertEqual(len(self.get(f"/v1/searches/{name}?trials=5")["trials"]), 5)
        self.assertEqual([t["trial"] for t in self.get(f"/v1/searches/{name}/trials?from=4&count=2")["trials"]],
                         [4, 5])

    def test_promoted_trials_go_on_from_their_checkpoints_whatever_dies(self):
        name = self.begin(self.spec(
            pause=0.3, keeps=True, num_samples=TRIALS, max_concurrent=4,
            job={"max_restarts": 100, "checkpoint": {"num_to_keep": 1}, "restart": {"same_failure": "restart"}},
            scheduler={"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}))
        kills = 0
        while self.search(name)["state"] == "running":
            if kills < KILLS:
                victim = random.choice(["head", "head", "node", "supervise", "rank"])
                if victim == "rank":
                    ranks = [p for p in self.pids() if b"train.py" in self.command_of(p)]
                    if ranks:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(random.choice(ranks), signal.SIGKILL)
                else:
                    self.kill(victim)
                kills += 1
            time.sleep(random.uniform(0.2, 0.6))
        self.assertGreater(kills, KILLS // 2)
        self.wait_search(name, "succeeded")
        listed = self.check_whole(name, TRIALS, 9, resumed=True)
        self.assertTrue(any(len(t["legs"]) > 1 for t in listed))
        self.assertTrue(any(t["iteration"] == 9 and t["state"] == "complete" for t in listed))
        for t in listed:
            for leg in t["legs"][1:]:
                self.assertIn(self.get(f"/v1/jobs/{leg}")["resumed_from"], t["legs"])
        # What was decided follows from what was recorded: read anew, it is the same.
        self.kill("head")
        self.assertEqual(self.trials(name), listed)

    def command_of(self, pid):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    def test_pbt_begins_trials_from_checkpoints_of_others(self):
        name = self.begin(self.spec(last=12, pause=0.05, keeps=True, num_samples=4, max_concurrent=4,
                                    job={"checkpoint": {"num_to_keep": 1}, "env": {"MEET": "4"}},
                                    scheduler={"algorithm": "pbt", "perturbation_interval": 2}))
        eventually(lambda: any(t["exploits"] for t in self.trials(name)), "a trial is moved")
        self.kill("head")
        self.wait_search(name, "succeeded")
        listed = self.trials(name)
        self.assertEqual({t["state"] for t in listed}, {"complete"})
        self.assertEqual({t["iteration"] for t in listed}, {12})
        moved = [t for t in listed if t["exploits"]]
        for t in moved:
            self.assertGreater(len(t["schedule"]), 1)
            self.assertIn("checkpoint", self.get(f"/v1/jobs/{t['legs'][1]}")["started_from"])
        whole = self.search(name)
        self.assertEqual(len(whole["exploitations"]), sum(t["exploits"] for t in listed))

    def test_stop_resume_and_remove(self):
        name = self.begin(self.spec(last=9, keeps=True, num_samples=3, max_concurrent=2,
                                    job={"env": {"GATE": "5"}}))
        eventually(lambda: [t["iteration"] for t in self.trials(name)] == [4, 4], "trials report")
        status, said = self.request("DELETE", f"/v1/searches/{name}")
        self.assertEqual(status, 409, said)
        began = time.monotonic()
        status, said = self.request("POST", f"/v1/searches/{name}/stop")
        self.assertEqual((status, said["state"]), (200, "stopping"))
        self.wait_search(name, "stopped")
        took = time.monotonic() - began
        self.assertLess(took, 40, "trials that do not handle SIGTERM end at once")
        self.assertEqual({t["state"] for t in self.trials(name)}, {"paused"})
        self.kill("head")
        (self.folder / "go").touch()
        status, said = self.request("POST", f"/v1/searches/{name}/resume")
        self.assertEqual((status, said["state"]), (200, "running"))
        self.wait_search(name, "succeeded")
        listed = self.check_whole(name, 3, 9, resumed=True)
        self.assertEqual([len(t["legs"]) for t in listed], [2, 2, 1])
        for t in listed[:2]:
            job = t["legs"][1]
            # Its fourth checkpoint may not have been committed when it was stopped.
            self.assertIn(self.rank_output(job, 0).read_text().strip(), ("began at 3", "began at 4"))
        first = listed[0]["legs"][0]
        status, said = self.request("DELETE", f"/v1/searches/{name}")
        self.assertEqual((status, said), (200, {"search": name, "removed": True}))
        self.assertEqual(self.request("GET", f"/v1/searches/{name}")[0], 404)
        self.assertEqual(self.request("GET", f"/v1/jobs/{first}")[0], 404)
        self.assertEqual(self.get("/v1/jobs")["jobs"], [])

    def test_what_is_wrong_is_refused(self):
        for change, code, said in (({"metric": ""}, 400, "metric"), ({"num_sample": 3}, 400, "num_samples"),
                                   ({"space": {}}, 400, "space"), ({"warm_start": ["x-abcdef"]}, 404, "x-abcdef"),
                                   ({"job": {"command": ["{l}"], "name": "x", "workdir": "/"}}, 400, "{lr}"),
                                   ({"scheduler": "best"}, 400, "scheduler")):
            status, answer = self.request("POST", "/v1/searches", {"submission_id": "", "spec": {
                **self.spec(), **change}})
            self.assertEqual(status, code, (change, answer))
            self.assertIn(said, json.dumps(answer))
        spec = self.spec(job={"resources": {"CPU": 9999}})
        status, answer = self.request("POST", "/v1/searches", {"submission_id": "", "spec": spec})
        self.assertEqual(status, 409, answer)
        status, answer = self.request("POST", "/v1/searches", {"dry_run": True, "spec": self.spec(num_samples=7)})
        self.assertEqual((status, answer["fits"], answer["total"]), (200, True, 7))
        self.assertEqual(self.get("/v1/searches"), {"searches": []})

    def test_many_trials_that_do_nothing(self):
        spec = self.spec(num_samples=200, job={"command": ["true"]})
        began = time.monotonic()
        name = self.begin(spec)
        search = self.wait_search(name, "succeeded")
        took = time.monotonic() - began
        print(f"200 trials in {took:.1f} s, {200 / took:.0f} a second", file=sys.stderr)
        self.assertEqual(search["counts"]["complete"], 200)


if __name__ == "__main__":
    main()
