"""Searches whose trials have several ranks on several nodes. Nodes do not know of each other that they are one
machine."""

from search_harness import *


class Nodes(SearchCase):
    nodes = 4
    apart = True

    def gangs(self, **job):
        """A trial's job takes two nodes whole."""
        cpus = self.json("status")["nodes"][0]["cpus"]
        return {"nnodes": 2, "nproc_per_node": 2, "resources": {"CPU": cpus / 2}, "checkpoint": {"num_to_keep": 1}, **job}

    def attempts(self, trial):
        return self.get(f"/v1/jobs/{trial['job']}")["attempts"]

    def nodes_of(self, attempt):
        return [node["node"] for node in attempt["nodes"]]

    def check_ranks(self, listed):
        """Each attempt has all ranks, and what others than rank 0 say of the metric is known and counts nowhere."""
        others = set()
        for t in listed:
            for attempt in self.attempts(t):
                self.assertEqual((attempt["world_size"], len(set(self.nodes_of(attempt)))), (4, 2))
            others |= {row["metrics"]["accuracy"] for row in self.get(f"/v1/jobs/{t['job']}/metrics?rank=3")["metrics"]}
            self.assertLess(t["best"], 2)
        self.assertEqual(others, {10})

    def test_a_node_that_is_lost_costs_its_trial_an_attempt(self):
        name = self.begin(self.spec(keeps=True, num_samples=5, max_concurrent=2, job=self.gangs(env={"GATE": "4"})))
        two = eventually(lambda: (t := self.trials(name)) and [each["iteration"] for each in t] == [3, 3] and
                         all(each["checkpoint"] and each["checkpoint"]["step"] == 3 for each in t) and t,
                         "two trials are amid their steps")
        on = [self.nodes_of(self.attempts(t)[0]) for t in two]
        self.assertEqual(sorted(on[0] + on[1]), [f"node-{i}" for i in range(4)])
        # One node's agent stands still, so that nobody hears that its ranks are gone with their supervisor.
        [gone] = [t["trial"] for t, nodes in zip(two, on) if "node-0" not in nodes]
        victim = on[gone][0]
        [agent], [supervisor] = (self.agents(role, victim) for role in ("node", "supervise"))
        os.kill(agent, signal.SIGSTOP)
        self.addCleanup(os.kill, agent, signal.SIGKILL)  # going on, it would be a minute within a handler
        os.kill(supervisor, signal.SIGKILL)
        (self.folder / "go").touch()
        # The other trial goes on, and others come in its place.
        eventually(lambda: self.search(name)["counts"]["complete"] > 0, "the trial elsewhere ends")
        self.wait_search(name, "succeeded")
        listed = self.check_whole(name, 5, 9)
        self.check_ranks(listed)
        self.assertEqual({(t["state"], t["iteration"]) for t in listed}, {("complete", 9)})
        self.assertEqual({t["trial"]: [a["failure"] for a in self.attempts(t)] for t in listed},
                         {n: ["node_lost", None] if n == gone else [None] for n in range(5)})
        second = self.attempts(listed[gone])[1]
        self.assertNotIn(victim, self.nodes_of(second))
        # From its checkpoint, each step once.
        self.assertEqual(self.rank_output(listed[gone]["job"], 0, second["attempt"]).read_text(), "began at 3\n")

    def test_whatever_dies_no_trial_is_lost_and_none_is_there_twice(self):
        name = self.begin(self.spec(
            pause=0.2, keeps=True, num_samples=8, max_concurrent=3,
            job=self.gangs(max_restarts=100, restart={"same_failure": "restart"}, env={"GATE": "9"}),
            search={"seed": 1, "points_to_evaluate": [{"lr": 0.3}]},  # the best comes early, and waits for others
            scheduler={"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}))
        self.kill_while_running(name, 10, ["head", "node", "supervise", "rank"])
        self.wait_search(name, "succeeded")
        listed = self.check_whole(name, 8, 9, resumed=True)
        self.check_ranks(listed)
        self.assertTrue(any(len(t["legs"]) > 1 for t in listed))
        self.assertTrue(any(t["iteration"] == 9 and t["state"] == "complete" for t in listed))


if __name__ == "__main__":
    main()
