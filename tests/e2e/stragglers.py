"""Trainings that a rank slows down: dtrain names it, says what it waits for, and shows what steps take."""

import sys

from harness import *

PROGRAM = BUILD / "tests" / "e2e" / "slow_rank"
SLOW = r"rank 2 on node-1 is slow: (\S+ m?s) a step of its own over the last \d+, the median is (\S+ m?s); "
# Speaks the rank contract: rank 0 says its step and nothing more, the others what they know.
ANY = """
import json, os, socket, sys, time
rank = int(os.environ["RANK"])
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    beat = {"type": "heartbeat", "step": step}
    if rank > 0:
        beat["step_times"] = {"steps": step, "seconds": step * 0.5}
    if rank > 1:
        beat["step_times"].update(data=step * 0.25, wait=step * 0.125, p90=0.75)
    s.sendall(json.dumps(beat).encode() + b"\\n")
    time.sleep(0.05)
"""


class Stragglers(ClusterCase):
    nodes = 2

    def train(self, phase, ranks, transport):
        """A job of four ranks on two nodes, of which `ranks` are slow until self.well is there."""
        self.well, self.end = self.folder / "well", self.folder / "end"
        job = self.json("submit", "-d", "--nnodes", "2", "--nproc-per-node", "2", "--env",
                        f"DTRAIN_TRANSPORT={transport}", "--", PROGRAM, phase, ranks, self.well, self.end)["job"]
        self.follower = self.start("logs", "-f", job, stderr=subprocess.PIPE)
        self.said = []
        return job

    def told(self, pattern):
        """Reads on until something of that pattern is said."""
        while not (self.said and re.search(pattern, self.said[-1])):
            line = self.follower.stderr.readline()
            self.assertTrue(line, "it has ended: " + "".join(self.said))
            self.said.append(line)

    def times(self, job):
        return {rank["rank"]: rank.get("step_times") for rank in self.job(job)["attempts"][0]["ranks"]}

    def ends(self, job):
        self.end.touch()
        self.wait_state(job, "succeeded", "failed")
        self.assertEqual(self.state(job), "succeeded")
        self.said += self.follower.stderr.readlines()

    def slow_in_its_data(self, transport):
        job = self.train("data", "2", transport)
        self.told(SLOW + "the difference is data ")
        times = self.times(job)
        self.assertEqual((times[2]["slow"], times[0]["slow"]), (True, False), times)
        self.assertGreater(times[2]["data"], 0.05)
        self.assertGreater(times[2]["p50"], 0.05)
        for rank in range(4):
            parts = sum(times[rank][part] or 0 for part in ("data", "compute", "communication", "wait"))
            self.assertAlmostEqual(parts, times[rank]["step"], delta=times[rank]["step"] * 0.01)
            self.assertEqual(times[rank]["communication"] is None, transport == "gloo")
        seen = self.ok("status", "-v")
        self.assertRegex(seen, rf"(?m)^{job}, a step of its ranks:\nRANKS +NODE +P50 +P90 +MAX +OWN +DATA +COMPUTE "
                         r"+COMM +WAIT\n0 +node-0 .*\n1 +node-0 .*\n2 +node-1 .* slow\n3 +node-1 ")
        return job

    def test_a_rank_that_is_slow_in_its_data_is_named_and_that_it_is_well_again(self):
        job = self.slow_in_its_data("shared_memory")
        self.well.touch()
        self.told("rank 2 on node-1 is slow no more: ")
        self.assertFalse(self.times(job)[2]["slow"])
        self.ends(job)
        self.assertEqual(sum(bool(re.search(SLOW, each)) for each in self.said), 1, self.said)

    def test_it_is_named_where_ranks_talk_by_gloo(self):
        self.ends(self.slow_in_its_data("gloo"))

    def test_a_node_whose_ranks_are_all_slow_is_one_event(self):
        job = self.train("compute", "2,3", "shared_memory")
        self.told(r"all 2 ranks of node-1 are slow: .*; the difference is compute ")
        self.ends(job)
        self.assertFalse([each for each in self.said if re.search("rank [23] .* is slow", each)], self.said)

    def test_any_program_may_say_what_its_steps_take(self):
        program, end = self.folder / "any.py", self.folder / "end"
        program.write_text(ANY)
        job = self.json("submit", "-d", "--nproc-per-node", "3", "--", sys.executable, program, end)["job"]
        self.wait_state(job, "running")
        times = eventually(lambda: all(found := list(self.times(job).values())) and len(found) == 3 and found, "times")
        self.assertGreater(times[0]["p50"], 0)
        self.assertEqual([times[0]["own"], times[0]["data"], times[1]["own"]], [None, None, None])
        known = {"step": 0.5, "own": 0.375, "data": 0.25, "compute": None, "wait": 0.125, "p50": 0.5, "p90": 0.75}
        self.assertEqual({key: times[2][key] for key in known}, known)
        self.assertEqual(times[1]["p90"], 0.5)
        end.touch()
        self.wait_state(job, "succeeded")


if __name__ == "__main__":
    main()
