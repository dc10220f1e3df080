"""Clusters on AWS that grow when jobs need machines, and shrink again, by the head alone."""

import random

from aws_harness import *
from aws import two_types


# Reports an accuracy that depends on lr once its machine says that it may.
REPORTS = """
import json, os, socket, sys, time
while not os.path.exists("/tmp/over"):
    time.sleep(0.05)
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
s.sendall(json.dumps({"type": "metrics", "step": 1, "metrics": {"accuracy": 1 - float(sys.argv[1])}, "ack": True}).encode() + b"\\n")
assert json.loads(s.makefile().readline())["ok"]
"""


class Growth(AwsCase):
    agents_on = "all"

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
        self.agents_on = ()  # each is brought, or fetches, all that it needs
        self.write(two_types(1, max_workers=3, idle_timeout_s=2))
        self.assertIn("2 nodes ready, more come when jobs need them", self.up())
        self.assert_ready("node-0", "node-1")
        self.assertEqual(self.grown(), [])
        # More than there may be is refused, what there may be is not.
        self.assertIn("can never run", self.refused("submit", "--nnodes", "5", "--", "/bin/true"))
        # It holds them while it is looked at.
        job = self.gang(4, "echo rank $RANK; while [ ! -e /tmp/over ]; do sleep 0.05; done")
        self.wait_state(job, "running", deadline=3 * DEADLINE)
        self.assertEqual({node: instance.instance_type for node, instance in self.by_node().items() if node in self.grown()},
                         {"gpu-1": "p3.2xlarge", "gpu-2": "p3.2xlarge"})
        self.assertEqual(self.json("up", self.yaml)["action"], "none")
        joined = self.machines[self.by_node()["gpu-1"].id]
        self.assertEqual({row.split()[0] for row in joined.run("ps", "-C", "dtrain-agent", "-o", "user=").splitlines()}, {LOGIN})
        for machine in self.machines:
            machine.path("/tmp/over").touch()
        self.over(job)
        self.assertEqual(sorted(re.findall(r"rank \d", self.ok("logs", job))), [f"rank {i}" for i in range(4)])
        eventually(lambda: self.grown() == [], "they are given back", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual(sorted(self.by_node()), ["node-0", "node-1"])
        eventually(lambda: len([s for s in self.states().values() if s != "gone"]) == 2, "their nodes have left", pause=0.1)
        self.gone()

    def search(self, *flags):
        """Begins a search, each of whose trials has a machine whole and holds it until /tmp/over is there."""
        (self.folder / "train.py").write_text(REPORTS)
        return self.ok("tune", "-d", "--name", "grows", "--param", "lr=uniform:0:1", "--metric", "accuracy", "--mode", "max",
                       "--seed", "1", "--cpus", "1", "--stop-grace-s", "1", *flags, "--", "python3", "train.py",
                       "{lr}").strip()

    def over_everywhere(self):
        for machine in self.machines:
            machine.path("/tmp/over").touch()

    def test_a_search_has_machines_as_long_as_its_trials_need_them(self):
        types = two_types(0, max_workers=3, idle_timeout_s=1, resources={"CPU": 1})
        types["head"]["resources"] = {"CPU": 0}
        self.write(types)
        self.up()
        name = self.search("--num-samples", "7")

        def counts():
            return self.json("tune", "status", name)["counts"]

        # Two of its trials wait at least, for which machines come; then more, until there may be no more machines.
        eventually(lambda: counts()["running"] == 3, "each machine has a trial", deadline=3 * DEADLINE, pause=0.1)
        self.assertEqual(self.grown(), ["gpu-1", "gpu-2", "gpu-3"])
        eventually(lambda: counts()["waiting"] == 3, "as many wait as run", pause=0.1)
        # One that is stopped asks for none and holds none; what its trials did is not lost.
        self.assertEqual(self.ok("tune", "stop", name), f"{name} stopped\n")
        eventually(lambda: self.grown() == [], "they are given back", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual({t["state"] for t in self.json("tune", "result", name)["trials"]}, {"paused"})
        self.ok("tune", "resume", "-d", name)
        eventually(lambda: counts()["running"] == 3, "machines come again", deadline=3 * DEADLINE, pause=0.1)
        for pid in self.machines[self.by_node()["node-0"].id].processes(text="dtrain-agent head"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back", pause=0.1)
        # Whatever machine comes from here on holds nothing up.
        self.machines.prepare = lambda machine: machine.path("/tmp/over").touch()
        self.over_everywhere()
        eventually(lambda: self.json("tune", "status", name)["state"] == "succeeded", "it ends", deadline=3 * DEADLINE, pause=0.1)
        trials = self.json("tune", "result", name)["trials"]
        self.assertEqual(sorted(t["trial"] for t in trials), list(range(7)))
        for t in trials:
            self.assertEqual((t["state"], t["iteration"], t["value"]), ("complete", 1, 1 - t["params"]["lr"]), t)
            on = {node["node"] for attempt in self.job(t["job"])["attempts"] for node in attempt["nodes"]}
            self.assertRegex(" ".join(on), r"^gpu-\d+$")
        eventually(lambda: self.grown() == [], "they are given back", deadline=2 * DEADLINE, pause=0.1)
        self.assertEqual(sorted(self.by_node()), ["node-0"])
        self.gone()

    def test_what_a_type_has_by_the_yaml(self):
        types = two_types(1, max_workers=2, resources={"tpu": 2, "memory": "1TiB"}, labels={"tier": "gold"})
        types["head"]["resources"] = {"CPU": 0}
        self.write(types)
        self.up()
        # On the machine of `up` and on one that the head asks for: no other has it.
        wants_both = ("submit", "-d", "--nnodes", "2", "--resource", "tpu=2", "--label-selector", "tier=in(gold, tin)",
                      "--", "/bin/true")
        both = self.json(*wants_both)["job"]
        self.over(both)
        self.assertEqual([n["node"] for n in self.json("result", both)["attempts"][0]["nodes"]], ["gpu-1", "node-1"])
        # The head's machine counts as having no CPU.
        plain = self.json("submit", "-d", "--", "/bin/true")["job"]
        self.over(plain)
        self.assertNotEqual(self.json("result", plain)["attempts"][0]["nodes"][0]["node"], "node-0")
        self.assertIn("each gpu has 2 of 2 tpu free", self.refused("submit", "--resource", "tpu=3", "--", "/bin/true"))
        self.assertIn("each gpu has label tier: gold", self.refused("submit", "--label-selector", "tier=!gold", "--cpus", "1", "--", "/bin/true"))
        # So it is after another `up`, for a head that is started again.
        self.up()
        for pid in self.machines[self.by_node()["node-0"].id].processes(text="dtrain-agent head"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back", pause=0.1)
        self.over(self.json(*wants_both)["job"])
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

    def test_what_it_costs_and_may_cost(self):
        def write(min_workers):
            types = two_types(min_workers, idle_timeout_s=1)
            types["gpu"].update(max_workers=4, node_config={"InstanceType": "p3.8xlarge", "ImageId": "latest_dlami"})
            self.write(types, max_cost_per_hour=20)

        def costs():
            return self.json("status")["costs"]

        # More than that is refused before anything is made, and a dry run says so.
        write(2)
        above = "with 3 new machines the cluster would cost $24.58 an hour, and max_cost_per_hour is $20.00"
        dry = self.run_dtrain("up", "--dry-run", self.yaml)
        self.assertEqual(dry.returncode, 1, dry.stderr)
        self.assertIn("up would refuse this: " + above, dry.stdout)
        said = self.refused("up", "-y", self.yaml)
        self.assertIn(above, said)
        self.assertRegex(said, rf"{self.yaml.name}:\d+")
        self.assertEqual(self.cloud.count("RunInstances"), 0)
        write(0)
        self.assertIn("all machines: $0.10 an hour, max_cost_per_hour is $20.00", self.ok("up", "--dry-run", self.yaml))
        self.up()
        now = costs()
        self.assertEqual((now["per_hour"], now["max_per_hour"], now["unpriced"]), (0.096, 20, 0))
        self.assertEqual([(each["node"], each["price"]) for each in now["machines"]], [("node-0", 0.096)])
        # What could never run below it is refused, and says why.
        said = self.refused("submit", "--nnodes", "3", "--", "/bin/true")
        self.assertIn("would ask for 3 machines of type gpu: that is $36.72 an hour beside $0.10 for others, max_cost_per_hour is $20.00", said)
        # One that runs below it, and one that waits until that has ended.
        wait = "while [ ! -e /tmp/over ]; do sleep 0.05; done"
        whole = ("--cpus", str(os.cpu_count()))
        first = self.submit(wait, "--nnodes", "2", *whole)
        self.wait_state(first, "running", deadline=2 * DEADLINE)
        second = self.submit("echo rank $RANK", "--nnodes", "1", *whole)
        reason = "would ask for 1 machine of type gpu: that is $12.24 an hour beside $12.34 for others, max_cost_per_hour is $20.00"
        eventually(lambda: self.job(second)["reason"] == reason, "why it waits", pause=0.1)
        self.assertRegex(self.ok("status"), r"costs \$12\.34 an hour, \$\d+\.\d\d in .*; max_cost_per_hour is \$20\.00\n")
        now = costs()
        self.assertEqual([(each["node"], each["price"]) for each in sorted(now["machines"], key=lambda each: each["node"])],
                         [("gpu-1", 12.24), ("node-0", 0.096)])
        self.assertEqual(self.grown(), ["gpu-1"])
        # Whatever becomes of the head, it goes on from there.
        for pid in self.machines[self.by_node()["node-0"].id].processes(text="dtrain-agent head"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back", pause=0.1)
        then = costs()
        self.assertEqual((then["per_hour"], then["max_per_hour"]), (now["per_hour"], 20))
        self.assertGreaterEqual(then["spent"], now["spent"])
        self.assertLess(then["spent"], now["spent"] + 2 * DEADLINE * 12.34 / 3600)
        self.assertEqual(self.job(second)["reason"], reason)
        for node in ("node-0", "gpu-1"):
            self.machines[self.by_node()[node].id].run("touch", "/tmp/over")
        self.over(first)
        self.over(second)
        eventually(lambda: self.grown() == [], "it is given back", deadline=2 * DEADLINE, pause=0.1)
        eventually(lambda: costs()["per_hour"] == 0.096, "it costs no more", pause=0.1)
        self.assertGreater(costs()["spent"], then["spent"])
        self.gone()

    def test_no_prices(self):
        self.cloud.prices = None
        self.write(max_cost_per_hour=20)
        self.assertIn("max_cost_per_hour is $20.00, and no price is known of type head", self.refused("up", "-y", self.yaml))
        self.assertEqual(self.cloud.count("RunInstances"), 0)
        self.write()
        self.up()
        self.assertIn("costs $0.00 an hour, $0.00 in ", self.ok("status"))
        self.assertIn("; no price is known of 1 machine\n", self.ok("status"))
        self.gone()

    def test_head_and_scaler_are_killed_at_any_time(self):
        self.write(two_types(0, max_workers=3, idle_timeout_s=1))
        self.up()
        head = self.machines[self.by_node()["node-0"].id]
        for _ in range(5):
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
