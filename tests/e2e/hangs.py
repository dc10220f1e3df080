"""Jobs whose ranks get no further: dtrain says which one lags, and does what the job asks for."""

import sys

from harness import *

# Speaks the rank contract. In the first attempt rank 2 never enters the sixth collective, in which
# the others wait, until a file is there.
PROGRAM = """
import json, os, socket, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["DTRAIN_ATTEMPT"])
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["DTRAIN_REPORT_SOCKET"])
def beat(step, phase, sequence, done):
    call = {"sequence": sequence, "name": "all_reduce", "bytes": 4096, "entered": time.time(), "done": done}
    s.sendall(json.dumps({"type": "heartbeat", "step": step, "phase": phase, "collective": call}).encode() + b"\\n")
for step in range(1, 6):
    beat(step, "compute", step, True)
while attempt == 1 and not os.path.exists(sys.argv[1]):
    if rank == 2:
        beat(5, "data", 5, True)
    else:
        beat(5, "compute", 6, False)
    time.sleep(0.1)
beat(6, "compute", 6, True)
"""
LAGS = ("rank 2 on node-1 (step 5, data) has not entered all_reduce #6; the other 3 wait in it")


class Hangs(ClusterCase):
    nodes = 2

    def arguments(self, *flags):
        program = self.folder / "hangs.py"
        program.write_text(PROGRAM)
        self.go = self.folder / "go"
        return ("--nnodes", "2", "--nproc-per-node", "2", "--hang-timeout-s", "10", *flags, "--",
                sys.executable, program, self.go)

    def test_which_rank_lags_is_said_and_that_it_goes_on(self):
        follower = self.start("submit", *self.arguments(), stderr=subprocess.PIPE)
        said = []
        while not (said and LAGS in said[-1]):
            line = follower.stderr.readline()
            self.assertTrue(line, "it has ended: " + "".join(said))
            said.append(line)
        self.assertRegex(said[-1], r"hang: no progress for \d")
        job = self.json("status")["jobs"][0]
        self.assertEqual(job["state"], "running")
        self.assertIn(LAGS, job["reason"])
        self.assertIn(LAGS, self.ok("status"))
        ranks = self.job(job["job"])["attempts"][0]["ranks"]
        self.assertEqual([rank["heartbeat"]["collective"]["sequence"] for rank in ranks], [6, 6, 5, 6])
        seen = self.ok("status", "-v")
        self.assertIn(f"{job['job']} rank 2: step 5, data, after all_reduce #5 (4.0 KiB)\n", seen)
        self.assertIn(f"{job['job']} ranks 0-1, 3: step 5, compute, in all_reduce #6 (4.0 KiB)\n", seen)
        self.go.touch()
        rest = follower.stderr.read()
        self.assertEqual(follower.wait(DEADLINE), 0, rest)
        self.assertIn("it goes on, after", rest)
        self.assertEqual(self.state(job["job"]), "succeeded")

    def test_it_is_started_anew_for_that(self):
        done = self.run_dtrain("submit", *self.arguments("--on-hang", "restart", "--max-restarts", "3"))
        self.assertEqual(done.returncode, 0, done.stderr)
        attempts = self.json("result")["attempts"]
        self.assertEqual(attempts[-1]["state"], "succeeded")
        # Where ranks take long to start they may have been silent for too long before.
        self.assertTrue(all(each["reason"].startswith("hang: no ") for each in attempts[:-1]), attempts)
        self.assertIn(LAGS, attempts[0]["reason"])
        # What each of its ranks did then, or why that could not be seen.
        kept = json.loads(self.run_dtrain("stack", "--json", "--attempt", "1").stdout)
        self.assertEqual((kept["attempt"], kept["reason"]), (1, attempts[0]["reason"]))
        self.assertEqual([(each["rank"], each["node"]) for each in kept["processes"]],
                         [(0, "node-0"), (1, "node-0"), (2, "node-1"), (3, "node-1")])
        for each in kept["processes"]:
            self.assertTrue(each.get("threads") or each.get("error"), each)
        self.assertEqual(len(json.loads(self.run_dtrain("stack", "--json", "--rank", "2").stdout)["processes"]), 1)
        self.assertIn("has no rank 7", self.run_dtrain("stack", "--kept", "--rank", "7").stderr)
        self.assertTrue(self.run_dtrain("stack", "--kept").stdout.startswith(f"at {kept['at']}, attempt "))

    def test_a_program_that_says_nothing_has_no_limit_but_one_of_its_own(self):
        quiet = self.submit("exec sleep 1000")
        asked = self.submit("exec sleep 1000", "--hang-timeout-s", "1")
        eventually(lambda: self.job(asked)["reason"].startswith("hang: no rank has reported anything since "), "a hang")
        self.assertEqual(self.job(quiet)["reason"], "")
        self.assertEqual((self.state(asked), self.state(quiet)), ("running", "running"))
        none = self.run_dtrain("stack", "--kept", quiet)
        self.assertEqual(none.returncode, 2, none)
        self.assertIn("no stacks are kept of it", none.stderr)


if __name__ == "__main__":
    main()
