"""submit, result, stop, rm, pull and the exit codes."""

from harness import *


class Jobs(ClusterCase):
    def test_exit_codes_follow_the_job(self):
        self.assertEqual(self.run_dtrain("submit", "--", "/bin/true").returncode, 0)
        self.assertEqual(self.run_dtrain("submit", "--", "/bin/sh", "-c", "exit 7").returncode, 1)
        self.assertEqual(self.json("result")["exit_code"], 7)
        self.assertEqual(self.run_dtrain("submit", "no_such.yaml").returncode, 2)
        self.assertEqual(self.run_dtrain("submit", "--", "/no/such/program").returncode, 2)
        job = self.submit("sleep 1000")
        self.wait_state(job, "running")
        follower = self.start("logs", "-f", job)
        self.ok("stop", job)
        self.assertEqual(follower.wait(DEADLINE_S), 3)
        self.assertEqual(self.job(job)["state"], "stopped")

    def test_the_environment_is_torchruns(self):
        out = self.ok("submit", "--nproc-per-node", "2", "--env", "MINE=1", "--max-restarts", "3", "--",
                      "/bin/sh", "-c", "env -0 | sort -z | tr '\\n\\0' ' \\n' | sed \"s/^/<$RANK>/\"")
        ranks = {}
        for rank, name, value in re.findall(r"<(\d)>(\w+)=(.*)", out):
            ranks.setdefault(int(rank), {})[name] = value
        self.assertEqual(set(ranks), {0, 1})
        for rank, env in ranks.items():
            want = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                    "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "NODE_RANK": 0, "ROLE_RANK": rank,
                    "ROLE_NAME": "default", "ROLE_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                    "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 3,
                    "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
                    "OMP_NUM_THREADS": 1, "PYTHONUNBUFFERED": 1, "DTRAIN_ATTEMPT": 1, "MINE": 1}
            for name, value in want.items():
                self.assertEqual(env.get(name), str(value), f"rank {rank}: {name}")
            self.assertEqual(env["TORCHELASTIC_RUN_ID"], env["DTRAIN_JOB_ID"])
            self.assertIn("TORCHELASTIC_ERROR_FILE", env)
            self.assertIn("DTRAIN_REPORT_SOCKET", env)
            self.assertEqual(env["DTRAIN_NODE_IPS"].strip(), "127.0.0.1")
            self.assertGreater(int(env["MASTER_PORT"]), 0)
        self.assertEqual(ranks[0]["MASTER_PORT"], ranks[1]["MASTER_PORT"])
        self.assertIn("DTRAIN_MASTER_LISTEN_FD", ranks[0])
        self.assertNotIn("DTRAIN_MASTER_LISTEN_FD", ranks[1])

    def test_the_same_variables_as_torchrun_sets(self):
        """torchrun's list, from its documentation, against what a rank of ours has."""
        torchruns = """LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE
            GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT
            TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
            TORCH_NCCL_ASYNC_ERROR_HANDLING TORCHELASTIC_ERROR_FILE""".split()
        out = self.ok("submit", SOURCE / "examples" / "env" / "train_job.yaml")
        for name in torchruns:
            self.assertRegex(out, rf"(?m)\b{name}=", name)

    def test_metrics_checkpoints_result_and_pull(self):
        script = """
            d=$DTRAIN_STORAGE_PATH/work; mkdir -p $d
            python3 - <<'P'
import json, os, socket
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
def ask(o):
    s.sendall(json.dumps({**o, "ack": True}).encode() + b"\\n"); return json.loads(f.readline())
for step, score in ((1, 0.5), (2, 0.9), (3, 0.7)):
    d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work", str(step)); os.makedirs(d)
    open(os.path.join(d, "weights"), "w").write("w" * 100000 * step)
    assert ask({"type": "metrics", "step": step, "metrics": {"score": score}}) == {"ok": True}
    a = ask({"type": "checkpoint", "step": step, "path": d, "metrics": {"score": score}})
    assert a.get("ok") and a["path"].endswith("checkpoint_%06d" % (step - 1)), a
a = ask({"type": "checkpoint", "step": 4, "path": "/no/such/folder"}); assert "error" in a, a
s.sendall(b"this is not JSON\\n" + b"x" * 100000 + b"\\n")
assert ask({"type": "metrics", "step": 5, "metrics": {"score": 0.7, "last": 1}}) == {"ok": True}
P
        """
        (self.folder / "job.yaml").write_text(
            "name: keeper\ncommand: ['/bin/sh', './job.sh']\n"
            "checkpoint: {num_to_keep: 2, score_attribute: score, score_order: max}\n")
        (self.folder / "job.sh").write_text(script)
        done = self.run_dtrain("submit", "job.yaml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = self.json("result")
        self.assertEqual(result["state"], "succeeded")
        self.assertEqual(result["metrics"]["score"], 0.7)
        self.assertEqual(result["metrics"]["last"], 1)
        self.assertEqual(result["best_checkpoint"]["step"], 2)
        self.assertEqual([c["step"] for c in result["checkpoints"]], [2, 3])
        for checkpoint in result["checkpoints"]:
            self.assertTrue((Path(checkpoint["path"]) / "manifest.json").exists())
        self.assertEqual(self.ok("result").count("checkpoint_000000"), 0)

        target = self.folder / "pulled"
        self.ok("pull", "-o", target)
        files = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
        weights = [p for p in files if p.name == "weights"]
        self.assertEqual(len(weights), 2, files)
        self.assertTrue(any(p.name == "0.out" for p in files), files)
        self.assertEqual(sorted((target / p).stat().st_size for p in weights), [200000, 300000])
        # Broken off in the middle: the second pull mends it.
        victim = target / weights[0]
        victim.write_bytes(victim.read_bytes()[:1000])
        self.ok("pull", "-o", target)
        self.assertGreater(victim.stat().st_size, 1000)

    def test_stop_reaches_setsid_children_that_ignore_sigterm(self):
        job = self.submit("trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' & "
                          "echo up; while :; do sleep 1000; done", "--stop-grace-s", "1")
        self.wait_state(job, "running")
        env = f"DTRAIN_JOB_ID={job}"
        eventually(lambda: len(processes_with_environment(env)) >= 4, "the children are there")
        self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.assertEqual(processes_with_environment(env), [])

    def test_queue_priority_dry_run_and_reason(self):
        cpus = self.json("status")["nodes"][0]["cpus"]
        first = self.submit("sleep 1000", "--nproc-per-node", cpus)
        self.wait_state(first, "running")
        low = self.submit("true", "--nproc-per-node", cpus)
        high = self.submit("true", "--nproc-per-node", cpus, "--priority", "5")
        status = {j["job"]: j for j in self.json("status")["jobs"]}
        self.assertEqual(status[low]["state"], "queued")
        self.assertTrue(status[low]["reason"])
        done = self.run_dtrain("submit", "--dry-run", "--json", "--cpus", cpus * 100, "--", "/bin/true")
        self.assertEqual(done.returncode, 1)
        plan = json.loads(done.stdout)
        self.assertFalse(plan["fits"])
        self.assertTrue(plan["reason"])
        after = self.submit("true", "--after", first)
        self.ok("stop", first)
        for job in (low, high):
            self.wait_state(job, "succeeded")
        self.wait_state(after, "failed")
        ended = {j["job"]: j["started"] for j in self.json("status")["jobs"]}
        self.assertLess(ended[high], ended[low])

    def test_rm_forgets_an_ended_job_only(self):
        running = self.submit("sleep 1000")
        self.wait_state(running, "running")
        self.assertNotEqual(self.run_dtrain("rm", running).returncode, 0)
        self.ok("stop", running)
        self.wait_state(running, "stopped")
        self.ok("rm", running)
        self.assertEqual(self.json("status")["jobs"], [])
        eventually(lambda: not list(self.root().glob(f"nodes/*/jobs/{running}")), "its folder is gone")

    def test_secrets_are_seen_by_ranks_only(self):
        secret = "hunter2-very-secret"
        (self.folder / "job.yaml").write_text(
            "name: secretive\nsecrets: [API_KEY]\n"
            "command: 'test -n \"$API_KEY\" && echo ${#API_KEY} long && sleep 1000'\n")
        job = self.json("submit", "-d", "job.yaml", env={"API_KEY": secret})["job"]
        eventually(lambda: f"{len(secret)} long" in self.ok("logs", job), "the rank has it")
        for line in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.split("\n"):
            self.assertNotIn(secret, line)
        self.assertNotIn(secret, self.ok("status", "--json") + self.ok("result", job, "--json"))
        def holders():
            found = []
            for path in below(self.root()):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file() and secret.encode() in path.read_bytes():
                        found.append(path)
            return found
        for path in holders():
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)
            self.assertIn("secrets", str(path.relative_to(self.root())))
        self.ok("stop", job, "--grace-s", "0") if "--grace-s" in self.ok("stop", "--help") else self.ok("stop", job)
        self.wait_state(job, "stopped")
        self.assertEqual(holders(), [])


DEADLINE_S = DEADLINE

if __name__ == "__main__":
    main()
