"""Drives the real dtrain as a user would: each test has a state folder of its own, so that tests run
side by side, and leaves nothing running."""

import contextlib
import fnmatch
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

BUILD = Path(os.environ["DTRAIN_BUILD"]).resolve()
SOURCE = Path(os.environ["DTRAIN_SOURCE"]).resolve()
DTRAIN = BUILD / "cli" / "dtrain"

# A step that takes longer than this is broken, however slow the machine is.
DEADLINE = 180
# No handler of an event loop may take so long: launcher/wire/loop.hpp.
HANDLER_LIMIT_MS = 50


def eventually(condition, what, deadline=DEADLINE, pause=None):
    """Waits for condition() to be true and returns its value. Looks a third of the time at most: what is waited for
    needs the processors too. The longer it has waited, the more seldom it looks; what is true for a moment alone wants
    a `pause` of its own, which does not grow."""
    start = time.monotonic()
    until = start + deadline
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > until:
            raise AssertionError(f"not within {deadline} s: {what}")
        least = max(0.005, min(0.05 * (now - start), 2)) if pause is None else pause
        time.sleep(max(least, min(2 * (now - began), 1)))


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def processes_with(text):
    """Pids of the processes whose command line holds `text`; never this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def processes_with_environment(entry):
    """Pids of the living processes whose environment holds NAME=VALUE."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def parent_of(pid):
    """None: it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def below(folder, pattern="*"):
    """Paths of that name in a tree in which others come and go, which rglob() does not stand."""
    return [Path(parent, name) for parent, folders, files in os.walk(folder)
            for name in fnmatch.filter(folders + files, pattern)]


def remove_group(group):
    """Removes a control group that killed processes have left."""
    if group.is_dir():
        for part in [*group.iterdir(), group]:
            if part.is_dir():
                with contextlib.suppress(OSError):
                    part.rmdir()


class Door(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("dtrain")
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class ClusterCase(unittest.TestCase):
    """A test with a local cluster of its own. `nodes` is how many it has; 0: none is brought up. With `apart` they do
    not know of each other that they are one machine."""

    nodes = 1
    apart = False

    def setUp(self):
        # A space in the path, as a user may have one.
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain e2e "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.leave_nothing)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DTRAIN_")}
        # Login shells of tests read no files of the user's, which may take their time.
        self.env.update(HOME=str(self.folder / "home"), XDG_STATE_HOME=str(self.folder / "state"), NO_COLOR="1",
                        DTRAIN_HANDLER_LIMIT_MS=str(HANDLER_LIMIT_MS))
        if self.apart:
            self.env["DTRAIN_TEST_MACHINES"] = "apart"
        (self.folder / "home").mkdir()
        self.started = []
        if self.nodes:
            self.write_cluster(self.nodes)
            self.ok("up", self.folder / "cluster.yaml")

    def leave_nothing(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        held_up = self.handlers_too_long()
        if self.pids():
            self.run_dtrain("down", "-y", "-c", self.name())
        eventually(self.nothing_runs, "the cluster's processes end")
        for record in (self.folder / "state").rglob("supervise.json"):
            with contextlib.suppress(OSError, ValueError):
                remove_group(Path(json.loads(record.read_text()).get("cgroup") or "/none"))
        self.assertEqual(held_up, [], f"handlers took longer than {HANDLER_LIMIT_MS} ms")

    def nothing_runs(self):
        """Kills what there is, also what was started again meanwhile; true once there is nothing."""
        left = self.pids()
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def name(self):
        return "e2e"

    def write_cluster(self, nodes):
        (self.folder / "cluster.yaml").write_text(
            f"cluster_name: {self.name()}\nprovider:\n  type: local\n  nodes: {nodes}\n")

    # ---- running dtrain

    def run_dtrain(self, *args, env=None, deadline=DEADLINE, stdin=subprocess.DEVNULL, **more):
        return subprocess.run([str(DTRAIN), *map(str, args)], env={**self.env, **(env or {})},
                              stdin=stdin, capture_output=True, text=True, timeout=deadline,
                              cwd=self.folder, **more)

    def ok(self, *args, **more):
        done = self.run_dtrain(*args, **more)
        self.assertEqual(done.returncode, 0, f"dtrain {args}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def json(self, *args, **more):
        verb, *rest = args
        return json.loads(self.ok(verb, "--json", *rest, **more))

    def start(self, *args, env=None, **more):
        """Starts dtrain in the background."""
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                "text": True, **more}
        process = subprocess.Popen([str(DTRAIN), *map(str, args)], env={**self.env, **(env or {})},
                                   cwd=self.folder, **more)
        self.started.append(process)
        return process

    def silent_head(self, target):
        """The environment of a dtrain for which the head never answers requests of such a target; and an event that
        one of them has come."""
        head = self.door().path
        listener = socket.socket(socket.AF_UNIX)
        path = str(self.folder / f"silent-{os.urandom(4).hex()}")
        listener.bind(path)
        listener.listen()
        self.addCleanup(listener.close)
        asked = threading.Event()

        def carry(source, sink):
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        def serve(caller):
            with caller, socket.socket(socket.AF_UNIX) as there:
                request = b""
                while b"\r\n" not in request and (data := caller.recv(1 << 16)):
                    request += data
                if target.encode() in request.split(b"\r\n")[0]:
                    asked.set()
                    carry(caller, there)  # until it hangs up
                    return
                there.connect(head)
                there.sendall(request)
                threading.Thread(target=carry, args=(caller, there), daemon=True).start()
                carry(there, caller)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return {"DTRAIN_HEAD_SOCKET": path}, asked

    def leaves_at_once(self, process, code=130):
        """By Ctrl-C, long before a request would have been given up. Gives what it said."""
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, code, out + (err or ""))
        self.assertLess(time.monotonic() - began, 25)
        return out + (err or "")

    def submit(self, script, *flags, **more):
        """Submits a shell script, detached; returns the job's id."""
        answer = self.json("submit", "-d", *flags, "--", "/bin/sh", "-c", script, **more)
        return answer["job"]

    def job(self, job):
        return self.json("result", job)

    def state(self, job):
        return next(j["state"] for j in self.json("status")["jobs"] if j["job"] == job)

    def wait_state(self, job, *states, deadline=DEADLINE):
        return eventually(lambda: (s := self.state(job)) in states and s,
                          f"{job} is {' or '.join(states)}", deadline)

    def newer_agent(self):
        """The agent as a later dtrain would bring it: another number, all else alike."""
        program = (BUILD / "agent" / "dtrain-agent").read_bytes()
        version = self.json("version")["version"]
        later = "9" + version[1:]
        path = self.folder / "dtrain-agent"
        path.write_bytes(program.replace(b"\0" + version.encode() + b"\0", b"\0" + later.encode() + b"\0"))
        path.chmod(0o755)
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(said, later)
        return path, version, later

    def kill_agents(self, role):
        """Kills all agents of a role, and waits until others are in their places."""
        pids = self.agents(role)
        self.assertTrue(pids, role)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(set(self.agents(role)) - set(pids)) == len(pids), f"{role} is back")

    def kill_all_agents(self):
        """Kills watch, head and nodes at once: one that is left a moment longer starts the others again."""
        def kill():
            stopped = set()
            while fresh := {pid for role in ("watch", "head", "node") for pid in self.agents(role)} - stopped:
                signal_all(fresh, signal.SIGSTOP)
                stopped |= fresh
            signal_all(stopped, signal.SIGKILL)
            return not stopped
        eventually(kill, "all agents have ended")

    # ---- looking at the machine

    def root(self):
        return self.folder / "state" / "dtrain" / "clusters" / self.name()

    def pids(self):
        return processes_with(str(self.folder))

    def agents(self, role, node=""):
        """Pids of the agents of a role: head, node, supervise, watch; of that node alone if it is named."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError, IndexError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if words[1] == role and (not node or any(f"/nodes/{node}/" in word + "/" for word in words)):
                    found.append(pid)
        return found

    def door(self):
        """A connection to the head's API."""
        return Door(next(s for s in self.sockets() if s.name == "head.sock"))

    def ask(self, method, target):
        door = self.door()
        door.request(method, target, body="{}")
        answer = door.getresponse()
        said = json.loads(answer.read())
        door.close()
        self.assertEqual(answer.status, 200, said)
        return said

    def sockets(self):
        """Paths of the unix sockets that this cluster's processes listen on."""
        inodes = set()
        for pid in self.pids():
            for fd in Path(f"/proc/{pid}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
        rows = [line.split() for line in Path("/proc/net/unix").read_text().split("\n")[1:]]
        return sorted({Path(row[7]) for row in rows if len(row) > 7 and row[6] in inodes
                       and row[7].startswith("/tmp/dtrain-")})

    def handlers_too_long(self):
        """Lines of the agents' logs about handlers that held an event loop up."""
        lines = []
        for log in below(self.folder / "state", "*.log*"):
            with contextlib.suppress(OSError):
                lines += [line for line in log.read_text(errors="replace").split("\n")
                          if "a handler held the loop up" in line]
        return lines

    def rank_output(self, job, rank, attempt=1, stream="out"):
        return next(self.root().glob(f"nodes/*/jobs/{job}/attempt-{attempt}/ranks/{rank}.{stream}"))


EPOLL_WAIT = "232"  # by its number


def stop_between_handlers(pid):
    """Stops an agent while it waits for something to do: no handler takes the time until it goes on for its own."""
    def stopped():
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stands still")
        if Path(f"/proc/{pid}/syscall").read_text().split()[0] == EPOLL_WAIT:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    eventually(stopped, "it is stopped while it waits")


STRANGER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
try:
    s.connect(sys.argv[1])
except PermissionError:
    print("not connected")
    sys.exit()
try:
    s.sendall(b"GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print("answered" if s.recv(10) else "hung up on")
except ConnectionError:
    print("hung up on")
"""


def stranger_at(path, way_open=False):
    """What another user gets who connects to a unix socket; with the way open, as if its folders and its own mode did
    not matter. Needs root."""
    at = os.open(path, os.O_PATH)
    try:
        if way_open:
            os.chmod(path, 0o666)
        done = subprocess.run([sys.executable, "-c", STRANGER, f"/proc/self/fd/{at}" if way_open else path],
                              pass_fds=[at], capture_output=True, text=True)
    finally:
        os.close(at)
    return done.stdout.strip() or done.stderr


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)


__all__ = ["BUILD", "DEADLINE", "SOURCE", "DTRAIN", "ClusterCase", "below", "contextlib", "eventually", "main", "parent_of",
           "processes_with", "processes_with_environment", "stop_between_handlers", "stranger_at", "json", "os", "re",
           "signal", "subprocess", "sys", "time", "unittest", "Path"]
