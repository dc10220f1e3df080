"""A rank of the jobs that chaos runs. It writes numbered lines, notes on its host's disk when it lived, and
as rank 0 commits a checkpoint with a count each second, from which the next attempt goes on.

Notes, a line each in ~/notes/JOB.RANK, by this machine's one clock; one of which a full disk took a part only
has no end:
    ATTEMPT alive TIME .
    ATTEMPT resumed COUNT TIME .
    ATTEMPT accepted COUNT TIME .      the head has confirmed it
"""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

RANK, ATTEMPT = int(os.environ["RANK"]), os.environ["DTRAIN_ATTEMPT"]
STOP = Path.home() / "stop"
NOTES = Path.home() / "notes" / f"{os.environ['DTRAIN_JOB_ID']}.{RANK}"
LINE_S, CHECKPOINT_S = 0.05, 1.0


def note(*words):
    """Whether it is there: its disk may be full just now."""
    try:
        with open(NOTES, "a") as file:
            file.write(f"\n{' '.join(map(str, (ATTEMPT, *words)))} {time.time():.6f} .")
        return True
    except OSError:
        return False


def resumed():
    checkpoint = os.environ.get("DTRAIN_CHECKPOINT")
    if not checkpoint:
        return 0
    return json.loads(next(Path(checkpoint).glob("shard-*/count.json")).read_text())["count"]


class Checkpoints:
    """One at a time; while its answer is awaited the rank goes on."""

    def __init__(self, count):
        self.count = count
        self.socket = None
        self.begun = time.monotonic()

    def turn(self):
        if self.socket is None:
            if time.monotonic() - self.begun >= CHECKPOINT_S:
                with contextlib.suppress(OSError):
                    self.begin()
            return
        with contextlib.suppress(BlockingIOError):
            answer = self.socket.recv(65536)
            self.socket.close()
            self.socket = None
            if answer and json.loads(answer).get("ok"):
                note("accepted", self.count)
            elif answer:
                print(f"refused: {answer.decode().strip()}", flush=True)

    def begin(self):
        self.begun = time.monotonic()
        folder = Path(os.environ["DTRAIN_STORAGE_PATH"]) / f"new-{ATTEMPT}-{self.count + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "count.json").write_text(json.dumps({"count": self.count + 1}))
        self.count += 1
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["DTRAIN_REPORT_SOCKET"])
        self.socket.sendall(json.dumps({
            "type": "checkpoint", "step": self.count, "path": str(folder), "ack": True,
            "metrics": {"attempt": int(ATTEMPT)}}).encode() + b"\n")
        self.socket.setblocking(False)


def main():
    NOTES.parent.mkdir(exist_ok=True)
    count = resumed()
    checkpoints = Checkpoints(count)
    is_noted = count == 0
    line = 0
    while not STOP.exists():
        line += 1
        print(f"line {line} in {ATTEMPT}", flush=True)
        is_noted = is_noted or note("resumed", count)
        if is_noted:
            note("alive")
        if RANK == 0:
            checkpoints.turn()
        time.sleep(LINE_S)
    print(f"end {line} in {ATTEMPT}", flush=True)


main()
