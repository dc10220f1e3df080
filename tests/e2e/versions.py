"""Agents of several versions of dtrain on this machine, under a running job."""

from harness import *


class Versions(ClusterCase):
    nodes = 2

    def versions(self):
        return {node["version"] for node in self.json("status")["nodes"]}

    def refused(self, version, later):
        done = self.run_dtrain("up", self.folder / "cluster.yaml")
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 1, said)
        self.assertIn(f"the agents that are there are of dtrain {later}, which is newer than this one's, {version}",
                      said)
        self.assertIn("--downgrade", said)

    def test_newer_agents_replace_older_ones_under_a_job_and_older_ones_only_when_told(self):
        agent, version, later = self.newer_agent()
        stop = self.folder / "stop"
        job = self.submit(f"while [ ! -e '{stop}' ]; do sleep 0.05; done", "--nnodes", "2")
        self.wait_state(job, "running")
        yaml = self.folder / "cluster.yaml"
        said = self.json("up", yaml, "--dry-run", env={"DTRAIN_AGENT": str(agent)})
        self.assertIn("another build", str(said))
        self.assertEqual(self.versions(), {version})

        said = self.json("up", yaml, env={"DTRAIN_AGENT": str(agent)})
        self.assertEqual(said["action"], "changed")
        self.assertEqual(self.versions(), {later})
        self.assertEqual([len(self.agents(role)) for role in ("watch", "head", "node")], [1, 1, 2])
        self.assertEqual(self.json("up", yaml, env={"DTRAIN_AGENT": str(agent)})["action"], "none")

        self.refused(version, later)
        self.assertEqual(self.json("up", yaml, "--no-restart")["action"], "none")
        self.assertEqual(self.versions(), {later})
        # Also where none of them runs any more.
        self.kill_all_agents()
        self.refused(version, later)

        self.ok("up", yaml, "--downgrade")
        self.assertEqual(self.versions(), {version})
        self.assertEqual(self.state(job), "running")
        stop.touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)

    def test_force_starts_the_agents_anew(self):
        before = self.agents("head") + self.agents("node") + self.agents("watch")
        self.assertEqual(self.json("up", self.folder / "cluster.yaml", "--force")["action"], "changed")
        after = self.agents("head") + self.agents("node") + self.agents("watch")
        self.assertEqual(len(after), len(before))
        self.assertFalse(set(before) & set(after))


if __name__ == "__main__":
    main()
