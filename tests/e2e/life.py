"""up and down: idempotent, quick, and nothing is left behind."""

from harness import *


class Life(ClusterCase):
    nodes = 0

    def test_up_twice_and_down_twice(self):
        self.write_cluster(2)
        yaml = self.folder / "cluster.yaml"
        self.ok("up", yaml)
        before = sorted(self.agents("watch") + self.agents("head") + self.agents("node"))
        self.assertEqual(len(self.agents("head")), 1)
        self.assertEqual(len(self.agents("node")), 2)
        # Head, node and `up` all start it again; those that come too late end at once.
        eventually(lambda: len(self.agents("watch")) == 1, "one watch is left")
        self.ok("up", yaml)
        # Beside them, at most what the first one has begun and what ends by itself.
        eventually(lambda: sorted(self.pids()) == before, "a second up starts nothing")
        status = self.json("status")
        self.assertEqual([n["state"] for n in status["nodes"]], ["ready", "ready"])
        sockets = self.sockets()
        self.assertTrue(sockets)

        self.ok("down", "-y")
        self.assertEqual(self.pids(), [])
        self.assertFalse(self.root().exists())
        self.assertEqual([s for s in sockets if s.exists()], [])
        again = self.run_dtrain("down", "-y", yaml)
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_up_mends_a_killed_watch_and_head(self):
        self.write_cluster(1)
        yaml = self.folder / "cluster.yaml"
        self.ok("up", yaml)
        for pid in self.agents("watch") + self.agents("head"):
            os.kill(pid, signal.SIGKILL)
        self.ok("up", yaml)
        # Head, node and `up` all start it again; those that come too late end at once.
        eventually(lambda: len(self.agents("watch")) == 1, "one watch is left")
        self.assertEqual([n["state"] for n in self.json("status")["nodes"]], ["ready"])

    def test_up_mends_a_watch_that_dies_while_it_waits(self):
        self.write_cluster(1)
        yaml = self.folder / "cluster.yaml"
        self.ok("up", yaml)
        watch = self.agents("watch")[0]
        os.kill(watch, signal.SIGSTOP)  # lives, and starts no head
        for pid in self.agents("head"):
            os.kill(pid, signal.SIGKILL)
        up = self.start("up", yaml, stderr=subprocess.PIPE, text=True)
        self.assertIn("waiting", up.stderr.readline())
        os.kill(watch, signal.SIGKILL)
        rest = up.communicate(timeout=DEADLINE)[1]
        self.assertEqual(up.returncode, 0, rest)
        # Head, node and `up` all start it again; those that come too late end at once.
        eventually(lambda: len(self.agents("watch")) == 1, "one watch is left")

    def test_dry_run_shows_the_plan_and_does_nothing(self):
        self.write_cluster(2)
        yaml = self.folder / "cluster.yaml"
        plan = self.json("up", yaml, "--dry-run")
        self.assertEqual([(each["node"], each["action"], each["reason"]) for each in plan["plan"]],
                         [("node-0", "create", "there is none yet"), ("node-1", "create", "there is none yet")])
        self.assertEqual(self.pids(), [])
        self.ok("up", yaml)
        said = self.ok("up", yaml, "--dry-run")
        self.assertRegex(said, r"node-1 +keep +in the cluster")
        done = self.run_dtrain("up", yaml, "--replace")
        self.assertEqual(done.returncode, 2)
        self.assertIn("provider local makes no machines", done.stderr)

    def test_no_cluster_is_said_plainly(self):
        done = self.run_dtrain("status")
        self.assertEqual(done.returncode, 4)
        self.assertLessEqual(len(done.stderr.strip().split("\n")), 3)
        done = self.run_dtrain("status", "--json")
        self.assertIn("error", json.loads(done.stdout))

    def test_a_wrong_yaml_names_each_place(self):
        (self.folder / "wrong.yaml").write_text(
            "cluster_nam: x\nprovider:\n  type: local\n  nodes: many\n")
        done = self.run_dtrain("up", "wrong.yaml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("wrong.yaml:1:", done.stderr)
        self.assertIn("cluster_name", done.stderr)
        self.assertIn("wrong.yaml:4:", done.stderr)

    def test_a_provider_that_is_not_built_yet_says_so(self):
        done = self.run_dtrain("up", SOURCE / "configs" / "gcp.yaml")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("not built yet", done.stderr)


class TwoClusters(ClusterCase):
    def test_two_clusters_do_not_meet(self):
        other = self.folder / "other.yaml"
        other.write_text("cluster_name: other\nprovider: {type: local}\n")
        self.ok("up", other)
        job = self.json("submit", "-d", "-c", "other", "--", "/bin/true")["job"]
        self.assertEqual(self.json("status", "-c", self.name())["jobs"], [])
        self.assertEqual([j["job"] for j in self.json("status", "-c", "other")["jobs"]], [job])
        self.ok("down", "-y", "-c", "other")
        self.assertEqual([n["state"] for n in self.json("status", "-c", self.name())["nodes"]],
                         ["ready"])


if __name__ == "__main__":
    main()
