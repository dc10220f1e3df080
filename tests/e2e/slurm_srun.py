"""Jobs with `launcher: srun`, with a real Slurm of three nodes and its PMIx."""

import shlex
import sys

from harness import *
from slurm_harness import *


def setUpModule():
    start_slurm(nodes=3, gpus=2)
    if "pmix" not in sh("srun", "--mpi=list"):
        raise unittest.SkipTest("this Slurm has no PMIx")


COUNTS = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done"
WAITS = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"


class SrunCase(SlurmCase):
    def options(self, nproc=2):
        return ("--launcher", "srun", "--nnodes", "2", "--nproc-per-node", str(nproc))

    def said(self, job, rank, attempt=1):
        return self.ok("logs", job, "--attempt", str(attempt), "--rank", str(rank))

    def peers(self):
        """The program, among the jobs' files."""
        flags = shlex.split(sh("pkg-config", "--cflags", "--libs", "pmix"))
        sh("cc", "-o", self.work / "peers", SOURCE / "tests" / "support" / "pmix_peers.c", *flags)

    def steps(self):
        return sh("squeue", "-h", "--me", "-s", "-o", "%j").split()

    def tasks(self):
        return self.agents("task")

    def nothing_is_left(self, job):
        eventually(lambda: not self.tasks() and job not in self.steps(), "the step has ended")
        token = f"DTRAIN_JOB_ID={job}"
        eventually(lambda: not processes_with_environment(token), "no process of it is left")


class Pool(SrunCase):
    """Two nodes stand ready."""

    def setUp(self):
        super().setUp()
        self.write(2)
        self.up()

    def test_each_rank_is_a_task_of_one_step(self):
        job = self.submit("echo $RANK $PMIX_RANK $SLURM_PROCID $PMIX_NAMESPACE $SLURM_NTASKS $CUDA_VISIBLE_DEVICES "
                          f"$SLURMD_NODENAME; {COUNTS}", *self.options(), "--gpus", "1")
        self.wait_state(job, "succeeded")
        told = []
        for rank in range(4):
            first, *lines = self.said(job, rank).rstrip("\n").split("\n")
            told.append(first.split())
            self.assertEqual(lines, [f"line {i}" for i in range(1, 5001)])
        self.assertEqual([row[:3] for row in told], [[str(rank)] * 3 for rank in range(4)])
        self.assertEqual({tuple(row[3:6]) for row in told}, {(told[0][3], "4", "0,1")})
        # Both of a node where its agent is.
        self.assertEqual([told[0][6], told[2][6]], [told[1][6], told[3][6]])
        self.assertNotEqual(told[0][6], told[2][6])
        self.nothing_is_left(job)

    def test_programs_find_their_peers(self):
        self.peers()
        said = self.ok("submit", *self.options(), "--", "./peers")
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4: {100 + (rank + 1) % 4}\n", said)
        # Slurm ends the step of one that goes without a word; the ranks have their grace all the same.
        job = self.json("submit", "-d", *self.options(), "--", "./peers", "fail", "2")["job"]
        self.wait_state(job, "failed")
        error = self.json("result", job)["error"]
        self.assertEqual((error["rank"], error["exit_code"]), (2, 7), error)
        for rank in (0, 1, 3):
            self.assertIn(f"rank {rank} was told\n", self.said(job, rank))
        self.nothing_is_left(job)

    def test_a_rank_fails(self):
        job = self.submit(f"[ $RANK = 3 ] && exit 7; {WAITS}", *self.options(), "--max-restarts", "1")
        self.wait_state(job, "failed")
        result = self.json("result", job)
        self.assertEqual((result["error"]["rank"], result["error"]["exit_code"]), (3, 7), result["error"])
        # Each attempt has a step of its own.
        self.assertEqual(len(result["attempts"]), 2)
        self.nothing_is_left(job)

    def test_stop(self):
        job = self.submit(WAITS, *self.options())
        eventually(lambda: self.ok("logs", job).count("up") == 4, "all ranks are up")
        self.assertEqual(len(self.tasks()), 4)
        eventually(lambda: not processes_with(f"--job-name={job}"), "srun, not needed any more, has gone")
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.assertEqual(self.ok("logs", job).count("told"), 4)
        self.nothing_is_left(job)
        self.down()

    def test_a_supervisor_is_killed(self):
        job = self.submit("[ $DTRAIN_ATTEMPT = 3 ] || { sleep 1000 & echo up; wait; }", *self.options(),
                          "--max-restarts", "2")
        for attempt in (1, 2):
            eventually(lambda: self.run_dtrain("logs", job, "--attempt", str(attempt)).stdout.count("up") == 4,
                       "all ranks are up", 2 * DEADLINE)
            # Of the first node, which had srun, then of the second.
            [pid] = [pid for pid in self.agents("supervise")
                     if f"gpu-{attempt}/" in Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", "/")]
            os.kill(pid, signal.SIGKILL)
        self.wait_state(job, "succeeded", deadline=2 * DEADLINE)
        self.nothing_is_left(job)
        self.down()

    def test_the_step_is_ended_by_others(self):
        job = self.submit(WAITS, *self.options())
        eventually(lambda: self.ok("logs", job).count("up") == 4, "all ranks are up")
        rows = sh("squeue", "-h", "--me", "-s", "-o", "%i %j").split("\n")
        [step] = [row.split()[0] for row in rows if row.endswith(job)]
        sh("scancel", step)
        self.wait_state(job, "failed")
        self.assertIn("Slurm has ended the step that stood for its ranks", self.json("result", job)["error"]["message"])
        self.assertEqual(self.ok("logs", job).count("told"), 4)
        self.nothing_is_left(job)

    def test_what_slurm_refuses_is_said(self):
        job = self.submit("true", *self.options(), "--max-restarts", "3", "--env", "SLURM_MPI_TYPE=pmix_v0")
        self.wait_state(job, "failed")
        result = self.json("result", job)
        self.assertEqual(len(result["attempts"]), 1, result["error"])
        self.assertIn("srun could not start the ranks", result["error"]["message"])
        self.assertIn("pmix_v0", result["error"]["message"])
        self.nothing_is_left(job)

    def test_nodes_of_two_allocations_are_no_place_for_one_job(self):
        self.write(3)
        self.up()
        self.assertEqual(len(self.queue()), 2)
        done = self.run_dtrain("submit", "--launcher", "srun", "--nnodes", "3", "--", "/bin/true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("of one Slurm allocation; the largest here has 2 nodes", done.stderr)
        self.ok("submit", "--nnodes", "3", "--", "/bin/true")


class Gangs(SrunCase):
    def test_a_gang_of_its_own(self):
        self.peers()
        self.write(0, idle_timeout_minutes=0.02, max_workers=2)
        self.up()
        said = self.ok("submit", *self.options(), "--", "./peers", deadline=2 * DEADLINE)
        self.assertEqual(len(re.findall(r"rank \d of 4: ", said)), 4)
        eventually(lambda: self.queue() == {}, "it is given back")
        self.down()

    def test_the_grace_of_an_allocation_that_ends(self):
        """The ranks may talk to each other in it."""
        self.peers()
        self.write(2)
        self.up()
        job = self.json("submit", "-d", *self.options(1), "--", "/bin/sh", "-c",
                        "[ $DTRAIN_ATTEMPT = 1 ] && exec ./peers wait; exec ./peers")["job"]
        eventually(lambda: self.ok("logs", job).count("rank") == 2, "they have met")
        [allocation] = self.queue()
        sh("scancel", allocation)
        self.wait_state(job, "succeeded", deadline=3 * DEADLINE)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} was told\n", self.said(job, rank))
        self.assertRegex(self.json("result", job)["attempts"][0]["reason"], f"Slurm job {allocation} was told to end")
        self.down()


if __name__ == "__main__":
    enter()
    why = missing()
    if why is None and subprocess.run(["pkg-config", "--exists", "pmix"]).returncode:
        why = "PMIx needs the package libpmix-dev (scripts/setup --tests)"
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    main()
