"""Searches over hyperparameters: their trials are jobs, asked for through the head's API, and whatever dies is
started again."""

from search_harness import *

# By hand with more: SEARCH_TRIALS=100 SEARCH_KILLS=50 python3 tests/e2e/searches.py Searches.test_promoted…
TRIALS, KILLS = (int(os.environ.get(name, 16)) for name in ("SEARCH_TRIALS", "SEARCH_KILLS"))


class Searches(SearchCase):
    nodes = 2

    def test_asha_stops_the_worse_trials_though_heads_die(self):
        name = self.begin(self.spec(pause=0.2, num_samples=18, max_concurrent=4, job={"env": {"GATE": "9"}},
                                    scheduler={"algorithm": "asha", "max_t": 9, "reduction_factor": 3}))
        self.kill_while_running(name, 8, ["head"])
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
            job={"max_restarts": 100, "checkpoint": {"num_to_keep": 1}, "restart": {"same_failure": "restart"},
                 "env": {"GATE": "9"}},
            search={"seed": 1, "points_to_evaluate": [{"lr": 0.3}]},  # the best comes early, and waits for others
            scheduler={"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}))
        self.kill_while_running(name, KILLS, ["head", "head", "node", "supervise", "rank"])
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

    def test_pbt_begins_trials_from_checkpoints_of_others(self):
        # So far apart that the worst is the worst, whoever is some steps ahead.
        points = [{"lr": lr} for lr in (0.3, 0.5, 0.7, 0.95)]
        name = self.begin(self.spec(last=12, pause=0.05, keeps=True, num_samples=4, max_concurrent=4,
                                    search={"seed": 1, "points_to_evaluate": points},
                                    job={"checkpoint": {"num_to_keep": 1}, "env": {"MEET": "4"}},
                                    scheduler={"algorithm": "pbt", "perturbation_interval": 2}))
        eventually(lambda: any(t["exploits"] for t in self.trials(name)), "a trial is moved")
        self.kill("head")
        self.wait_search(name, "succeeded")
        listed = self.trials(name)
        self.assertEqual({t["state"] for t in listed}, {"complete"})
        self.assertEqual({t["iteration"] for t in listed}, {12})
        moved = [t for t in listed if t["exploits"]]
        self.assertTrue(moved)
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
        for change, code, said in (({"metric": ""}, 400, "metric: the metric's name is wanted"),
                                   ({"num_sample": 3}, 400, "num_samples"),
                                   ({"space": {}}, 400, "space: has no parameter"),
                                   ({"warm_start": ["x-abcdef"]}, 404, "there is no search x-abcdef"),
                                   ({"job": {"command": ["{l}"], "name": "x", "workdir": "/"}}, 400, "{lr}"),
                                   ({"scheduler": "best"}, 400, "scheduler.algorithm: must be one of")):
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
        # Unless it is to wait for nodes that may come.
        name = self.begin(spec, wait=True)
        eventually(lambda: self.search(name)["counts"]["waiting"] == 1, "its trial waits")
        self.assertEqual(self.trials(name)[0]["job_state"], "queued")
        self.request("POST", f"/v1/searches/{name}/stop")
        self.wait_search(name, "stopped")
        other = self.begin(self.spec())
        self.assertEqual([s["search"] for s in self.get("/v1/searches?count=1")["searches"]], [other])
        self.assertEqual([s["search"] for s in self.get("/v1/searches")["searches"]], [other, name])
        self.wait_search(other, "succeeded")

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
