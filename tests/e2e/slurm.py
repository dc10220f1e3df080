"""Clusters out of Slurm's allocations, with a real Slurm of four nodes: tests/support/slurm.py."""

import shutil
import socket
import sys
import tempfile

from harness import *
from slurm_harness import *


def setUpModule():
    start_slurm(nodes=4, gpus=2)


class Pool(SlurmCase):
    def test_a_standing_pool(self):
        self.write(2)
        report = self.up()
        self.assertEqual([(t["type"], t["wanted"], t["ready"]) for t in report["asked"]],
                         [("gpu", 2, ["gpu-1", "gpu-2"])])
        self.assertEqual(len(self.queue()), 1)  # one allocation
        status = self.json("status")
        self.assertEqual([n["node"] for n in status["nodes"]], ["gpu-1", "gpu-2", "login"])
        self.assertEqual([(m["node"], m["state"], m["zone"]) for m in status["machines"]["machines"]],
                         [("gpu-1", "running", "normal"), ("gpu-2", "running", "normal")])
        # No rank runs on the login node.
        self.assertIn("can never run", self.run_dtrain("submit", "--nnodes", "3", "--", "/bin/true").stderr)
        said = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c",
                       "echo $RANK of $WORLD_SIZE in $SLURM_JOB_ID on $SLURMD_NODENAME")
        job = next(iter(self.queue()))
        for rank in range(2):
            self.assertRegex(said, rf"{rank} of 2 in {job} on n\d")
        # The same again is nothing new.
        self.up()
        self.assertEqual(list(self.queue()), [job])
        self.down()


    def test_it_waits_in_the_queue_and_says_why(self):
        other = sh("sbatch", "--parsable", "--exclusive", "--nodes=3", "--wrap", "exec sleep 1000",
                   "--output=/dev/null").strip()
        self.write(2)
        said = self.folder / "said"
        with open(said, "w") as out:
            process = self.start("up", self.folder / "pool.yaml", "-y", stdout=out)
        eventually(lambda: re.search("machine: pending: waits in partition normal: (Resources|Priority)", said.read_text()),
                   "why it waits")
        self.assertRegex(self.ok("status"), r"gpu-1 +pending .*waits in partition normal: (Resources|Priority)")
        # A job for them waits, and is not refused.
        job = self.submit(NUMBERED, "--nnodes", "2")
        # Who goes away leaves the head asking.
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=DEADLINE), 0)
        self.assertIn("the head goes on asking", said.read_text())
        # The head too may be started anew meanwhile.
        for pid in self.agents("head"):
            os.kill(pid, signal.SIGKILL)
        sh("scancel", other)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.wait_state(job, "succeeded", deadline=2 * DEADLINE)
        self.assert_numbered(job, ranks=2)
        self.assertEqual(len(self.queue()), 1)
        self.down()

    def test_what_can_never_run_is_said_at_once(self):
        self.write(2, "exclusive: true, constraint: gold")
        done = self.run_dtrain("up", self.folder / "pool.yaml", "-y", deadline=2 * DEADLINE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("Invalid feature specification", done.stderr)
        self.assertIn("0 of 2 of type gpu are ready", done.stderr)
        self.assertRegex(done.stderr, r"pool\.yaml:4:\d+: .*node type gpu: ")
        self.assertIn("Invalid feature specification", self.ok("status"))
        # Another YAML, and it goes on from there.
        self.write(1)
        self.assertEqual(self.up()["asked"][0]["ready"], ["gpu-1"])
        self.down()

    def test_it_grows_and_shrinks(self):
        self.write(1)
        self.up()
        job = self.submit("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
        self.wait_state(job, "running")
        self.write(3)
        self.assertEqual(self.up()["asked"][0]["ready"], ["gpu-1", "gpu-2", "gpu-3"])
        self.assertEqual(len(self.queue()), 2)
        # What was had together goes together, and the newest first.
        self.write(1)
        self.up()
        eventually(lambda: len(self.queue()) == 1, "the second allocation is given back")
        self.assertEqual(self.nodes_by_state("ready"), ["gpu-1"])
        # One with ranks goes when they have ended.
        self.write(0, max_workers=0)
        self.up()
        eventually(lambda: self.nodes_by_state("draining") == ["gpu-1"], "it is drained")
        self.assertEqual(self.state(job), "running")
        self.ok("stop", job)
        eventually(lambda: self.queue() == {}, "the first allocation is given back")
        self.down()


    def test_what_slurm_gives_reaches_the_ranks(self):
        self.write(1, "cpus-per-task: 1, mem: 512")
        self.up()
        [node] = [n for n in self.json("status")["nodes"] if n["node"] == "gpu-1"]
        self.assertEqual((node["cpus"], node["memory"]), (1, 512 << 20))
        said = self.ok("submit", "--", "/bin/sh", "-c", "echo $SLURM_MEM_PER_NODE MB in $TMPDIR")
        [allocation] = self.queue()
        self.assertIn(f"512 MB in {self.slurm.folder}/scratch/{allocation}", said)
        self.down()


class Replace(SlurmCase):
    """Nodes of another node_config than the YAML has now."""

    def test_they_stay_and_up_says_so_or_they_are_replaced(self):
        yaml = self.write(1)
        self.up()
        [first] = self.queue()
        job = self.submit("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
        self.wait_state(job, "running")
        self.write(1, "exclusive: true, nice: 5")
        done = self.run_dtrain("up", yaml, "-y", deadline=3 * DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gpu-1: made by another launch configuration; up --replace makes it anew", done.stderr)
        self.assertRegex(self.ok("up", yaml, "--dry-run"), r"gpu-1 +gpu +keep .*; up --replace makes it anew")
        self.assertRegex(self.ok("up", yaml, "--dry-run", "--replace"),
                         r"gpu-1 +gpu +replace +normal +made by another launch configuration\n")
        self.assertEqual(list(self.queue()), [first])
        # They go once no rank runs there, and `up` waits for that.
        said = self.folder / "said"
        with open(said, "w") as out:
            replaces = self.start("up", yaml, "-y", "--replace", stdout=out, stderr=out)
        eventually(lambda: "gpu-1: machine: made by another launch configuration, and goes once no rank runs there"
                   in said.read_text() and self.nodes_by_state("ready") == ["gpu-2"], "the new one is there")
        self.assertEqual((self.state(job), replaces.poll()), ("running", None))
        self.ok("stop", job)
        self.assertEqual(replaces.wait(timeout=2 * DEADLINE), 0, said.read_text())
        self.assertIn("gpu-1: given back, for it was made by another launch configuration", said.read_text())
        self.assertIn("is up: 1 node ready", said.read_text())
        self.assertEqual(self.nodes_by_state("ready"), ["gpu-2"])
        eventually(lambda: list(self.queue()) != [first] and len(self.queue()) == 1, "the first allocation is given back")
        # The same again is nothing new.
        again = self.up("--replace")
        self.assertEqual((again["action"], again["asked"][0]["ready"], again["warnings"]), ("none", ["gpu-2"], []))
        self.down()

    def test_a_dry_run_shows_what_the_head_would_do(self):
        yaml = self.write(2)
        self.assertEqual(self.ok("up", yaml, "--dry-run").count("(new)"), 2)
        self.assertRegex(self.ok("up", yaml, "--dry-run"), r"\(new\) +gpu +create +there is none yet")
        self.up()
        self.assertRegex(self.ok("up", yaml, "--dry-run"), r"gpu-1 +gpu +keep +normal +is there\n *gpu-2 ")
        self.write(0, max_workers=0)
        self.assertRegex(self.ok("up", yaml, "--dry-run"), r"gpu-2 +gpu +release +normal +0 of type gpu are wanted")
        self.assertEqual([(n["node"], n["action"]) for n in self.json("up", yaml, "--dry-run")["plan"]],
                         [("login", "keep"), ("gpu-1", "release"), ("gpu-2", "release")])
        self.down()


class Gangs(SlurmCase):
    """None stands ready: each job gets its own allocation."""

    def write(self, **keys):
        return super().write(0, **{"idle_timeout_minutes": 0.02, **keys})

    def waits(self, job):
        return self.job(job)["reason"]

    def test_a_job_gets_its_own_and_gives_it_back(self):
        self.write(max_workers=3)
        self.assertIn("the head asks for 0 of type gpu, and when jobs wait for up to 3",
                      self.ok("up", self.folder / "pool.yaml", "--dry-run"))
        self.assertIn("0 nodes ready, more come when jobs need them", self.ok("up", self.folder / "pool.yaml", "-y"))
        self.assertEqual(self.queue(), {})
        # More than there may be is refused, what there may be is not.
        self.assertIn("can never run", self.run_dtrain("submit", "--nnodes", "4", "--", "/bin/true").stderr)
        said = self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE in $SLURM_JOB_ID",
                       deadline=2 * DEADLINE)
        told = re.findall(r"(\d) of 2 in (\d+)", said)
        self.assertEqual(sorted(rank for rank, _ in told), ["0", "1"])
        self.assertEqual(len({allocation for _, allocation in told}), 1)
        eventually(lambda: self.queue() == {}, "it is given back")
        eventually(lambda: "asks for 3 machines of type gpu" in self.ok("submit", "--dry-run", "--nnodes", "3", "--", "/bin/true"),
                   "the head knows that it is gone")
        # Two at once are two allocations, and each ends by itself.
        jobs = [(self.submit(f"{NUMBERED}; sleep {seconds}", "--nnodes", str(nodes)), nodes)
                for seconds, nodes in ((0.5, 1), (1, 2))]
        for job, nodes in jobs:
            self.wait_state(job, "succeeded", deadline=2 * DEADLINE)
            self.assert_numbered(job, ranks=nodes)
        eventually(lambda: self.queue() == {}, "both are given back")
        self.down()

    def test_it_waits_in_the_queue_and_says_why(self):
        other = sh("sbatch", "--parsable", "--exclusive", "--nodes=3", "--wrap", "exec sleep 1000",
                   "--output=/dev/null").strip()
        self.write()
        self.up()
        said = self.folder / "said"
        with open(said, "w") as out:
            follower = self.start("submit", "--workdir", self.work, "--nnodes", "2", "--", "/bin/true",
                                  stdout=out, stderr=out)
        waits = r"waits for gpu-1, gpu-2: waits in partition normal: (Resources|Priority)"
        eventually(lambda: re.search(waits, said.read_text()), "whoever follows it is told why it waits")
        # What the page shows: asked for, and then Slurm's own word.
        self.assertRegex(said.read_text(), r"(?m)^dtrain: \S+ queued: asks for 2 machines of type gpu\n"
                                           r"(dtrain: \S+ queued: waits for gpu-1, gpu-2: waits in partition normal\n)?"
                                           rf"dtrain: \S+ queued: {waits}")
        job = self.json("status")["jobs"][0]["job"]
        self.assertRegex(self.waits(job), waits)
        # A job that is stopped takes its request along.
        self.ok("stop", job)
        self.assertEqual(follower.wait(timeout=DEADLINE), 3)
        # The same is not said again, whatever Slurm is asked meanwhile.
        told = [re.sub(", starts about .*", "", line) for line in said.read_text().split("\n") if " queued: " in line]
        self.assertTrue(all(one != next for one, next in zip(told, told[1:])), told)
        eventually(lambda: self.queue() == {}, "nobody asks any more")
        # The head may be started anew meanwhile.
        job = self.submit("echo rank $RANK", "--nnodes", "2")
        eventually(lambda: len(self.queue()) == 1, "it is asked for")
        for pid in self.agents("head"):
            os.kill(pid, signal.SIGKILL)
        sh("scancel", other)
        eventually(lambda: self.run_dtrain("status").returncode == 0, "the head is back")
        self.wait_state(job, "succeeded", deadline=2 * DEADLINE)
        eventually(lambda: self.queue() == {}, "it is given back")
        self.down()

    def test_what_can_never_run_is_the_jobs_reason(self):
        yaml = SlurmCase.write(self, 0, "exclusive: true, constraint: gold")
        # Nobody asks for such a node before a job needs it: `up` asks whether there could be one.
        for flags in (("--dry-run",), ("-y",)):
            done = self.run_dtrain("up", yaml, *flags, deadline=2 * DEADLINE)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"pool\.yaml:4:\d+: .*node type gpu: sbatch: .*Invalid feature specification")
        self.assertIn("jobs get none of type gpu", done.stderr)
        job = self.submit("echo rank $RANK")
        eventually(lambda: "Invalid feature specification" in self.waits(job), "what Slurm said")
        said = self.folder / "said"
        with open(said, "w") as out:
            self.start("logs", "-f", job, stdout=out, stderr=out)
        eventually(lambda: re.search(r"queued: would ask for .*Invalid feature specification", said.read_text()),
                   "whoever follows it is told")
        self.assertIn("Invalid feature specification", self.ok("status"))
        self.write()
        self.up()
        self.wait_state(job, "succeeded", deadline=2 * DEADLINE)
        self.down()


    def test_what_sbatch_does_not_know_is_said_before_a_job_waits_for_it(self):
        yaml = SlurmCase.write(self, 0, "exclusive: true, frobnicate: 3")
        self.assertRegex(self.run_dtrain("up", yaml, "--dry-run").stderr, r"pool\.yaml:4:.*frobnicate")
        done = self.run_dtrain("submit", "--on", yaml, "--", "/bin/true", deadline=3 * DEADLINE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("frobnicate", done.stderr)
        self.assertEqual(self.pids(), [])
        # What others have now may be had.
        sh("sbatch", "--parsable", "--exclusive", "--nodes=4", "--wrap", "exec sleep 1000", "--output=/dev/null")
        self.write()
        self.ok("up", yaml, "--dry-run")
        self.up()
        self.down()
        sh("scancel", "--me")

    def test_one_job_with_an_allocation_of_all_nodes(self):
        yaml = self.write()
        said = self.ok("submit", "--on", yaml, "--nnodes", "4", "--", "/bin/sh", "-c", NUMBERED, deadline=4 * DEADLINE)
        for rank in range(4):
            lines = re.findall(rf"(?m)^\[{rank}\] line (\d+)$", said)
            self.assertEqual(list(map(int, lines)), list(range(1, LINES + 1)), f"of rank {rank}")
        self.assertEqual((self.queue(), self.pids()), ({}, []))


class Page(SlurmCase):
    def test_the_page_works_as_written(self):
        """But for the partition's name, and for who says yes to an unknown cluster."""
        blocks = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", (SOURCE / "docs" / "slurm.md").read_text())
        yaml = next(text for language, text in blocks if language == "yaml")
        (self.work / "cluster.yaml").write_text(yaml.replace("partition: gpu", "partition: normal"))
        env = {**self.env, "PATH": f"{DTRAIN.parent}:{os.environ['PATH']}"}
        said = []
        for command in "".join(text for language, text in blocks if language == "sh").strip().split("\n"):
            if command.startswith("dtrain down"):
                self.try_other_blocks([text for language, text in blocks if language == "yaml"][1:])
            ran = subprocess.run(["/bin/bash", "-c", command], cwd=self.work, env=env, text=True, timeout=3 * DEADLINE,
                                 stdin=subprocess.DEVNULL, capture_output=True)
            self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stdout}\n{ran.stderr}")
            said.append(ran.stdout)
        self.assertIn("2 nodes ready", said[0])
        self.assertIn("on login run the head, its node agent, which takes no ranks, and their watch", said[0])
        self.assertRegex(said[1], r"gpu-1 +ready")
        self.assertEqual(said[2].count(os.uname().nodename), 2)
        # The one without an `up`.
        self.assertEqual(sorted(said[4].split("\n")), ["", *(f"[{rank}] {os.uname().nodename}" for rank in (0, 1))])
        self.assertEqual(len(list(self.work.glob("hostname-*/logs/attempt-1/?.out"))), 2)
        self.assertEqual(self.queue(), {})
        self.assertEqual(self.pids(), [])

    def try_other_blocks(self, texts):
        """On Slurm's nodes that are there: clusters as dry runs, of nodes as large as this Slurm's, the job too."""
        tried = {"cluster": 0, "job": 0}
        (self.work / "solve").write_text("#!/bin/sh\n")
        (self.work / "solve").chmod(0o755)
        for text in texts:
            is_job = text.startswith("command:")
            file = self.work / "block.yaml"
            text = re.sub("partition: [a-z]+", "partition: normal", text).replace("CPU: 8, GPU: 4", "CPU: 2, GPU: 2")
            file.write_text(text.replace("cluster_name: slurm", "cluster_name: other"))
            said = self.ok("submit", "--dry-run", file) if is_job else self.ok("up", file, "--dry-run")
            self.assertIn("would " if is_job else "the head asks for", said)
            tried["job" if is_job else "cluster"] += 1
        self.assertEqual(tried, {"cluster": 2, "job": 1})
        (self.work / "solve").unlink()
        (self.work / "block.yaml").unlink()

    def test_the_config_works_with_another_partition(self):
        text = (SOURCE / "configs" / "slurm.yaml").read_text()
        (self.folder / "pool.yaml").write_text(text.replace("partition: gpu", "partition: normal"))
        self.assertEqual(self.up()["asked"][0]["ready"], ["gpu-1", "gpu-2"])
        # Of each node what was asked for, as Slurm gave it.
        status = self.json("status")
        self.assertEqual([(n["cpus"], n["gpus"]) for n in status["nodes"] if n["node"] != "login"], [(2, 1), (2, 1)])
        said = self.ok("submit", "--nnodes", "2", "--nproc-per-node", "gpu", "--", "/bin/sh", "-c",
                       "echo GPU $CUDA_VISIBLE_DEVICES of rank $RANK")
        self.assertEqual(len(re.findall(r"GPU [01] of rank [01]", said)), 2, said)
        self.ok("down", "-y", deadline=3 * DEADLINE)

    def test_nodes_prepare_themselves(self):
        (self.folder / "data").mkdir()
        (self.folder / "data" / "words").write_text("hello\n")
        # Both at once, in the one home: of two cp one may find that the file has just been made.
        self.write(2, file_mounts=f"{{~/data: '{self.folder}/data'}}",
                   worker_setup_commands="[cp ~/data/words ~/said.$$ && mv ~/said.$$ ~/said]",
                   ready="{command: test -s ~/said}")
        self.up()
        self.assertEqual((self.folder / "home" / "said").read_text(), "hello\n")
        # A shell function of the person's own is known to them, as `module` is.
        (self.folder / "home" / ".bash_profile").write_text("module() { echo \"$*\" >>~/modules; }\n")
        self.write(2, worker_setup_commands="[module load cuda]")
        self.up()
        self.assertEqual((self.folder / "home" / "modules").read_text(), "load cuda\n" * 2)
        self.write(2, worker_setup_commands="[echo no such package >&2; exit 3]")
        done = self.run_dtrain("up", self.folder / "pool.yaml", "-y", deadline=2 * DEADLINE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("cannot be prepared", done.stderr)
        self.assertIn("no such package", self.ok("logs", "--setup", "gpu-1"))
        self.down()


class Counting(SlurmCase):
    """With a job that counts its lines, in the one allocation that there is."""

    options = "exclusive: true"

    def setUp(self):
        super().setUp()
        self.count = self.folder / "count"
        self.write(1, self.options)
        self.up()
        self.job_id = self.submit(COUNTS, "--env", f"COUNT={self.count}")
        self.wait_state(self.job_id, "running")
        self.lines()
        self.allocation = next(iter(self.queue()))

    def lines(self):
        """Until some more have been written."""
        before = int(self.count.read_text()) if self.count.exists() else 0
        eventually(lambda: self.count.exists() and int(self.count.read_text() or before) > before + 10, "lines")

    def goes_on(self, why, attempts=2):
        """In another allocation, for the reason that is given."""
        eventually(lambda: self.json("result", self.job_id)["attempts"][-1]["attempt"] == attempts, "a new attempt",
                   2 * DEADLINE)
        self.wait_state(self.job_id, "running", deadline=2 * DEADLINE)
        self.assertNotIn(self.allocation, self.queue("-t", "RUNNING"))
        self.lines()
        (self.folder / "count.end").touch()
        self.wait_state(self.job_id, "succeeded")
        # max_restarts is 0: it was no failure of the job's.
        # Slurm's own word comes once it has one, and the head has asked.
        eventually(lambda: re.search(why, self.json("result", self.job_id)["attempts"][0]["reason"]), why, 2 * DEADLINE, pause=0.2)
        written = self.written(self.job_id, attempts=range(1, attempts + 1))
        # One may have been written and not counted.
        self.assertEqual(sorted(set(written)), list(range(1, max(written) + 1)))
        self.down()


class Ends(Counting):
    """Allocations that end while a job runs: it goes on in the next, and no line is lost."""

    def test_scancel_by_others(self):
        sh("scancel", self.allocation)
        self.goes_on(rf"Slurm job {self.allocation} was told to end \(SIGTERM\); Slurm job {self.allocation} was cancelled")

    def test_its_time_is_nearly_over(self):
        sh("scancel", "--signal=USR1", "--batch", self.allocation)
        self.goes_on(rf"Slurm job {self.allocation} was told that its time is nearly over")

    def test_ranks_that_only_die_of_it(self):
        """No word of theirs says that they were told to end; nor does the exit code of who needs his time."""
        self.ok("stop", self.job_id)
        job = self.submit("[ \"$DTRAIN_ATTEMPT\" = 2 ] || exec sleep 1000")
        self.wait_state(job, "running")
        sh("scancel", self.allocation)
        self.wait_state(job, "succeeded")
        self.assertEqual(len(self.json("result", job)["attempts"]), 2)
        saves = self.submit("trap 'sleep 1; echo saved; exit 0' TERM; echo up; "
                            "[ \"$DTRAIN_ATTEMPT\" = 2 ] || while :; do sleep 0.05; done")
        self.wait_state(saves, "running")
        eventually(lambda: "up" in self.ok("logs", saves), "it is up")
        sh("scancel", next(iter(self.queue("-t", "RUNNING"))))
        self.wait_state(saves, "succeeded")
        self.assertEqual(len(self.json("result", saves)["attempts"]), 2)
        self.assertIn("saved", self.ok("logs", saves, "--attempt", "1"))
        self.down()

    def test_preemption(self):
        sh("sbatch", "--partition=high", "--exclusive", "--nodes=4", "--wrap", "sleep 3", "--output=/dev/null")
        self.goes_on(rf"Slurm job {self.allocation} was told to end \(SIGTERM\); Slurm job {self.allocation} was preempted")
        self.assertEqual(self.queue("-t", "all")[self.allocation], "PREEMPTED")

    def test_slurmctld_is_started_anew(self):
        # What it has not saved when it is killed it does not know: it would kill such a job itself.
        sh("scontrol", "update", f"JobId={self.allocation}", "AdminComment=it-is-saved")
        saved = self.slurm.folder / "state" / "job_state"
        eventually(lambda: saved.exists() and b"it-is-saved" in saved.read_bytes(), "slurmctld has saved the job")
        pid = int((self.slurm.folder / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), "it has ended")
        self.lines()
        self.assertEqual(self.nodes_by_state("ready"), ["gpu-1"])
        self.slurm.start_controller()
        eventually(lambda: sh("squeue", "-h", check=False).strip() and not
                   sh("sinfo", "-h", "-t", "unknown,no_respond,down", "-o", "%N", check=False).strip(), "it is back")
        sh("scancel", self.allocation)
        self.goes_on("was told to end")


class TimeLimit(Counting):
    """The least that is told before its end, which is two minutes away then, or up to three."""

    options = "exclusive: true, time: 4"

    def test_it_is_nearly_over(self):
        eventually(lambda: self.json("result", self.job_id)["attempts"][-1]["attempt"] == 2, "a new attempt", 300,
                   pause=1)
        # Long before Slurm would have ended it, which would be TIMEOUT.
        eventually(lambda: self.queue("-t", "all")[self.allocation] == "COMPLETED", "it is given back")
        self.goes_on(rf"Slurm job {self.allocation} was told that its time is nearly over")


# A rank with two daemons, which nothing but SIGKILL ends: one has its environment, and one has not.
# Each says who it is.
DAEMONS = """
cat >daemon <<'end'
trap '' TERM HUP INT USR1
echo $$ >"$1.new"; mv "$1.new" "$1"
while :; do sleep 1000; done
end
for clean in '' 'env -i PATH=/usr/bin:/bin'; do
( (exec $clean setsid sh daemon "$PIDS.${clean%% *}" </dev/null >/dev/null 2>&1) & ) &
done
wait
trap 'exit 0' TERM
while :; do sleep 0.05; done
"""


class Leftovers(SlurmCase):
    """By linuxproc Slurm knows the children of those that it has started, by cgroup everything that
    descends from them. What goes on as a daemon is ended in both."""

    def daemons(self):
        """The pids of a new job's."""
        for path in self.folder.glob("pids.*"):
            path.unlink()
        job = self.submit(DAEMONS, "--env", f"PIDS={self.folder}/pids", "--stop-grace-s", "2")
        pids = [int(eventually(lambda: path.exists() and path.read_text(), f"{path} is there", 2 * DEADLINE))
                for path in (self.folder / "pids.", self.folder / "pids.env")]
        for pid in pids:
            self.assertEqual(os.getsid(pid), pid)
        return job, pids

    def are_gone(self, pids):
        eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), "the daemons are gone")

    def test_daemons_do_not_outlive_their_allocation(self):
        self.write(1)
        self.up()
        job, pids = self.daemons()
        [allocation] = self.queue()
        (self.folder / "pids.").unlink()
        sh("scancel", allocation)
        self.are_gone(pids)
        # The job is on its second attempt, and has more of them.
        eventually((self.folder / "pids.").exists, "the next attempt's are there", 2 * DEADLINE)
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.are_gone([int(path.read_text()) for path in self.folder.glob("pids.*")])
        job, pids = self.daemons()
        self.down()
        self.are_gone(pids)


class NodeFails(SlurmCase):
    def test_the_others_go_on_with_another(self):
        self.write(2)
        self.up()
        count = self.folder / "count"
        job = self.submit(f"COUNT=$COUNT.$RANK\n{COUNTS}", "--nnodes", "2", "--max-restarts", "1",
                          "--env", f"COUNT={count}")
        counts = [Path(f"{count}.{rank}") for rank in (0, 1)]
        eventually(lambda: all(each.exists() and int(each.read_text() or 0) > 10 for each in counts), "lines")
        eventually(lambda: len(self.written(job, rank=1, attempts=[1])) > 5, "lines are at the head")
        [allocation] = self.queue()
        [nodes] = sh("squeue", "-h", "-j", allocation, "-o", "%N").split()
        self.fail_node(sh("scontrol", "show", "hostnames", nodes).split()[1])
        # It is silent until it is held to be lost, and until its lease is over.
        eventually(lambda: len(self.json("result", job)["attempts"]) == 2, "a new attempt", 3 * DEADLINE)
        first, second = self.json("result", job)["attempts"]
        self.assertRegex(first["reason"], "gpu-2 was lost: not heard of for 3")
        self.assertEqual([n["node"] for n in second["nodes"]], ["gpu-1", "gpu-3"])
        self.assertEqual(len(self.queue("-t", "RUNNING")), 2)
        self.wait_state(job, "running", deadline=2 * DEADLINE)
        for each in counts:
            Path(f"{each}.end").touch()
        self.wait_state(job, "succeeded")
        # Of the dead machine's what had not come here is lost, and nothing before that.
        written = self.written(job, rank=0)
        self.assertEqual(sorted(set(written)), list(range(1, max(written) + 1)))
        written = self.written(job, rank=1, attempts=[1])
        self.assertEqual(written, list(range(1, len(written) + 1)))
        self.assertGreater(len(written), 5)
        self.down()


class Far(SlurmCase):
    """The login node over SSH; what it has, and this machine has not, is known to its own shell."""

    def setUp(self):
        super().setUp()
        there = self.folder / "there"
        there.mkdir()
        (self.folder / "sshd").mkdir()
        self.key = self.folder / "home" / "key"
        for key in (self.key, self.folder / "sshd" / "host"):
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        # No space in any path of these: sshd's file has no quotes for it.
        place = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, place, ignore_errors=True)
        (place / "sshd").symlink_to(self.folder / "sshd")
        (place / "there").symlink_to(there)
        shutil.copy(f"{self.key}.pub", self.folder / "sshd" / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        Path("/run/sshd").mkdir(exist_ok=True)
        self.place = place
        del self.env["SLURM_CONF"]

    def listen(self, name, address, *inside):
        """A login node's sshd, with a namespace of its own where `inside` makes one."""
        config = self.folder / "sshd" / name
        config.write_text(
            f"Port {self.port}\nListenAddress {address}\nHostKey {self.place}/sshd/host\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {self.place}/sshd/authorized\nPermitRootLogin yes\nPidFile {self.place}/sshd/{name}.pid\n"
            f"SetEnv HOME={self.place}/there SLURM_CONF={os.environ['SLURM_CONF']}\n")
        sshd = subprocess.Popen([*inside, "/usr/sbin/sshd", "-D", "-f", f"{self.place}/sshd/{name}",
                                 "-E", f"{self.place}/sshd/{name}.log"])
        self.addCleanup(sshd.wait)
        self.addCleanup(sshd.kill if inside else sshd.terminate)
        eventually((self.folder / "sshd" / f"{name}.pid").exists, "sshd listens")

    def write(self, login, count, more="available_node_types:\n"):
        (self.folder / "pool.yaml").write_text(
            f"cluster_name: pool\nprovider: {{type: slurm, login_node: {login}}}\n"
            f"auth: {{ssh_user: root, ssh_port: {self.port}, ssh_private_key: '{self.key}'}}\n"
            f"{more}  gpu: {{min_workers: {count}, node_config: {{exclusive: true}}}}\n")

    def test_the_login_node_over_ssh(self):
        self.listen("here", "127.0.0.1")
        self.write("127.0.0.1", 2)
        said = self.ok("up", self.folder / "pool.yaml", "--accept-new-host-keys", deadline=3 * DEADLINE)
        self.assertIn("2 nodes ready", said)
        self.assertEqual(self.ok("submit", "--nnodes", "2", "--", "/bin/sh", "-c", "echo rank $RANK").count("rank"), 2)
        # Again, and nothing is started anew.
        report = self.up()
        self.assertEqual((report["action"], report["each"][0]["steps"]), ("none", []))
        # From another laptop, which knows the YAML.
        shutil.rmtree(self.folder / "state")
        queue = self.queue()
        found = self.up("--accept-new-host-keys")
        self.assertEqual((found["id"], found["each"][0]["steps"]), (report["id"], []))
        self.assertEqual(self.queue(), queue)
        self.ok("down", "-y", deadline=3 * DEADLINE)
        self.assertEqual(self.queue(), {})
        self.assertEqual([str(p) for p in (self.folder / "there" / ".dtrain").glob("pool-*/*")], [])

    def test_the_head_in_an_allocation_behind_it(self):
        self.listen("here", "127.0.0.1")
        self.write("127.0.0.1", 1, "head_node_type: head\navailable_node_types:\n"
                                   "  head: {resources: {CPU: 1}, node_config: {time: 30}}\n")
        report = self.up("--accept-new-host-keys")
        self.assertEqual(report["asked"][0]["ready"], ["gpu-1"])
        self.assertEqual(self.ok("exec", "--node", "head-node", "--", "/bin/sh", "-c", "echo $SLURM_JOB_ID").strip(),
                         self.json("status")["cluster"]["head"]["succession"]["job"])
        self.assertIn("rank 0", self.ok("submit", "--", "/bin/sh", "-c", "echo rank $RANK"))
        # From another laptop, which knows the YAML.
        shutil.rmtree(self.folder / "state")
        found = self.up("--accept-new-host-keys")
        self.assertEqual((found["id"], found["each"][0]["steps"]), (report["id"], []))
        self.ok("down", "-y", deadline=3 * DEADLINE)
        self.assertEqual(self.queue(), {})
        self.assertEqual([str(p) for p in (self.folder / "there" / ".dtrain").glob("pool-*/*")], [])

    def test_one_name_of_several_login_nodes(self):
        """Each has its own name, processes and /tmp; they share the home, and what serves one name."""
        names = self.folder / "hosts"
        names.touch()
        sh("mount", "--bind", names, "/etc/hosts")
        self.addCleanup(sh, "umount", "/etc/hosts")

        def login_is(number):
            names.write_text(f"127.0.0.1 localhost\n127.0.0.2 login1\n127.0.0.3 login2\n127.0.0.{number + 1} login\n")
        for number in (1, 2):
            self.listen(f"login{number}", f"127.0.0.{number + 1}", "unshare", "--uts", "--mount", "--pid", "--fork",
                        "--mount-proc", "--kill-child=KILL", "/bin/sh", "-c",
                        f"hostname login{number} && mount -t tmpfs none /tmp && exec \"$@\"", "sh")
        login_is(1)
        self.write("login", 1)
        report = self.up("--accept-new-host-keys")
        self.assertEqual(report["asked"][0]["ready"], ["gpu-1"])
        login_is(2)
        self.assertEqual(self.nodes_by_state("ready"), ["gpu-1"])
        self.assertEqual(self.ok("exec", "--node", "login", "--", "uname", "-n").strip(), "login1")
        self.assertIn("rank 0", self.ok("submit", "--", "/bin/sh", "-c", "echo rank $RANK"))
        self.assertEqual(self.up()["action"], "none")
        # From another laptop, which knows the YAML; back on the first one, too.
        for number in (2, 1):
            login_is(number)
            shutil.rmtree(self.folder / "state")
            found = self.up("--accept-new-host-keys")
            self.assertEqual((found["id"], found["each"][0]["steps"]), (report["id"], []))
        # The one that has it is away.
        login_is(2)
        names.write_text(names.read_text().replace("127.0.0.2", "127.0.0.9"))
        self.assertRegex(self.run_dtrain("status").stderr,
                         r"reaching login1, where the head is, through login\b[\s\S]*if it is gone for good, remove .*/head\.host,")
        login_is(2)
        self.ok("down", "-y", deadline=3 * DEADLINE)
        self.assertEqual(self.queue(), {})
        self.assertEqual([str(p) for p in (self.folder / "there" / ".dtrain").glob("pool-*/*")], [])


if __name__ == "__main__":
    enter()
    why = missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    main()
