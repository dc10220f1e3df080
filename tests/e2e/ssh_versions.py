"""Agents of several versions of dtrain on the same hosts, under a running job."""

from ssh_harness import *


class Versions(HostsCase):
    count = 2

    def newer_agent(self):
        """The agent as a later dtrain would bring it: another number, all else alike."""
        program = (BUILD / "agent" / "dtrain-agent").read_bytes()
        version = self.json("version")["version"]
        later = "9" + version[1:]
        path = self.folder / "dtrain-agent"
        path.write_bytes(program.replace(b"\0" + version.encode() + b"\0", b"\0" + later.encode() + b"\0"))
        path.chmod(0o755)
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(said, later)
        return path, version, later

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
        self.assertIn(f"the agents that run are of dtrain {later}, which is newer than this one's, {version}",
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
