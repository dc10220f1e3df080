"""Clusters on AWS whose machines are stopped: idle ones that wait for later jobs, a head that somebody has stopped, and
whole clusters that go down by themselves."""

from aws_harness import *
from aws import two_types


def head_only(**more):
    return {"head": {"node_config": {"InstanceType": "m5.large", "ImageId": "latest_ubuntu", **more}}}


class StoppedCase(AwsCase):
    agents_on = "all"

    def state_of(self, instance_id):
        return self.cloud.backend.get_instance(instance_id).state

    def await_state(self, instance_id, state, deadline=2 * DEADLINE):
        eventually(lambda: self.state_of(instance_id) == state, f"{instance_id} is {state}", deadline=deadline, pause=0.1)

    def stop_by_hand(self, *nodes):
        ids = [self.by_node()[node].id for node in nodes]
        self.cloud.stop(*ids)
        for each in ids:
            self.await_state(each, "stopped")
        return ids

    def machine_rows(self):
        return {row["node"]: row for row in self.json("status")["machines"]["machines"]}

    def over(self, job):
        self.wait_state(job, "succeeded", deadline=3 * DEADLINE)

    def gone(self):
        self.assertTrue(self.json("down", "-y")["complete"])
        self.assert_nothing_left()


class Idle(StoppedCase):
    """cache_stopped_nodes."""

    def grow(self, **more):
        self.write(two_types(0, **{"max_workers": 1, "idle_timeout_s": 1, **more}), provider={"cache_stopped_nodes": True})
        self.up()

    def gang(self, nodes=2, script="echo rank $RANK"):
        return self.submit(script, "--nnodes", str(nodes))

    def cached(self):
        """The id of a gpu that a job has needed, and that is stopped since."""
        self.over(self.gang())
        gpu = self.by_node()["gpu-1"].id
        self.await_state(gpu, "stopped")
        return gpu

    def test_a_stopped_one_is_started_for_the_next_job(self):
        self.grow()
        gpu = self.cached()
        spent = self.machines[gpu].user_data
        eventually(lambda: self.machine_rows()["gpu-1"]["state"] == "stopped", "status tells of it", pause=0.1)
        self.assertIn("stopped", self.ok("status"))
        for _ in range(2):
            self.over(self.gang())
            self.assertEqual(self.by_node()["gpu-1"].id, gpu)
            self.await_state(gpu, "stopped")
        self.assertNotEqual(self.machines[gpu].user_data, spent)
        self.assertEqual(len(self.asked_for("RunInstances")), 2)
        # What the head may do was enough.
        self.assertEqual({action for _, action in self.cloud.by_role} >= {"StopInstances", "StartInstances",
                                                                          "ModifyInstanceAttribute"}, True)
        self.gone()

    def test_no_room_for_a_stopped_one(self):
        self.grow(max_workers=4)
        gpu = self.cached()
        made = len(self.asked_for("RunInstances"))
        self.cloud.capacity[self.by_node()["gpu-1"]._placement.zone, "p3.2xlarge"] = 0
        job = self.gang()
        self.over(job)
        self.assertEqual(self.state_of(gpu), "stopped")
        self.assertGreater(len(self.asked_for("RunInstances")), made)
        self.gone()

    def test_one_that_somebody_stops_while_a_job_runs(self):
        self.grow()
        job = self.submit("[ $TORCHELASTIC_RESTART_COUNT -gt 0 ] || sleep 1000; echo over", "--nnodes", "2", "--max-restarts", "1")
        self.wait_state(job, "running", deadline=3 * DEADLINE)
        (gpu,) = self.stop_by_hand("gpu-1")
        self.over(job)
        self.assertEqual(self.by_node()["gpu-1"].id, gpu)
        self.gone()

    def test_a_yaml_that_keeps_none(self):
        self.grow()
        gpu = self.cached()
        self.write(two_types(0, max_workers=1, idle_timeout_s=1))
        self.up()
        self.await_state(gpu, "terminated")
        self.gone()

    def test_head_and_scaler_are_killed_meanwhile(self):
        self.grow(max_workers=2)
        head = self.machines[self.by_node()["node-0"].id]
        for number in range(3):
            job = self.gang(3)
            for name in ("dtrain-scaler", "dtrain-agent head"):
                time.sleep(0.3 * number)
                for pid in head.processes(text=name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back", pause=0.1)
            self.over(job)
            self.assertLessEqual(len(self.by_node()), 3)
        self.gone()


class ByHand(StoppedCase):
    """Machines that an `up` has made, and somebody stops."""

    def test_a_head_that_is_stopped_comes_back_with_all_it_knew(self):
        self.write(two_types(1))
        self.up()
        cluster = self.json("status")["cluster"]["id"]
        job = self.submit("echo kept")
        self.over(job)
        ids = self.stop_by_hand("node-0", "node-1")
        said = self.refused("status", code=4)
        self.assertIn(f"the machine of its head, {ids[0]}, is stopped", said)
        self.assertIn("dtrain up", said)
        plan = {row["node"]: row for row in self.json("up", "--dry-run", self.yaml)["plan"]}
        self.assertEqual({node: (row["action"], row["state"], row["machine"]) for node, row in plan.items()},
                         {"node-0": ("start", "stopped", ids[0]), "node-1": ("start", "stopped", ids[1])})
        self.up(deadline=3 * DEADLINE)
        self.assertEqual([self.by_node()[node].id for node in ("node-0", "node-1")], ids)
        self.assertEqual(self.json("status")["cluster"]["id"], cluster)
        self.assert_ready("node-0", "node-1")
        self.assertEqual(self.job(job)["state"], "succeeded")
        self.assertIn("kept", self.ok("logs", job))
        self.over(self.submit("echo $RANK", "--nnodes", "2"))
        self.gone()

    def test_a_worker_that_is_stopped(self):
        self.write(two_types(1))
        self.up()
        (worker,) = self.stop_by_hand("node-1")
        self.up(deadline=3 * DEADLINE)
        self.assertEqual(self.by_node()["node-1"].id, worker)
        self.assert_ready("node-0", "node-1")
        self.assertEqual(len(self.asked_for("RunInstances")), 2)
        self.gone()

    def test_down_of_stopped_ones(self):
        self.write(two_types(1))
        self.up()
        self.stop_by_hand("node-0", "node-1")
        self.gone()

    def test_no_room_to_start_the_head_again(self):
        self.write(head_only())
        self.up()
        self.stop_by_hand("node-0")
        zone = self.by_node()["node-0"]._placement.zone
        self.cloud.capacity[zone, "m5.large"] = 0
        self.assertIn(f"there is no room for it in {zone}", self.refused("up", "-y", self.yaml))
        self.assertEqual(len(self.cloud.instances()), 1)
        del self.cloud.capacity[zone, "m5.large"]
        self.up(deadline=3 * DEADLINE)
        self.gone()


class ByItself(StoppedCase):
    """down_when_idle."""

    def goes_down(self, **how):
        self.write(two_types(1), down_when_idle={"minutes": 0.2, **how})
        self.up()
        return self.by_node()["node-0"].id, self.by_node()["node-1"].id

    def test_it_goes_down_and_comes_back(self):
        head, worker = self.goes_down()
        self.assertIn("goes down at", self.ok("status"))
        job = self.submit("sleep 15; echo kept", "--nnodes", "2")  # longer than it waits
        self.assertIn("once nothing has run", self.ok("status"))
        self.wait_state(job, "succeeded", deadline=3 * DEADLINE)
        self.await_state(head, "stopped")
        self.assertEqual(self.state_of(worker), "terminated")
        said = self.refused("status", code=4)
        self.assertIn(f"the machine of its head, {head}, is stopped", said)
        self.assertIn("down_when_idle", said)
        self.assertIn("dtrain up", said)
        self.up(deadline=3 * DEADLINE)
        self.assertEqual(self.by_node()["node-0"].id, head)
        self.assertIn("kept", self.ok("logs", job))
        self.gone()

    def test_what_comes_meanwhile_is_refused(self):
        head, worker = self.goes_down()
        self.cloud.fault("TerminateInstances", "InternalError", times=10000)
        eventually(lambda: "goes down now" in self.ok("status"), "it goes down", pause=0.1)
        said = self.refused("submit", "--", "/bin/true")
        self.assertIn("the cluster is going down: nothing has run for", said)
        self.cloud._faults.clear()
        self.await_state(head, "stopped")
        self.assertEqual(self.state_of(worker), "terminated")
        self.write(two_types(1))
        self.up(deadline=3 * DEADLINE)
        self.over(self.submit("true"))
        self.gone()

    def test_its_head_goes_too(self):
        head, worker = self.goes_down(head="terminate")
        self.await_state(head, "terminated")
        self.assertEqual(self.cloud.instances(), [])
        self.assertIn("is gone", self.refused("status", code=4))
        # What costs nothing is for the next `down`.
        self.gone()

    def test_a_session_keeps_it(self):
        head, _ = self.goes_down()
        session = self.start("exec", "--", "sleep", "18")
        self.assertEqual(session.wait(DEADLINE), 0)
        self.assertEqual(self.state_of(head), "running")
        self.await_state(head, "stopped")
        self.gone()

    def test_who_may_not(self):
        self.write(head_only(InstanceMarketOptions={"MarketType": "spot"}), down_when_idle={"minutes": 5})
        said = self.refused("up", "-y", self.yaml, code=2)
        self.assertIn("the head is a spot machine, which cannot be stopped", said)
        self.write(head_only(InstanceMarketOptions={"MarketType": "spot"}), down_when_idle={"minutes": 5, "head": "terminate"})
        self.ok("up", "--dry-run", self.yaml)


if __name__ == "__main__":
    main()
