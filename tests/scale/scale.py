"""Many nodes at one real head: nothing is lost or doubled when all of them are cut off at once, when the head is
killed, when machines lose their power. That it is quick, scripts/bench_scale shows."""

import collections
import json
import re
import subprocess
import sys
import threading
import time
import unittest

from simulation import Simulation

NODES, RANKS = 60, 8
DEADLINE = 300


def eventually(condition, what):
    until = time.monotonic() + DEADLINE
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {DEADLINE} s: {what}")
        time.sleep(0.05)
    return value


class Scale(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Simulation(NODES, RANKS)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.cluster.ask("wait")

    def follow(self, job):
        """A follower, and what it has of each line of the ranks' output."""
        follower = self.cluster.start("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        seen = collections.Counter()

        def read():
            for line in follower.stdout:
                seen[line] += 1

        reader = threading.Thread(target=read)
        reader.start()
        self.addCleanup(follower.stderr.close)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(reader.join)
        self.addCleanup(follower.kill)
        return follower, seen, reader

    def lines(self, nodes, count):
        return {f"[{rank}] rank {rank} line {i}\n" for rank in range(nodes * RANKS) for i in range(count)}

    def test_1_all_are_there_and_each_rank_runs_once(self):
        status = self.cluster.status()
        names = {node["node"] for node in status["nodes"] if node["state"] == "ready"}
        self.assertEqual(names, {"node-0", *(f"sim-{i}" for i in range(NODES))})
        job = self.cluster.submit(NODES, 3, 1, 2)
        self.assertEqual(self.cluster.wait_for(job, "succeeded", "failed", limit=DEADLINE)[0], "succeeded")
        result = self.cluster.job(job)
        ranks = [rank for node in result["attempts"][0]["nodes"] for rank in node["ranks"]]
        self.assertEqual(sorted(ranks), list(range(NODES * RANKS)))
        self.assertEqual(result["step"], 3)
        # People are told of fifty nodes and three names of a row, and how many more there are.
        told = self.cluster.output("status")
        self.assertIn("and 11 more nodes: dtrain status --all\n", told)
        self.assertRegex(told, rf"{job}\s+succeeded\s+{NODES * RANKS}\s+\S+,\S+,\S+ and {NODES - 3} more")
        self.assertEqual(len(re.findall(r"^sim-\d+ ", self.cluster.output("status", "--all"), re.MULTILINE)), NODES)

    def test_2_cut_off_all_at_once_and_a_killed_head(self):
        count = 20
        job = self.cluster.submit(NODES, count, 1, 2)
        follower, seen, reader = self.follow(job)
        eventually(lambda: len(seen) > NODES * RANKS, "lines")
        self.cluster.ask("cut")
        self.cluster.ask("wait")
        eventually(lambda: len(seen) > 5 * NODES * RANKS, "more lines")
        pid = self.cluster.pid
        self.cluster.kill_head()
        self.cluster.await_head(pid)
        self.cluster.ask("wait")
        self.assertEqual(follower.wait(DEADLINE), 0, follower.stderr.read())
        reader.join()
        self.assertEqual({line for line, times in seen.items() if times != 1}, set())
        self.assertEqual(set(seen), self.lines(NODES, 2 * count))
        result = self.cluster.job(job)
        self.assertEqual((result["state"], len(result["attempts"]), result["step"]), ("succeeded", 1, count))

    def test_3_a_queue_goes_on_as_places_become_free(self):
        wide = self.cluster.submit(NODES, 10000, 0)
        self.assertEqual(self.cluster.wait_for(wide, "running", limit=DEADLINE)[0], "running")
        answer = json.loads(self.cluster.output("doctor", "--json"))
        self.assertTrue(answer["complete"])
        self.assertEqual([f for n in answer["nodes"] for f in n["findings"] if f["kind"] in ("state", "clock")], [])
        agree = "state: head and node agree on what runs here, attempts: 1"
        self.assertEqual(sum(agree in n["looked"] for n in answer["nodes"] if n["node"].startswith("sim-")), NODES)
        small = [self.cluster.submit(1, 1, 0) for _ in range(2 * NODES)]
        told = self.cluster.output("status")
        self.assertIn(wide, told)  # what runs comes first
        self.assertRegex(told, rf"and {2 * NODES + 1 - 20} queued\b.*: dtrain status --all\n")
        self.cluster.run("stop", wide)
        eventually(lambda: collections.Counter(each["state"] for each in self.cluster.status()["jobs"]
                                               if each["job"] in small) == {"succeeded": 2 * NODES}, "the end of all")

    def test_4_machines_without_power(self):
        """The last: they do not come back."""
        job = self.cluster.submit(NODES - 12, 10000, 1, 0, "--max-restarts", 0)
        self.assertEqual(self.cluster.wait_for(job, "running", limit=DEADLINE)[0], "running")
        dead = {name for answer in self.cluster.ask("kill 3") for name in answer["killed"]}
        eventually(lambda: next(each for each in self.cluster.status()["jobs"] if each["job"] == job)["attempt"] == 2,
                   "the next attempt")
        self.assertEqual(self.cluster.wait_for(job, "running", limit=DEADLINE)[0], "running")
        first, second = self.cluster.job(job)["attempts"]
        self.assertEqual((first["failure"], first["counted"]), ("node_lost", False))
        self.assertRegex(first["reason"], r"^sim-\d+ was lost: not heard of for ")
        self.assertLessEqual(dead, {node["node"] for node in first["nodes"]})
        self.assertFalse(dead & {node["node"] for node in second["nodes"]})
        states = {node["node"]: node["state"] for node in self.cluster.status()["nodes"]}
        self.assertEqual({states[name] for name in dead}, {"lost"})
        self.cluster.run("stop", job)
        self.assertEqual(self.cluster.wait_for(job, "stopped", limit=DEADLINE)[0], "stopped")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
