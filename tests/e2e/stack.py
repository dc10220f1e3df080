"""What ranks do now: dtrain stack, on this machine and on hosts."""

from ssh_harness import *
from harness import ClusterCase

TARGET = BUILD / "tests" / "agent" / "profiler" / "profiler_target"
# Rank 2 does something else than the others, which have it as a child.
SCRIPT = f'if [ $RANK = 2 ]; then exec sleep 1000; fi; sleep 1000 | RESTS=1 {TARGET}'


def main_thread(process):
    return [frame.get("function", "?") for frame in process["threads"][0]["frames"]]


def merged(test, *flags):
    """Once all ranks are there; skips where the system forbids it."""
    def answer():
        done = test.run_dtrain("stack", "--json", *flags)
        said = json.loads(done.stdout)
        for process in said.get("processes", []):
            if process.get("error", {}).get("code") == "denied":
                test.assertIn("hint", process["error"])
                test.skipTest(process["error"]["message"])
        return said if done.returncode == 0 and said["processes"] else None
    found = {}
    eventually(lambda: found.update(answer() or {}) or found, "all can be looked at", pause=0.1)
    return found


class Local(ClusterCase):
    nodes = 2

    def test_ranks_of_two_nodes(self):
        job = self.submit("exec sleep 1000", "--nnodes", "2", "--nproc-per-node", "2")
        self.wait_state(job, "running")
        found = merged(self, job)
        self.assertEqual([(each["rank"], each["node"], each["attempt"]) for each in found["processes"]],
                         [(0, "node-0", 1), (1, "node-0", 1), (2, "node-1", 1), (3, "node-1", 1)])
        self.assertEqual(len(merged(self, job, "--rank", "3")["processes"]), 1)
        said = self.ok("stack", job)
        self.assertIn("ranks 0-3:\n", said)
        self.assertIn("libc.so.6", said)
        # They went on.
        self.assertEqual(self.job(job)["state"], "running")
        self.assertIn("no rank 7", self.run_dtrain("stack", job, "--rank", "7").stderr)
        self.ok("stop", job)
        ended = self.run_dtrain("stack", job).stderr
        self.assertIn("is stopped: it has no ranks to look at", ended)
        self.assertIn("none are kept of it either", ended)

    def test_again_until_it_is_interrupted(self):
        job = self.submit("exec sleep 1000")
        self.wait_state(job, "running")
        merged(self, job)
        watch = self.start("stack", job, "--watch", "1")
        for _ in range(2):
            while "rank 0:" not in (line := watch.stdout.readline()):
                self.assertTrue(line, "it has ended")
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(DEADLINE), 130)

    def test_it_stays_with_its_job_and_ends_with_it(self):
        job = self.submit("exec sleep 1000")
        self.wait_state(job, "running")
        merged(self, job)
        watch = self.start("stack", "--watch", "1")
        while "rank 0:" not in (line := watch.stdout.readline()):
            self.assertTrue(line, "it has ended")
        later = self.submit("exec sleep 1000", "--nnodes", "7", "--wait")  # the newest one now, and waits
        for _ in range(2):
            while "rank 0:" not in (line := watch.stdout.readline()):
                self.assertTrue(line, "it has ended")
        self.ok("stop", job)
        self.assertIn(watch.wait(DEADLINE), (0, 1))  # by what the last look met
        self.ok("stop", later)


class Hosts(HostsCase):
    """As another user than root, with the profiler and its library brought there."""

    count = 2
    options = {"share": [TARGET.parent]}
    agents_on = "all"

    def test_one_that_does_something_else(self):
        self.up()
        job = self.submit(SCRIPT, "--nnodes", "2", "--nproc-per-node", "2")
        self.wait_state(job, "running")
        # All of them, those that ranks have started too: a shell, sleep and the program of three.
        found = merged(self, job)
        eventually(lambda: found.update(merged(self, job)) or len(found["processes"]) == 10, "they have started theirs", pause=0.1)
        started = [each for each in found["processes"] if each["program"] == TARGET.name]
        self.assertEqual([each["rank"] for each in started], [0, 1, 3])
        for each in started:
            self.assertTrue(any("reads_stdin" in name for name in main_thread(each)), each)
            self.assertEqual(len(each["threads"]), 3)
            self.assertLess(each["stopped_us"], 10_000_000)
        said = self.ok("stack", job, "--threads")
        self.assertRegex(said, r"ranks 0-1, 3:\n")
        self.assertIn("reads_stdin (profiler_target, target.cpp:", said)
        self.assertIn("computes (profiler_target", said)
        self.ok("stop", job)
        self.looks_when_it_hangs()
        self.ok("down", "-y")
        for host in self.lab:
            self.assertEqual([str(path) for path in host.root.rglob("dtrain-profiler")], [])

    def looks_when_it_hangs(self):
        """By the profiler that came with the job, kept on the nodes and copied to the head."""
        job = self.submit(SCRIPT, "--nnodes", "2", "--nproc-per-node", "2", "--hang-timeout-s", "5")

        def kept():
            done = self.run_dtrain("stack", "--json", "--kept", job)
            return json.loads(done.stdout) if done.returncode == 0 else None
        found = {}
        eventually(lambda: found.update(kept() or {}) or found, "those of all ranks are kept")
        self.assertIn("hang: no rank has reported anything since", found["reason"])
        started = [each for each in found["processes"] if each.get("program") == TARGET.name]
        self.assertEqual([each["rank"] for each in started], [0, 1, 3], found)
        for each in started:
            self.assertTrue(any("reads_stdin" in name for name in main_thread(each)), each)
        self.ok("stop", job)
        self.ok("pull", job, "--logs", "-o", self.folder / "pulled")
        self.assertEqual(len(list((self.folder / "pulled").rglob("stacks.jsonl"))), 2)


if __name__ == "__main__":
    main()
