"""Nodes that are kept for a job, to take the place of those that it loses. They do not know of each
other that they are one machine."""

from harness import *


class Spares(ClusterCase):
    nodes = 3
    apart = True

    def events(self, job):
        return [event["message"] for event in self.ask("GET", f"/v1/jobs/{job}/events")["events"]]

    def all_are_back(self):
        said = self.run_dtrain("status", "--json")
        return said.returncode == 0 and all(node["state"] == "ready" for node in json.loads(said.stdout)["nodes"])

    def test_a_lost_node_is_replaced_by_the_spare(self):
        (self.folder / "job.yaml").write_text(
            "name: train\nnnodes: 2\nspares: 1\ncommand: 'while :; do sleep 1000; done'\n")
        job = self.json("submit", "-d", self.folder / "job.yaml")["job"]
        self.wait_state(job, "running")
        eventually(lambda: "node-2 is ready as a spare" in self.events(job), "the spare is ready")
        cpus = self.json("status")["nodes"][0]["cpus"]
        other = self.submit("true", "--cpus", str(cpus))
        eventually(lambda: f"node-2 is kept as a spare of {job}" in self.job(other)["reason"], "why others wait")
        self.assertIn(f"spare of {job}", self.ok("status"))
        # A head that is killed still has it.
        [head] = self.agents("head")
        os.kill(head, signal.SIGKILL)
        eventually(lambda: head not in self.agents("head"), "the head is dead")
        eventually(self.all_are_back, "another head has all nodes")
        # The agent stands still, so that nobody hears that its supervisor is gone.
        [agent] = self.agents("node", "node-1")
        os.kill(agent, signal.SIGSTOP)
        self.addCleanup(os.kill, agent, signal.SIGKILL)  # going on, it would be a minute within a handler
        for pid in self.agents("supervise", "node-1"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(self.job(job)["attempts"]) == 2, "the next attempt")
        attempt = self.job(job)["attempts"][1]
        self.assertEqual([node["node"] for node in attempt["nodes"]], ["node-0", "node-2"])
        self.wait_state(job, "running")
        said = self.events(job)
        begun = next(i for i, text in enumerate(said) if text.startswith("attempt 2 starts"))
        self.assertIn("node-2 was its spare", said[begun])
        self.assertLess(said.index("node-2 is ready as a spare"), begun)


if __name__ == "__main__":
    main()
