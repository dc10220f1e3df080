"""Clusters on AWS that grow when jobs need machines, and shrink again, by the head alone."""

import random

from aws_harness import *
from aws import two_types


class Growth(AwsCase):
    def grown(self):
        """Nodes whose machines the head has asked for."""
        return sorted(node for node in self.by_node() if not node.startswith("node-"))

    def gang(self, nodes, script="echo rank $RANK"):
        return self.submit(script, "--nnodes", str(nodes))

    def over(self, job):
        self.wait_state(job, "succeeded", deadline=3 * DEADLINE)

    def gone(self, **more):
        self.assertTrue(self.json("down", "-y", **more)["complete"])
        self.assert_nothing_left()

    def test_a_gang_comes_and_goes(self):
        self.write(two_types(1, max_workers=3, idle_timeout_s=2))
        self.assertIn("2 nodes ready, more come when jobs need them", self.up())
        self.assert_ready("node-0", "node-1")
        self.assertEqual(self.grown(), [])
        # More than there may be is refused, what there may be is not.
        self.assertIn("can never run", self.refused("submit", "--nnodes", "5", "--", "/bin/true"))
        out = self.ok("submit", "--nnodes", "4", "--", "/bin/sh", "-c", "echo rank $RANK on $(hostname)", deadline=3 * DEADLINE)
        self.assertEqual(sorted(re.findall(r"rank \d", out)), [f"rank {i}" for i in range(4)])
        self.assertEqual({node: instance.instance_type for node, instance in self.by_node().items() if node in self.grown()},
                         {"gpu-1": "p3.2xlarge", "gpu-2": "p3.2xlarge"})
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        joined = self.machines[self.by_node()["gpu-1"].id]
        self.assertEqual({row.split()[0] for row in joined.run("ps", "-C", "dtrain-agent", "-o", "user=").splitlines()}, {LOGIN})
        eventually(lambda: self.grown() == [], "they are given back", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual(sorted(self.by_node()), ["node-0", "node-1"])
        eventually(lambda: len([s for s in self.states().values() if s != "gone"]) == 2, "their nodes have left", pause=0.1)
        self.gone()

    def test_a_yaml_that_wants_no_more_of_them(self):
        self.write(two_types(1, max_workers=3))
        self.up()
        self.over(self.gang(4))
        self.assertEqual(self.grown(), ["gpu-1", "gpu-2"])
        # Credentials of somebody else's on the head's machine are nobody's here.
        head = self.machines[self.by_node()["node-0"].id]
        head.path("~/.aws").mkdir()
        head.path("~/.aws/credentials").write_text("[default]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = none\n")
        self.write(two_types(1))
        self.up()
        eventually(lambda: self.grown() == [], "the head gives them back", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual(sorted(self.by_node()), ["node-0", "node-1"])
        self.gone()

    def test_it_waits_for_room_and_says_why(self):
        self.write(two_types(0, max_workers=2), provider={"availability_zone": "us-west-2b"})
        self.up()
        self.cloud.capacity["us-west-2b", "p3.2xlarge"] = 0
        job = self.gang(3)
        eventually(lambda: "InsufficientInstanceCapacity" in self.job(job)["reason"], "why it waits", pause=0.1)
        self.assertEqual(self.grown(), [])
        self.cloud.capacity["us-west-2b", "p3.2xlarge"] = 4
        self.over(job)
        # `down` while another gang is on its way.
        self.gang(3, "sleep 1000")
        self.gone()

    def test_one_that_is_lost_has_another_in_its_place(self):
        self.write(two_types(1))
        types = two_types(1)
        types["gpu"]["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}
        self.write(types)
        self.up()
        job = self.gang(2, "trap 'exit 0' TERM; echo rank $RANK; while [ ! -e /tmp/over ]; do sleep 0.05; done")
        self.wait_state(job, "running")
        self.cloud.end(self.by_node()["node-1"].id)
        eventually(lambda: self.grown() == ["gpu-1"], "the head asks for another", deadline=2 * DEADLINE, pause=0.1)
        eventually(lambda: self.states().get("gpu-1") == "ready", "it joins", deadline=2 * DEADLINE, pause=0.1)
        self.ok("stop", job)
        # It stands in the place of the one that was lost.
        self.ok("up", "-y", self.yaml)
        self.assertEqual(sorted(self.by_node()), ["gpu-1", "node-0"])
        self.assertRegex(self.ok("up", "--dry-run", self.yaml), r"gpu-1 +gpu +keep +us-west-2\w")
        self.gone()

    def test_head_and_scaler_are_killed_at_any_time(self):
        self.write(two_types(0, max_workers=3, idle_timeout_s=1))
        self.up()
        head = self.machines[self.by_node()["node-0"].id]
        for _ in range(4):
            job = self.gang(3)
            for _ in range(2):
                for name in ("dtrain-scaler", "dtrain-agent head"):
                    time.sleep(random.random() / 2)  # it may be doing anything then
                    for pid in head.processes(text=name):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back", pause=0.1)
            self.over(job)
            self.assertLessEqual(len(self.grown()), 3)
        eventually(lambda: self.grown() == [], "all are given back", deadline=3 * DEADLINE, pause=0.1)
        self.assertEqual(sorted(self.by_node()), ["node-0"])
        self.gone()


if __name__ == "__main__":
    main()
