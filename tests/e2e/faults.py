"""What fails, and what is said and done then."""

import datetime
import hashlib
import threading

from harness import *


class Faults(ClusterCase):
    # Each rank writes numbered lines until it is told to end by a file.
    # The others end first, with 0; then rank 0 fails with 5.
    COUNTER = ('i=0; while [ ! -e "$STOP" ]; do i=$((i+1)); echo "line $i of $RANK"; '
               '[ $((i % 200)) = 0 ] && sleep 0.01; done; echo "end $i of $RANK"; '
               '[ $RANK = 0 ] || { touch "$STOP.$RANK"; exit 0; }; '
               'while [ $(ls "$STOP".* | wc -l) -lt $((WORLD_SIZE - 1)) ]; do sleep 0.01; done; exit 5')

    def start_counting(self, ranks=2):
        stop = self.folder / "stop"
        job = self.json("submit", "-d", "--nproc-per-node", ranks, "--env", f"STOP={stop}", "--",
                        "/bin/sh", "-c", self.COUNTER)["job"]
        self.wait_state(job, "running")
        eventually(lambda: self.rank_output(job, 0).stat().st_size > 2000, "the ranks write")
        return job, stop

    def assert_whole(self, text, ranks=2):
        """No line missing, none doubled, in the order of each rank."""
        for rank in range(ranks):
            numbers = [int(n) for n in re.findall(rf"line (\d+) of {rank}\b", text)]
            found = re.search(rf"end (\d+) of {rank}\b", text)
            self.assertTrue(found, f"no end of rank {rank}: " + text[-400:])
            last = int(found.group(1))
            self.assertEqual(numbers, list(range(1, last + 1)), f"rank {rank}")

    def killed_agent(self, roles):
        job, stop = self.start_counting()
        collected = []
        follower = self.start("logs", "-f", job)
        first = follower.stdout.readline()
        reader = threading.Thread(target=lambda: collected.append(first + follower.stdout.read()))
        reader.start()
        supervisors = self.agents("supervise")
        for role in roles:
            for pid in self.agents(role):
                os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        eventually(lambda: (s := self.run_dtrain("status", "--json")).returncode == 0
                   and json.loads(s.stdout)["nodes"][0]["state"] == "ready"
                   and not json.loads(s.stdout).get("error"), "the cluster is back", 20)
        took = time.monotonic() - killed
        self.assertEqual(self.agents("supervise"), supervisors)
        self.wait_state(job, "running")
        stop.touch()
        self.wait_state(job, "failed")
        follower.wait(60)
        reader.join()
        self.assertEqual(follower.returncode, 1, collected[0][-500:])
        self.assert_whole(collected[0])
        self.assert_whole(self.ok("logs", job))
        self.assertEqual(self.job(job)["exit_code"], 5)
        self.assertEqual(self.job(job)["attempts"][-1]["attempt"], 1)
        return took

    def test_a_killed_node_agent_is_back_and_nothing_is_lost(self):
        self.killed_agent(["node"])

    def test_a_killed_head_is_back_and_nothing_is_lost(self):
        self.killed_agent(["head"])

    def test_both_killed(self):
        self.killed_agent(["head", "node"])

    def test_watch_and_agents_killed_up_brings_them_back(self):
        job, stop = self.start_counting()
        for pid in self.agents("watch") + self.agents("head") + self.agents("node"):
            os.kill(pid, signal.SIGKILL)
        self.ok("up", self.folder / "cluster.yaml")
        self.wait_state(job, "running")
        stop.touch()
        self.wait_state(job, "failed")
        self.assert_whole(self.ok("logs", job))
        self.assertEqual(self.job(job)["exit_code"], 5)

    def test_a_killed_supervisor_leaves_no_process_and_fails_the_attempt(self):
        job = self.submit("setsid sh -c 'while :; do sleep 1000; done' & sleep 1000 & "
                          "while :; do sleep 1000; done", "--nproc-per-node", "2")
        self.wait_state(job, "running")
        env = f"DTRAIN_JOB_ID={job}"
        eventually(lambda: len(processes_with_environment(env)) >= 6, "the children are there")
        for pid in self.agents("supervise"):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not processes_with_environment(env), "nothing is left", 5)
        self.wait_state(job, "failed")
        self.assertIn("supervisor", self.job(job)["error"]["message"])

    def test_damaged_files_of_an_attempt_cost_that_attempt_only(self):
        job = self.submit("sleep 1000")
        self.wait_state(job, "running")
        folder = next(self.root().glob(f"nodes/*/jobs/{job}/attempt-1"))
        (folder / "exit.json").write_text("{")
        stray = folder.parent.parent / "stray-abcdef" / "attempt-1"
        stray.mkdir(parents=True)
        (stray / "spec.json").write_text("garbage")
        for pid in self.agents("supervise") + self.agents("node"):
            os.kill(pid, signal.SIGKILL)
        self.wait_state(job, "failed")
        self.wait_state(self.submit("true"), "succeeded")

    def test_one_rank_fails_all_end_and_it_is_named(self):
        job = self.submit("[ $RANK = 1 ] && { sleep 0.2; echo about to fail >&2; exit 9; }; sleep 1000",
                          "--nproc-per-node", "2")
        self.wait_state(job, "failed")
        result = self.job(job)
        self.assertEqual(result["exit_code"], 9)
        self.assertEqual(result["error"]["rank"], 1)
        self.assertEqual(result["error"]["node"], "node-0")
        self.assertIn("about to fail", "\n".join(result["error"]["last_lines"]))
        self.assertEqual(processes_with_environment(f"DTRAIN_JOB_ID={job}"), [])
        self.assertIn("about to fail", self.ok("result", job))

    def test_a_signal_and_an_error_file(self):
        job = self.submit('printf \'{"message":{"message":"ValueError: bad","extraInfo":{"timestamp":"1"}}}\''
                          ' > "$TORCHELASTIC_ERROR_FILE"; kill -SEGV $$')
        self.wait_state(job, "failed")
        result = self.job(job)
        self.assertEqual(result["exit_code"], 128 + signal.SIGSEGV)
        self.assertEqual(result["error"]["signal"], int(signal.SIGSEGV))
        self.assertIn("ValueError: bad", result["error"]["error_message"])

    def test_restart_resumes_from_the_newest_checkpoint(self):
        (self.folder / "train.py").write_text("""
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
attempt = int(os.environ["DTRAIN_ATTEMPT"]); start = 0
if "DTRAIN_CHECKPOINT" in os.environ:
    c = os.environ["DTRAIN_CHECKPOINT"]
    start = json.load(open(os.path.join(c, "manifest.json")))["step"]
print("attempt", attempt, "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], "from", start, flush=True)
d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "w%d" % attempt); os.makedirs(d)
open(os.path.join(d, "w"), "w").write("x")
s.sendall(json.dumps({"type": "checkpoint", "step": start + 10, "path": d, "ack": True}).encode() + b"\\n")
print(f.readline(), flush=True)
sys.exit(0 if attempt == 3 else 1)
""")
        done = self.run_dtrain("submit", "--max-restarts", "2", "--", "python3", "train.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for line in ("attempt 1 restart 0 from 0", "attempt 2 restart 1 from 10",
                     "attempt 3 restart 2 from 20"):
            self.assertIn(line, done.stdout)
        self.assertEqual([a["state"] for a in self.json("result")["attempts"]],
                         ["failed", "failed", "succeeded"])

    def submit_yaml(self, text):
        (self.folder / "job.yaml").write_text(text)
        return self.run_dtrain("submit", self.folder / "job.yaml")

    def test_the_restart_policy_of_a_job(self):
        done = self.submit_yaml("command: '[ $DTRAIN_ATTEMPT = 3 ] && exit 7; exit 75'\n"
                                "max_restarts: 9\nrestart: {on: [75], backoff_s: 1}\n")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.json("result")["exit_code"], 7)
        self.assertIn("restart.on does not name it (exit_code)", done.stdout + done.stderr)
        attempts = self.json("result")["attempts"]
        self.assertEqual([a["counted"] for a in attempts], [True, True, False])
        at = [[datetime.datetime.fromisoformat(a[key].replace("Z", "+00:00")) for key in ("created", "ended")]
              for a in attempts]
        for before, after, least in zip(at, at[1:], (1, 2)):
            self.assertGreaterEqual((after[0] - before[1]).total_seconds(), least - 0.01)

    def test_what_would_only_fail_again_is_not_tried(self):
        (self.folder / "train.py").write_text("""
import json, os, socket, sys, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
s.sendall(json.dumps({"type": "metrics", "step": 5, "metrics": {"loss": 1}, "ack": True}).encode() + b"\\n")
f.readline()
sys.exit("bad sample, seen by process %d at %f" % (os.getpid(), time.time()))
""")
        done = self.submit_yaml("command: [python3, train.py]\nmax_restarts: 9\n")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("the same at step 5 as the attempt before", done.stdout + done.stderr)
        self.assertEqual([(a["failure"], a["step"]) for a in self.json("result")["attempts"]],
                         [("exit_code", 5)] * 2)

    def test_a_corrupt_newest_checkpoint_is_passed_over(self):
        (self.folder / "train.py").write_text("""
import json, os, socket, sys, glob
attempt = int(os.environ["DTRAIN_ATTEMPT"])
print("from", os.path.basename(os.environ.get("DTRAIN_CHECKPOINT", "nothing")), flush=True)
if attempt == 2: sys.exit(0)
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
for step in (1, 2):
    d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "w%d" % step); os.makedirs(d)
    open(os.path.join(d, "w"), "w").write("x" * 100)
    s.sendall(json.dumps({"type": "checkpoint", "step": step, "path": d, "ack": True}).encode() + b"\\n")
    path = json.loads(f.readline())["path"]
open(glob.glob(path + "/shard-*/w")[0], "w").write("short")
sys.exit(1)
""")
        done = self.run_dtrain("submit", "--max-restarts", "1", "--", "python3", "train.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("from checkpoint_000000", done.stdout)
        self.assertIn("checkpoint_000001 is not whole and is passed over", done.stdout + done.stderr)

    def test_ctrl_c_detaches_and_the_job_goes_on(self):
        follower = self.start("submit", "--", "/bin/sh", "-c", "echo here; sleep 1000")
        eventually(lambda: any(j["state"] == "running" for j in self.json("status")["jobs"]),
                   "it runs")
        follower.send_signal(signal.SIGINT)
        out, _ = follower.communicate(timeout=30)
        self.assertEqual(follower.returncode, 130)
        self.assertIn("dtrain logs -f", out)
        self.assertEqual(self.json("status")["jobs"][0]["state"], "running")


class LargeOutput(ClusterCase):
    def test_a_follower_of_much_output_sees_the_end(self):
        for _ in range(3):
            done = self.run_dtrain("submit", "--nproc-per-node", "2", "--", "/bin/sh", "-c",
                                   "head -c 20000000 /dev/zero | tr '\\0' 'x' | fold -w 99")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sum(line.count("x") for line in done.stdout.split("\n")), 40000000)

    def test_every_byte_of_a_flood_comes_through(self):
        """Two ranks write 40 MB each, one of them a single line; sums are compared."""
        flood = ("import os, random, sys\n"
                 "def flood(rank):\n"
                 "    piece = bytes(random.Random(rank).choices(range(256), k=65528))\n"
                 "    piece = piece.replace(b'\\n', b'x') if rank else piece\n"
                 "    return b''.join(b'%08d' % number + piece for number in range(640))\n")
        program = self.folder / "flood.py"
        program.write_text(flood + "sys.stdout.buffer.write(flood(int(os.environ['RANK'])))\n")
        written = {}
        exec(flood, written)
        job = self.submit(f"python3 '{program}'", "--nproc-per-node", "2")
        self.wait_state(job, "succeeded")
        for rank in (0, 1):
            want = hashlib.sha256(written["flood"](rank)).hexdigest()
            self.assertEqual(hashlib.sha256(self.rank_output(job, rank).read_bytes()).hexdigest(), want)
            target = self.folder / f"pulled{rank}"
            self.ok("pull", job, "--logs", "-o", target)
            got = next(target.rglob(f"{rank}.out"))
            self.assertEqual(hashlib.sha256(got.read_bytes()).hexdigest(), want)


if __name__ == "__main__":
    main()
