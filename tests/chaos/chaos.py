#!/usr/bin/env python3
"""Real hosts, real jobs, and faults at random from a seed; then what dtrain promises is asked of what was seen.
scripts/chaos runs it, and README.md here says what it does."""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

BUILD = Path(os.environ["DTRAIN_BUILD"]).resolve()
SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "support"))

import faults  # noqa: E402
import lab as laboratory  # noqa: E402
from checker import Seen, broken  # noqa: E402
from hosts import Hosts, UID  # noqa: E402

DTRAIN = BUILD / "cli" / "dtrain"
MLP = BUILD / "examples" / "mnist_mlp" / "mnist_mlp"
HEALED_S = 300  # until all is well again once the faults are over
CALL_S = 180    # of one command
# Of the jobs some hundred ranks are killed, at no step of theirs: that a job gives up is not what is asked.
STUBBORN = {"max_restarts": 1_000_000, "restart": {"same_failure": "restart", "backoff_s": 1}}
TRAINING = [str(MLP), "--limit", "2000", "--epochs", "20", "--batch-size-per-worker", "32", "--checkpoint-every", "50"]


class Chaos:
    def __init__(self, lab, options, folder):
        self.lab, self.options, self.folder = lab, options, folder
        self.yaml = lab.cluster_yaml(folder / "cluster.yaml", "chaos")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DTRAIN_")}
        # The agent whose clock can be set: ../faults.
        self.env.update(XDG_STATE_HOME=str(folder / "state"), NO_COLOR="1",
                        DTRAIN_AGENT=str(BUILD / "tests" / "faults" / "dtrain-agent"))
        for host in lab:
            host.path("~/faults").mkdir()
            os.chown(host.path("~/faults"), UID, UID)
        self.began = time.monotonic()
        self.seen = Seen()
        self.counting = []           # ids of the jobs that write numbers
        self.training = []           # ids of those that train
        self.over = threading.Event()
        self.needs_up = threading.Event()
        self.history = open(folder / "history.jsonl", "w", buffering=1)
        self.writing = threading.Lock()

    def say(self, words, **more):
        at = time.monotonic() - self.began
        with self.writing:
            self.history.write(json.dumps({"at": round(at, 3), "time": time.time(), "what": words, **more}) + "\n")
            if not self.options.quiet:
                print(f"{at:7.1f} s  {words}", flush=True)

    def dtrain(self, *args):
        return subprocess.run([str(DTRAIN), *map(str, args)], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=CALL_S)

    def ok(self, *args):
        done = self.dtrain(*args)
        if done.returncode:
            raise RuntimeError(f"dtrain {' '.join(map(str, args))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, verb, *args):
        return json.loads(self.ok(verb, "--json", *args).strip().split("\n")[-1])

    # ---- what runs

    def submit(self, *args):
        """Its id, once it is acknowledged; None when it was not."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            done = self.dtrain("submit", "--json", "-d", *args)
            if done.returncode == 0:
                job = json.loads(done.stdout.strip().split("\n")[-1])["job"]
                self.seen.acknowledged.append(job)
                return job
            self.say("a submit was not acknowledged: " + (done.stderr or done.stdout).strip().split("\n")[0])
        return None

    def submit_yaml(self, name, command, **more):
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps({"name": name, "command": command, **STUBBORN, **more}))
        return self.submit(path)

    def submit_counting(self, name, **more):
        job = self.submit_yaml(name, f"exec /usr/bin/python3 {SOURCE}/tests/chaos/worker.py", nnodes=2,
                               stop_grace_s=2, **more)
        assert job, "no job runs yet, and no fault either"
        self.counting.append(job)
        return job

    def keep_submitting(self):
        """Small jobs, and a training as soon as the one before has ended."""
        number = 0
        while not self.over.wait(3):
            number += 1
            self.submit_yaml(f"small-{number}", f"echo done {number}")
            with contextlib.suppress(Exception):
                if not self.training or self.json("result", self.training[-1])["state"] == "succeeded":
                    if job := self.submit_yaml("train", TRAINING, nnodes=2):
                        self.training.append(job)

    def keep_up(self):
        """As an operator would: what has been rebooted is brought up, again until it is."""
        while not self.over.is_set():
            if not self.needs_up.wait(0.2):
                continue
            self.needs_up.clear()
            try:
                is_up = self.dtrain("up", self.yaml).returncode == 0
            except subprocess.TimeoutExpired:
                is_up = False
            if not is_up:
                self.needs_up.set()
                self.over.wait(1)

    # ---- what happens to it

    def inflict(self):
        """The plan's faults, each undone when it has lasted."""
        plan = faults.plan(self.options.seed, self.options.minutes * 60, len(self.lab))
        # Of one that is over at once the end comes behind its beginning.
        turns = sorted([(fault.at, 0, fault) for fault in plan] +
                       [(fault.at + fault.lasts, 1, fault) for fault in plan], key=lambda turn: turn[:2])
        began = time.monotonic()
        since = {}
        for at, is_end, fault in turns:
            time.sleep(max(0.0, began + at - time.monotonic()))
            if not is_end:
                self.say(str(fault))
                since[fault] = time.time()
                faults.do(self.lab, fault)
                continue
            if fault.lasts:
                self.say(f"over: {fault}")
            faults.undo(self.lab, fault)
            if fault.kind in faults.STOPS:
                self.seen.stopped.append((since[fault], time.time()))
            if fault.kind in faults.NEEDS_UP:
                self.needs_up.set()
        time.sleep(max(0.0, began + self.options.minutes * 60 - time.monotonic()))

    def heal(self):
        until = time.monotonic() + HEALED_S
        while True:
            done = self.dtrain("up", self.yaml)
            if done.returncode == 0:
                status = self.json("status")
                if all(node["state"] == "ready" for node in status["nodes"]):
                    return
            if time.monotonic() > until:
                raise RuntimeError(f"not well again in {HEALED_S} s: {done.stdout}{done.stderr}{self.dtrain('status').stdout}")
            time.sleep(0.5)

    def wait_for_ends(self):
        until = time.monotonic() + HEALED_S
        while left := [job for job in self.json("status", "--all")["jobs"]
                       if job["state"] not in ("succeeded", "failed", "stopped")]:
            if time.monotonic() > until:
                for job in left:
                    self.seen.left.append(f"{job['job']} is {job['state']} {HEALED_S} s later: {job['reason']}")
                return
            time.sleep(0.5)

    # ---- what is seen

    def collect(self, followers):
        seen = self.seen
        for job in self.json("status", "--all")["jobs"]:
            seen.jobs[job["job"]] = self.json("result", job["job"])
        for job in self.counting:
            for attempt in seen.jobs[job]["attempts"]:
                number = attempt["attempt"]
                seen.logs.update(lines_of(job, self.ok("logs", "--json", job, "--attempt", number)))
            seen.followed.update(lines_of(job, followers[job].all()))
            seen.events[job] = [row["message"] for row in rows(self.ok("logs", "-f", "--json", job))
                                if row["type"] == "event"]
        for job in self.training:
            for attempt in seen.jobs[job]["attempts"]:
                number = attempt["attempt"]
                seen.losses[job, number] = losses(self.ok("logs", job, "--attempt", number))
        for host in self.lab:
            for file in host.path("~/notes").glob("*"):
                job, rank = file.name.rsplit(".", 1)
                seen.notes.setdefault((job, int(rank)), []).extend(file.read_text().splitlines())
            seen.left += [f"{host.name}: process {pid} runs on"
                          for text in (*faults.RANKS, "dtrain-agent supervise") for pid in host.processes(UID, text)]

    def run(self):
        self.ok("up", self.yaml)
        first = self.submit_yaml("train", TRAINING, nnodes=2)
        self.wait_for_ends()
        self.seen.reference = losses(self.ok("logs", first))
        assert len(self.seen.reference) > 10, self.ok("logs", first)
        self.submit_counting("counts", nproc_per_node=2)
        self.seen.fenced.add(self.submit_counting("fenced", on_head_lost="stop"))
        followers = {job: Follower([str(DTRAIN), "logs", "-f", "--json", job], env=self.env, cwd=self.folder)
                     for job in self.counting}
        threads = [threading.Thread(target=work) for work in (self.keep_submitting, self.keep_up)]
        for thread in threads:
            thread.start()
        try:
            self.inflict()
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        self.say("the faults are over")
        self.heal()
        for host in self.lab:
            host.path("~/stop").touch()
        self.wait_for_ends()
        self.say("all have ended")
        self.collect(followers)


class Follower(threading.Thread):
    """A program that says as it goes what is read at once."""

    def __init__(self, command, **more):
        super().__init__(daemon=True)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, **more)
        self.said = ""
        self.start()

    def run(self):
        self.said = self.process.stdout.read()

    def all(self):
        self.join(CALL_S)
        if self.is_alive():
            raise RuntimeError("who follows does not end with the job")
        return self.said


def rows(text):
    return [json.loads(line) for line in text.splitlines() if line]


def lines_of(job, text):
    """{(job, attempt, rank): its lines on stdout}"""
    found = defaultdict(list)
    for row in rows(text):
        if row["type"] == "log" and row["stream"] == "out":
            found[job, row["attempt"], row["rank"]].append(row["text"])
    return found


def losses(text):
    return dict(re.findall(r"(?m)^\[0\] step (\d+)\s+loss (\S+)", text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when (default: 1)")
    parser.add_argument("--minutes", type=float, default=5, help="for how long (default: 5)")
    parser.add_argument("--hosts", type=int, default=4, help="the first is the head's (default: 4)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="what was seen goes there: history, logs, agents' logs")
    parser.add_argument("--quiet", action="store_true", help="the verdict alone")
    options = parser.parse_args()
    if reason := laboratory.available():
        print(f"skipped: {reason}")
        sys.exit(77)
    laboratory.enter()
    (laboratory.home() / ".ssh" / "config").write_text("Host *\n  ConnectTimeout 3\n")
    folder = laboratory.base() / "chaos"
    folder.mkdir()
    share = [SOURCE / "tests" / "chaos"]
    with Hosts(options.hosts, disk="3g", share=share) as lab:
        chaos = Chaos(lab, options, folder)
        try:
            chaos.run()
            found = broken(chaos.seen)
        except Exception as error:  # it is kept what there is
            found = [f"it did not come to its end: {type(error).__name__}: {error}"]
        if options.keep:
            keep(chaos, options.keep)
    for words in found:
        print("BROKEN  " + words)
    attempts = sum(len(job["attempts"]) for job in chaos.seen.jobs.values())
    print(f"seed {options.seed}, {options.minutes:g} min, {options.hosts} hosts: {len(chaos.seen.jobs)} jobs, "
          f"{attempts} attempts, {sum(map(len, chaos.seen.logs.values()))} lines: "
          + (f"{len(found)} promises broken; again by scripts/chaos --seed {options.seed} --minutes "
             f"{options.minutes:g} --hosts {options.hosts}" if found else "nothing lost"))
    sys.exit(1 if found else 0)


def keep(chaos, folder):
    folder.mkdir(parents=True, exist_ok=True)
    def copy(source, target):
        subprocess.run(["cp", "-a", source, target], check=False)
    copy(chaos.folder / "history.jsonl", folder)
    (folder / "jobs.json").write_text(json.dumps(chaos.seen.jobs, indent=1))
    for host in chaos.lab:
        (folder / host.name).mkdir(exist_ok=True)
        copy(host.path("~/notes"), folder / host.name)
        for log in host.path("~/.dtrain").rglob("*.log*"):
            copy(log, folder / host.name / "-".join(log.relative_to(host.path("~/.dtrain")).parts))


main()
