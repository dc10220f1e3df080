"""Agents of several versions of dtrain on the same hosts, under a running job."""

from ssh_harness import *


class Versions(HostsCase):
    count = 2

    def test_newer_agents_replace_older_ones_under_a_job_and_older_ones_only_when_told(self):
        agent, version, later = self.newer_agent()
        self.up()
        job = self.submit("while [ ! -e ~/stop ]; do sleep 0.05; done", "--nnodes", "2")
        self.wait_state(job, "running")
        said = self.json("up", self.yaml, env={"DTRAIN_AGENT": str(agent)})
        self.assertEqual(said["action"], "changed")
        self.assertEqual({node["version"] for node in self.json("status")["nodes"]}, {later})

        done = self.run_dtrain("up", self.yaml)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"the agents that are there are of dtrain {later}, which is newer than this one's, {version}",
                      done.stdout + done.stderr)
        self.assertIn("--downgrade", done.stdout + done.stderr)
        self.assertEqual({node["version"] for node in self.json("status")["nodes"]}, {later})

        self.ok("up", self.yaml, "--downgrade")
        self.assertEqual({node["version"] for node in self.json("status")["nodes"]}, {version})
        self.assertEqual(self.state(job), "running")
        for host in self.lab[:2]:
            host.path("~/stop").touch()
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.job(job)["attempts"]), 1)


if __name__ == "__main__":
    main()
