"""Whose turn it is: jobs that overtake, jobs that never fit, nodes that are drained, jobs by name."""

from harness import *


class Turns(ClusterCase):
    nodes = 2

    def node_state(self, name):
        return next(n["state"] for n in self.json("status")["nodes"] if n["node"] == name)

    def reason(self, job):
        return next(j["reason"] for j in self.json("status")["jobs"] if j["job"] == job)

    def cpus(self):
        return int(self.json("status")["nodes"][0]["cpus"])

    def test_a_short_job_overtakes_a_wide_one_that_waits(self):
        all_cpus = ["--nproc-per-node", self.cpus(), "--cpus", "1"]
        holder = self.submit("sleep 1000", *all_cpus, "--timeout-s", "600", "--stop-grace-s", "1")
        self.wait_state(holder, "running")
        wide = self.submit("true", "--nnodes", "2", *all_cpus)
        long = self.submit("sleep 1000", *all_cpus)
        short = self.submit("sleep 1000", *all_cpus, "--timeout-s", "300", "--stop-grace-s", "1")
        self.wait_state(short, "running")
        self.assertRegex(self.reason(short), rf"^starts before {wide}, which needs .*: it ends by then$")
        self.assertEqual(self.reason(long), f"waits behind {wide} (priority 0)")
        self.assertIn(short, self.ok("status"))
        self.ok("stop", holder)
        self.ok("stop", short)
        self.wait_state(wide, "succeeded")

    def test_a_job_that_can_never_run_is_refused_unless_it_is_to_wait(self):
        for flags in (["--nnodes", "3"], ["--cpus", self.cpus() + 1], ["--gpus", "64"]):
            done = self.run_dtrain("submit", *flags, "--", "true")
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("can never run on this cluster", done.stderr)
            self.assertIn("--wait", done.stderr)
        self.assertEqual(self.json("status")["jobs"], [])
        job = self.submit("true", "--nnodes", "3", "--wait")
        self.assertEqual(self.state(job), "queued")
        self.assertIn("the cluster has 2 nodes", self.reason(job))
        # A node that is away for now, or drained, is one of the cluster's.
        self.ok("drain", "node-1")
        self.assertIn("queued", self.state(self.submit("true", "--nnodes", "2")))

    def test_drain_waits_for_what_runs_there(self):
        job = self.submit("sleep 1000", "--nnodes", "2")
        self.wait_state(job, "running")
        drain = self.start("drain", "node-1")
        self.assertIn(f"node-1 gets no new ranks; still there: {job}", drain.stdout.readline())
        drain.send_signal(signal.SIGINT)
        self.assertEqual(drain.wait(DEADLINE), 130)
        self.assertIn("--undo", drain.stdout.read())
        self.assertEqual(self.node_state("node-1"), "draining")
        self.assertEqual(self.json("drain", "-d", "node-1"),
                         {"node": "node-1", "state": "draining", "jobs": [job]})
        drain = self.start("drain", "node-1")
        self.assertIn(job, drain.stdout.readline())
        self.ok("stop", job)
        self.assertEqual(drain.wait(DEADLINE), 0)
        self.assertEqual(drain.stdout.read(), "node-1 drained\n")
        waiting = self.submit("true", "--nnodes", "2")
        self.assertEqual(self.state(waiting), "queued")
        self.assertEqual(self.ok("drain", "node-1", "--undo"), "node-1 ready\n")
        self.wait_state(waiting, "succeeded")
        done = self.run_dtrain("drain", "node-7")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no node node-7", done.stderr)

    def test_a_drain_that_was_answered_is_not_forgotten(self):
        for undo, state in (((), "drained"), (("--undo",), "ready")):
            self.ok("drain", "-d", "node-1", *undo)
            self.kill_agents("head")
            eventually(lambda: self.run_dtrain("status").returncode == 0, "the head answers")
            eventually(lambda: self.node_state("node-1") == state, f"node-1 is {state}")

    def test_ctrl_c_ends_a_drain_that_the_head_does_not_answer(self):
        silent, asked = self.silent_head("/drain")
        drain = self.start("drain", "node-1", env=silent)
        self.assertTrue(asked.wait(DEADLINE))
        self.assertIn("whether node-1 drains is said by dtrain status", self.leaves_at_once(drain))

    def test_a_name_means_the_newest_job_of_it(self):
        old = self.submit("sleep 1000", "--name", "mnist")
        new = self.submit("sleep 1000", "--name", "mnist")
        other = self.submit("sleep 1000", "--name", "mnist-large")
        self.wait_state(new, "running")
        self.assertEqual(self.job("mnist")["job"], new)
        self.assertEqual(self.job("mnist-large")["job"], other)
        done = self.run_dtrain("stop", "mnist")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"mnist means {new}, the newest of that name; older: {old}", done.stderr)
        self.assertIn(f"{new} stopped", done.stdout)
        self.assertNotEqual(self.state(old), "stopped")
        done = self.run_dtrain("rm", "-y", "mnist", "mnist")
        self.assertEqual(done.stdout, f"removed {new}\n")
        done = self.run_dtrain("result", "mn")
        self.assertEqual(done.returncode, 2)
        self.assertIn(old, done.stderr)
        self.assertIn(other, done.stderr)


if __name__ == "__main__":
    main()
