"""cpu_bind: ranks with CPUs of their own. In a network namespace of its own, so that nobody else takes any."""

import ctypes

from harness import *

CLONE_NEWNET = 0x40000000
TELLS = 'echo $DTRAIN_CPUS $(grep Cpus_allowed_list: /proc/self/status | cut -f2); exec sleep 1000'


def setUpModule():
    libc = ctypes.CDLL(None, use_errno=True)
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("needs two CPUs")
    if libc.unshare(CLONE_NEWNET) != 0:
        raise unittest.SkipTest("needs a network namespace of its own: " + os.strerror(ctypes.get_errno()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class CpuBind(ClusterCase):
    nodes = 2  # of one machine

    def bound(self, *flags):
        job = self.submit(TELLS, "--cpus", "1", "--cpu-bind", "cores", "--stop-grace-s", "1", *flags)
        self.wait_state(job, "running")
        return job

    def cpus(self, job, rank=0, attempt=1):
        """As the rank was told, and as the kernel has it."""
        told = eventually(lambda: self.rank_output(job, rank, attempt).read_text(), "the rank says where it runs").split()
        self.assertEqual(told[0], told[-1])
        self.assertRegex(told[0], r"^\d+$")
        return int(told[0])

    def warnings(self, job):
        return [e["message"] for e in self.ask("GET", f"/v1/jobs/{job}/events")["events"] if e["level"] == "warning"]

    def test_bound_ranks_of_all_nodes_have_different_cpus(self):
        here = sorted(os.sched_getaffinity(0))
        ranks = str(len(here) - 1)
        first = self.bound("--nproc-per-node", ranks)
        taken = {self.cpus(first, rank) for rank in range(len(here) - 1)}
        self.assertEqual(len(taken), len(here) - 1)
        for role in ("head", "node"):  # nor does it matter who dies
            self.kill_agents(role)
        eventually(lambda: all(n["state"] == "ready" for n in self.json("status")["nodes"]), "the nodes are back")
        second = self.bound()
        self.assertEqual(taken | {self.cpus(second)}, set(here))
        self.assertEqual(self.warnings(second), [])
        # The other node counts this machine's CPUs too.
        third = self.bound()
        said = eventually(lambda: self.rank_output(third, 0).read_text(), "the rank says where it runs").split()
        self.assertEqual(len(said), 1)
        self.assertRegex(eventually(lambda: self.warnings(third), "that is said")[0],
                         rf"^node-\d: ranks are not bound to CPUs: they need 1, and other bound ranks have {len(here)} of the {len(here)} ")
        for job in (third, second):
            self.ok("stop", job)
            self.wait_state(job, "stopped")
        again = self.bound()
        self.assertNotIn(self.cpus(again), taken)

    def test_a_killed_supervisor_gives_its_cpus_back(self):
        here = os.sched_getaffinity(0)
        job = self.bound("--nproc-per-node", str(len(here)), "--max-restarts", "1")
        self.assertEqual({self.cpus(job, rank) for rank in range(len(here))}, here)
        os.kill(self.agents("supervise")[0], signal.SIGKILL)
        eventually(lambda: [a["state"] for a in self.job(job)["attempts"]][1:] == ["running"], "the next attempt runs")
        again = eventually(lambda: self.rank_output(job, 0, attempt=2).read_text(), "its rank says where it runs")
        self.assertRegex(again, r"^\d+ \d+\n$")
        self.assertEqual({self.cpus(job, rank, 2) for rank in range(len(here))}, here)

    def test_without_it_nothing_is_bound(self):
        job = self.submit(TELLS, "--cpus", "1", "--stop-grace-s", "1")
        self.wait_state(job, "running")
        said = eventually(lambda: self.rank_output(job, 0).read_text(), "the rank says where it runs").strip()
        everywhere = next(line.split()[1] for line in Path("/proc/self/status").read_text().split("\n")
                          if line.startswith("Cpus_allowed_list:"))
        self.assertEqual(said, everywhere)

    def test_without_a_whole_number_of_cpus_it_is_refused(self):
        for flags in ([], ["--cpus", "0.5"]):
            done = self.run_dtrain("submit", "--cpu-bind", "cores", *flags, "--", "true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("cpu_bind: is cores, so that resources must say how many CPUs each rank has", done.stderr)


if __name__ == "__main__":
    main()
