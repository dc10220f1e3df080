"""Ranks in control groups. What this machine does not give away is skipped, and counted."""

from harness import *


def groups_mount():
    """Where all groups of version 2 are, or None."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        root, point = line.split()[3:5]
        if " - cgroup2 " in line and root == "/":
            return Path(point)
    return None


class Groups(ClusterCase):
    # Takes 8 MiB more again and again, as long as it gets them.
    HUNGRY = 'python3 -c "a = []\nwhile True: a.append(b\'x\' * (8 << 20))"'

    def setUp(self):
        super().setUp()
        self.mount = groups_mount()
        # As root they can be had with systemd and without.
        if self.mount is None or not os.access(self.mount, os.W_OK):
            self.skipTest("no cgroup v2 can be made here")

    def has_memory(self):
        return "memory" in (self.mount / "cgroup.controllers").read_text().split()

    def groups(self, job):
        return [group for group in below(self.mount, f"dtrain-*-{job}.*") if group.suffix != ".scope"]

    def warnings(self, done):
        """Lines about it that who follows the job sees."""
        lines = (done.stdout + done.stderr).splitlines()
        return [line for line in lines if "memory is not enforced" in line]

    def test_ranks_are_in_groups_of_their_own_that_go_with_them(self):
        job = self.submit("cat /proc/self/cgroup; while :; do sleep 1000; done", "--nproc-per-node", "2")
        self.wait_state(job, "running")
        for rank in range(2):
            text = eventually(lambda: self.rank_output(job, rank).read_text(), "the rank has said it")
            self.assertIn(f"-{job}.1/rank-{rank}\n", text)
        self.assertEqual(len(self.groups(job)), 1)
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.assertEqual(self.groups(job), [])

    def test_a_killed_supervisors_hidden_processes_are_found_by_their_group(self):
        mark = f"dtrain-hidden-{os.getpid()}"
        job = self.submit(f"env -i setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' {mark} & "
                          "while :; do sleep 1000; done")
        self.wait_state(job, "running")
        eventually(lambda: len(processes_with(mark)) >= 2, "the hidden process is there")
        for pid in self.agents("supervise"):
            os.kill(pid, signal.SIGKILL)
        self.wait_state(job, "failed")
        eventually(lambda: not processes_with(mark), "it is gone")
        eventually(lambda: not self.groups(job), "so is its group")

    def test_down_finds_them_when_everything_else_was_killed(self):
        mark = f"dtrain-hidden-down-{os.getpid()}"
        job = self.submit(f"env -i setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' {mark} & "
                          "while :; do sleep 1000; done")
        self.wait_state(job, "running")
        eventually(lambda: len(processes_with(mark)) >= 2, "the hidden process is there")
        for role in ("watch", "head", "node", "supervise"):
            for pid in self.agents(role):
                os.kill(pid, signal.SIGKILL)
        self.ok("down", "-y", "-c", self.name())
        self.assertEqual(processes_with(mark), [])
        self.assertEqual(self.groups(job), [])

    def test_memory_that_cannot_be_limited_is_said(self):
        if self.has_memory():
            self.skipTest("this machine can limit memory")
        done = self.run_dtrain("submit", "--memory", "64MiB", "--cpus", "0.1", "--nproc-per-node", "2",
                               "--", "/bin/true")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = self.warnings(done)
        self.assertEqual(len(said), 1, done.stdout + done.stderr)
        self.assertIn("node-0", said[0])
        self.assertEqual(self.warnings(self.run_dtrain("submit", "--", "/bin/true")), [])

    def test_a_rank_that_takes_more_than_its_memory_is_killed_for_it(self):
        if not self.has_memory():
            self.skipTest("this machine's memory controller is not one of cgroup v2")
        done = self.run_dtrain("submit", "--memory", "64MiB", "--cpus", "0.1", "--nproc-per-node", "2",
                               "--", "/bin/sh", "-c", f"[ $RANK = 0 ] && sleep 1000; {self.HUNGRY}")
        self.assertEqual(done.returncode, 1)
        self.assertIn("killed for memory: it used 64.0 MiB of 64.0 MiB", done.stdout + done.stderr)
        result = self.json("result")
        self.assertEqual(result["exit_code"], 137)
        self.assertEqual(result["error"]["rank"], 1)
        self.assertEqual(result["error"]["cause"], "killed for memory: it used 64.0 MiB of 64.0 MiB")
        self.assertIn("killed for memory", self.ok("result"))
        self.assertEqual(self.warnings(done), [])
        self.assertEqual(self.groups(result["job"]), [])


if __name__ == "__main__":
    main()
