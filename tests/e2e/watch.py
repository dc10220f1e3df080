"""The watch dies too: head and node agents start it again."""

from harness import *


class Watch(ClusterCase):
    def one(self, role, but=()):
        """The pid of the one process of that role, a new one."""
        return eventually(lambda: (p := self.agents(role)) and len(p) == 1 and p[0] not in but
                          and (role != "watch" or p[0] == self.written()) and p[0], f"one {role}, not one of {but}")

    def written(self):
        """Head and node agent may each have started one: the pid of that which keeps the agents."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.root() / "watch.pid").read_text())["pid"]

    def kill(self, *roles):
        """Kills them at once; gives the pids of all agents that were there."""
        before = {role: self.one(role) for role in ("watch", "head", "node")}
        for role in roles:
            os.kill(before[role], signal.SIGKILL)
        return before

    def assert_all_well(self):
        eventually(lambda: (s := self.run_dtrain("status", "--json")).returncode == 0
                   and (json.loads(s.stdout).get("nodes") or [{}])[0].get("state") == "ready",
                   "the cluster is back")

    def test_it_is_started_again_and_keeps_what_it_finds(self):
        before = self.kill("watch")
        second = self.one("watch", [before["watch"]])
        self.assertEqual(self.one("head"), before["head"])
        self.assertEqual(self.one("node"), before["node"])
        # Not its children, but it hears of their ends.
        for role in ("head", "node"):
            os.kill(before[role], signal.SIGKILL)
            self.one(role, [before[role]])
            self.assert_all_well()
        self.assertEqual(self.one("watch"), second)
        third = self.kill("watch")
        self.one("watch", [second])
        self.assertEqual(self.one("head"), third["head"])

    def test_it_dies_together_with_the_head_or_the_node(self):
        job = self.submit("while [ ! -e \"$STOP\" ]; do sleep 0.02; done; exit 4", "--env",
                          f"STOP={self.folder / 'stop'}")
        self.wait_state(job, "running")
        for other in ("head", "node"):
            before = self.kill("watch", other)
            self.one("watch", [before["watch"]])
            self.one(other, [before[other]])
            self.assert_all_well()
        (self.folder / "stop").touch()
        self.wait_state(job, "failed")
        self.assertEqual(self.job(job)["exit_code"], 4)
        self.assertEqual(self.job(job)["attempts"][-1]["attempt"], 1)

    def test_down_and_up_are_not_a_death(self):
        before = self.kill("watch")
        self.one("watch", [before["watch"]])
        self.ok("up", self.folder / "cluster.yaml")
        self.assertEqual(self.one("head"), before["head"])
        self.ok("down", "-y")
        self.assertEqual(self.pids(), [])


if __name__ == "__main__":
    main()
