"""`dtrain tune` on a real cluster: by YAML and by flags, followed, left and come back to, stopped and resumed,
and what came of it."""

import csv
import fcntl
import io
import pty
import shutil
import struct
import termios

from harness import *

# Reports an accuracy that depends on lr alone, until its last step or until a file is there; each step with a
# checkpoint if it is asked for.
TRAIN = """
import json, os, socket, sys, time
lr, last, keeps = float(sys.argv[1]), int(sys.argv[2]), "keep" in sys.argv
assert json.loads(os.environ["DTRAIN_PARAMS"])["lr"] == lr if "DTRAIN_PARAMS" in os.environ else True
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["DTRAIN_REPORT_SOCKET"]); f = s.makefile()
def say(**o):
    s.sendall(json.dumps({**o, "ack": True}).encode() + b"\\n")
    answer = json.loads(f.readline()); assert answer.get("ok"), answer
step, start = 0, os.environ.get("DTRAIN_CHECKPOINT")
if start:
    step = int(open(os.path.join(start, "shard-00000-of-00001", "step")).read())
print("lr", lr, "from step", step, flush=True)
while step < last and not os.path.exists("go"):
    step += 1
    if last > 100:
        time.sleep(0.05)
    say(type="metrics", step=step, metrics={"accuracy": 1 - (lr - 0.3) ** 2 + min(step, 9) / 1000, "loss": lr})
    if keeps:
        d = os.path.join(os.environ["DTRAIN_STORAGE_PATH"], "work-%d" % step)
        os.makedirs(d); open(os.path.join(d, "step"), "w").write(str(step))
        say(type="checkpoint", step=step, path=d)
"""
LONG = 100_000  # steps: until "go" is there

YAML = """
name: quick
command: [python3, train.py, "{lr}", "3", keep]
resources: {CPU: 0.5}
space:
  lr: {loguniform: [1e-3, 1]}
  kind: {choice: [a, b]}
metric: accuracy
mode: max
num_samples: 20
search: {algorithm: random, seed: 3}
"""


class Tune(ClusterCase):
    nodes = 2

    def setUp(self):
        super().setUp()
        (self.folder / "train.py").write_text(TRAIN)

    def flags(self, *more, last=3, trials=20, words=()):
        return ("tune", "--num-samples", trials, "--param", "lr=uniform:0:1", "--metric", "accuracy", "--mode", "max",
                "--seed", "1", "--name", "flags", "--cpus", "0.5", "--stop-grace-s", "2", *more, "--",
                "python3", "train.py", "{lr}", last, *words)

    def search(self):
        return self.json("tune", "status")

    def state_of_search(self):
        return self.search()["state"]

    def test_a_search_by_yaml_and_what_came_of_it(self):
        (self.folder / "search.yaml").write_text(YAML)
        self.assertIn("20 trials, the first with", self.ok("tune", "search.yaml", "--dry-run"))
        done = self.run_dtrain("tune", "search.yaml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^quick-\w{6} running$")
        name = lines[0].split()[0]
        ended = [line for line in lines if re.match(r"trial \d+ complete after 3 iterations, accuracy [\d.]+", line)]
        self.assertEqual(len(ended), 20, done.stdout)
        bests = [float(re.search(r"accuracy ([\d.]+)", line)[1]) for line in lines if line.startswith("best so far")]
        self.assertEqual(bests, sorted(bests))
        self.assertRegex(lines[-2], rf"^{name} succeeded, 20 trials: 20 complete$")
        self.assertIn(f"dtrain tune best {name}", done.stderr)
        self.assertNotIn("\x1b", done.stdout + done.stderr)

        # Each trial once, in the order of its number, as it was reported.
        rows = list(csv.DictReader(io.StringIO(self.ok("tune", "result", "--csv"))))
        self.assertEqual([row["trial"] for row in rows], [str(i) for i in range(20)])
        for row in rows:
            lr = float(row["config/lr"])
            self.assertEqual(float(row["accuracy"]), 1 - (lr - 0.3) ** 2 + 3 / 1000)
            self.assertEqual(float(row["loss"]), lr)
            self.assertIn(row["config/kind"], ("a", "b"))
            self.assertEqual((row["state"], row["iteration"]), ("complete", "3"))
        best = max(rows, key=lambda row: float(row["accuracy"]))
        said = self.json("tune", "best", "quick")
        self.assertEqual(self.json("tune", "best", "quick", "--scope", "all")["trial"], said["trial"])
        self.assertEqual((said["trial"], said["job"]), (int(best["trial"]), best["job"]))
        self.assertTrue(Path(said["checkpoint"]["path"]).is_dir())
        self.assertIn("quick-", self.ok("tune", "result", "--all"))
        self.assertEqual(len(self.json("tune", "result")["trials"]), 20)

        # A trial is a job as any other; status has searches apart.
        self.assertIn(f"lr {float(best['config/lr'])} from step 0", self.ok("logs", best["job"]))
        self.ok("pull", best["job"], "-o", "best")
        self.assertTrue(below(self.folder / "best", "step"))
        status = self.ok("status")
        self.assertRegex(status, rf"{name} +succeeded +20 ")
        self.assertNotIn(best["job"], status)
        self.assertIn(name, self.ok("tune", "list"))

        for kind in ("curves", "params", "importance"):
            data = self.json("tune", "plot", "--kind", kind)
            self.assertEqual((data["search"], data["kind"]), (name, kind))
        self.assertEqual(data["parameters"][0]["name"], "lr")
        if shutil.which("gnuplot"):
            for kind in ("curves", "params", "importance"):
                self.assertEqual(self.ok("tune", "plot", "--kind", kind, "-o", f"{kind}.svg"), f"wrote {kind}.svg\n")
                self.assertIn("<svg", (self.folder / f"{kind}.svg").read_text())
                self.ok("tune", "plot", "--kind", kind)
        self.assertIn("only trials of scheduler pbt", self.run_dtrain("tune", "plot", "--kind", "family").stderr)

        self.assertEqual(self.ok("tune", "rm", name), f"removed {name}\n")
        self.assertNotEqual(self.run_dtrain("result", best["job"]).returncode, 0)
        self.assertEqual(self.ok("tune", "list"), "no searches yet\n")

        # The command that trains it again does: a search of its own, since `kind` is on no command line.
        self.assertEqual(said["command"][:2], ["dtrain", "tune"])
        again = self.run_dtrain(*said["command"][1:], "3")
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        [only] = self.json("tune", "result")["trials"]
        self.assertEqual(only["value"], said["value"])

    def test_asha_by_flags_an_event_a_line(self):
        done = self.run_dtrain(*self.flags("--json", "--scheduler", "asha:max_t=9:reduction_factor=3", last=9))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(events[0]["type"], "submitted")
        self.assertEqual((events[-1]["type"], events[-1]["state"]), ("end", "succeeded"))
        ends = {e["trial"]: e["state"] for e in events
                if e["type"] == "trial" and e["state"] in ("complete", "stopped", "failed")}
        self.assertEqual(sorted(ends), list(range(20)))
        self.assertNotIn("failed", ends.values())
        self.assertEqual(events[-1]["best"]["trial"], [e for e in events if e["type"] == "best"][-1]["trial"])

    def test_ctrl_c_leaves_it_and_status_comes_back(self):
        follower = self.start(*self.flags(last=LONG, trials=4), stderr=subprocess.PIPE)
        line = follower.stdout.readline()
        while "trial 0 running" not in line:
            line = follower.stdout.readline()
            self.assertTrue(line)
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=DEADLINE)
        self.assertEqual(follower.returncode, 130, out + err)
        name = re.search(r"detached; (\S+) goes on", err)[1]
        self.assertIn(f"dtrain tune status -f {name}", err)
        self.assertEqual(self.state_of_search(), "running")
        again = self.start("tune", "status", "-f", name)
        self.assertIn("trial 0 running", again.stdout.readline() + again.stdout.readline())
        (self.folder / "go").touch()
        out, _ = again.communicate(timeout=DEADLINE)
        self.assertEqual(again.returncode, 0, out)
        self.assertIn(f"{name} succeeded, 4 trials: 4 complete", out)

    def test_ctrl_c_beside_a_head_that_does_not_answer(self):
        name = self.ok(*self.flags("-d", last=LONG, trials=2)).strip()
        silent, asked = self.silent_head("?trials=")
        follower = self.start("tune", "status", "-f", name, env=silent)
        self.assertTrue(asked.wait(DEADLINE))
        self.assertIn(f"detached; {name} goes on", self.leaves_at_once(follower))

    def test_stop_and_resume_and_a_trial_that_a_person_stops(self):
        name = self.ok(*self.flags("-d", "--max-concurrent", "2", last=LONG, trials=3, words=["keep"])).strip()
        eventually(lambda: self.search()["counts"]["running"] == 2, "two run")
        follower = self.start("tune", "status", "-f")
        refused = self.run_dtrain("tune", "rm", name)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"dtrain tune stop {name}", refused.stderr)
        eventually(lambda: all(t["checkpoint"] for t in self.json("tune", "result")["trials"][:2]), "checkpoints")
        stopped = self.ok("tune", "stop")
        self.assertEqual(stopped, f"{name} stopped\n")
        out, _ = follower.communicate(timeout=DEADLINE)
        self.assertEqual(follower.returncode, 3, out)
        self.assertIn(f"{name} stopped", out)
        self.assertEqual([(t["trial"], t["state"]) for t in self.json("tune", "result")["trials"]],
                         [(0, "paused"), (1, "paused")])
        self.ok("tune", "resume", "-d")
        trials = eventually(lambda: (t := self.json("tune", "result")["trials"]) and len(t[0]["legs"]) == 2
                            and t[0]["state"] == "running" and t, "the first trial goes on")
        # One trial, by its job: the search goes on without it.
        self.ok("stop", trials[0]["job"])
        ended = eventually(lambda: (t := self.json("tune", "result")["trials"][0])["state"] == "stopped" and t,
                           "the trial is stopped")
        self.assertEqual(ended["job"], trials[0]["job"])
        (self.folder / "go").touch()
        out = self.ok("tune", "status", "-f")
        self.assertIn(f"{name} succeeded, 3 trials: 2 complete, 1 stopped", out)

    def test_a_terminal_has_a_table_drawn_over_in_place(self):
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 15, 60, 0, 0))
        (self.folder / "search.yaml").write_text(YAML)
        table = subprocess.Popen([str(DTRAIN), "tune", "search.yaml"], env={**self.env, "TERM": "xterm"},
                                 cwd=self.folder, stdin=child, stdout=child, stderr=child)
        self.started.append(table)
        os.close(child)
        said = b""
        with contextlib.suppress(OSError):
            while piece := os.read(parent, 65536):
                said += piece
        os.close(parent)
        self.assertEqual(table.wait(DEADLINE), 0, said)
        text = said.decode()
        self.assertIn("best so far: trial", text)
        pictures = re.split(r"\x1b\[\d+A\x1b\[J", text)
        self.assertGreater(len(pictures), 1)
        for picture in pictures[:-1]:
            lines = picture.replace("\r", "").split("\n")
            self.assertLessEqual(len(lines), 15, picture)
            for line in lines:
                self.assertLess(len(line), 60, picture)
        self.assertIn("20 complete", pictures[-1])
        self.assertIn("TRIAL", pictures[-1])

    def test_pbt_has_a_family(self):
        name = self.ok(*self.flags(
            "-d", "--scheduler", "pbt:perturbation_interval=2", "--max-concurrent", "4", "--num-to-keep", "1",
            last=LONG, trials=4, words=["keep"])).strip()
        eventually(lambda: self.run_dtrain("tune", "plot", "--kind", "family", "--json").returncode == 0,
                   "a trial is moved")
        (self.folder / "go").touch()
        self.assertIn(f"{name} succeeded", self.ok("tune", "status", "-f"))
        self.assertTrue(self.json("tune", "plot", "--kind", "family")["exploitations"])
        if shutil.which("gnuplot"):
            self.ok("tune", "plot", "--kind", "family", "-o", "family.svg")
            self.assertIn("<svg", (self.folder / "family.svg").read_text())

    def test_its_files_and_secrets_go_along(self):
        (self.folder / "files.py").write_text(
            "import os\nassert os.getcwd() != os.environ['WHERE'], 'in place'\n"
            "assert os.environ['TOKEN'] == 's3' + 'cret'\nexec(open('train.py').read())\n")
        done = self.run_dtrain(
            *self.flags("--secret", "TOKEN", "--env", f"WHERE={self.folder}", trials=3)[:-4],
            "python3", "files.py", "{lr}", "2", env={"DTRAIN_STAGE": "1", "TOKEN": "s3cret"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 complete", done.stdout)
        best = self.ok("tune", "best", "-q").strip()
        self.assertIn("from step 0", self.ok("logs", best))
        for verb in ("stop", "rm", "logs", "result"):
            said = self.run_dtrain(verb, "flags-nothing")
            self.assertNotEqual(said.returncode, 0, said.stdout)
            self.assertIn("flags-nothing", said.stderr)
            self.assertNotIn("it is a search", said.stderr)
        self.assertIn(best, self.ok("status", "--trials"))
        name = self.search()["search"]
        # The secret is nowhere any more, neither the search's nor its trials'.
        def holders(text):
            found = []
            for path in below(self.folder / "state"):
                with contextlib.suppress(OSError):  # gone by now
                    found += [path] if path.is_file() and text in path.read_bytes() else []
            return found
        self.assertGreaterEqual(len(holders(b" from step 0\n")), 3)  # what the ranks wrote
        eventually(lambda: not holders(b"s3cret"), "its secrets are gone")
        self.assertNotIn("s3cret", self.ok("tune", "result", "--json") + self.ok("result", best, "--json"))
        for verb in ("stop", "rm", "logs", "result"):
            said = self.run_dtrain(verb, name)
            self.assertEqual(said.returncode, 2, said.stdout)
            self.assertIn("it is a search: dtrain tune", said.stderr)

    def test_failures_and_what_is_wrong(self):
        (self.folder / "fails.py").write_text("import sys; sys.exit('boom')")
        done = self.run_dtrain("tune", "--param", "lr=uniform:0:1", "--num-samples", "9", "--metric", "a", "--mode",
                               "min", "--fail-fast", "3", "--cpus", "0.5", "--", "python3", "fails.py", "{lr}")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"trial \d failed after 0 iterations")
        self.assertRegex(done.stdout, r"\d failed: \d trials failed, and none ended well \(fail_fast\)")
        none = self.run_dtrain("tune", "best")
        self.assertEqual(none.returncode, 2, none.stdout)
        self.assertIn("no trial of", none.stderr)
        wrong = self.run_dtrain(*self.flags("--gpus", "99"))
        self.assertEqual(wrong.returncode, 1, wrong.stdout)
        self.assertEqual(self.run_dtrain(*self.flags("--gpus", "99", "--dry-run")).returncode, 1)
        usage = self.run_dtrain("tune", "--param", "lr=uniform:0:1", "--", "python3", "train.py", "{lrr}")
        self.assertEqual(usage.returncode, 2)
        self.assertIn("did you mean {lr}?", usage.stderr)


if __name__ == "__main__":
    main()
