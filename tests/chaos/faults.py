"""What happens to the hosts, and when: a plan from a seed, and how each fault is done and undone."""

import contextlib
import os
import random
import signal
import struct
from dataclasses import dataclass

from hosts import UID, has_netem

QUIET_S = 5  # before the first fault


@dataclass(frozen=True)
class Fault:
    at: float        # seconds from the beginning
    kind: str
    host: int
    other: int       # of what lies between two hosts
    lasts: float     # seconds; 0: it is over at once
    choice: float    # of [0, 1): which of the processes that could be meant

    def __str__(self):
        words = f"{self.kind} h{self.host}"
        if self.kind in BETWEEN:
            words += f" and h{self.other}"
        return words + (f" for {self.lasts:.1f} s" if self.lasts else "")


RANKS = ("chaos/worker.py", "mnist_mlp")


def send(host, number, choice, *texts):
    """A signal to one of the user's processes with one of these texts in its command line, if there is any."""
    found = sorted({pid for text in texts for pid in host.processes(UID, text)})
    with contextlib.suppress(ProcessLookupError):
        if found:
            os.kill(found[int(choice * len(found))], number)


def go_on(host):
    for pid in host.processes(UID, "dtrain"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def off(how):
    def do(lab, fault):
        getattr(lab[fault.host], how)()
    return do


def on_again(lab, fault):
    lab[fault.host].join()
    if not lab[fault.host].is_up():
        lab[fault.host].boot()


def killing(*texts):
    return lambda lab, fault: send(lab[fault.host], signal.SIGKILL, fault.choice, *texts)


def stopping(text):
    return lambda lab, fault: send(lab[fault.host], signal.SIGSTOP, fault.choice, text)


def set_clock(host, seconds):
    """The clocks of the processes of dtrain's there, and of those that are started later, jump: ../faults."""
    for clock in host.path("~/faults").glob("clock-*"):
        with open(clock, "r+b") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))


# kind: (how often, shortest, longest, what does it, what undoes it). A kind whose undoing starts no agents again
# says so in NEEDS_UP.
KINDS = {
    "kill a rank on": (4, 0, 0, killing(*RANKS), None),
    "kill a supervisor on": (3, 0, 0, killing("dtrain-agent supervise"), None),
    "kill the node agent of": (4, 0, 0, killing("dtrain-agent node"), None),
    "kill the watch of": (2, 0, 0, killing("dtrain-agent watch"), None),
    "kill the head on": (4, 0, 0, killing("dtrain-agent head"), None),
    "stop the node agent of": (2, 1, 45, stopping("dtrain-agent node"), lambda lab, fault: go_on(lab[fault.host])),
    "stop a supervisor on": (2, 1, 20, stopping("dtrain-agent supervise"), lambda lab, fault: go_on(lab[fault.host])),
    "stop the head on": (2, 1, 20, stopping("dtrain-agent head"), lambda lab, fault: go_on(lab[fault.host])),
    "cut": (5, 0.5, 45, off("cut"), lambda lab, fault: lab[fault.host].join()),
    "drop all between": (4, 0.5, 30, lambda lab, fault: lab[fault.host].drop(lab[fault.other]),
                         lambda lab, fault: lab[fault.host].undrop()),
    "1 Mbit/s at": (2, 5, 20, lambda lab, fault: lab[fault.host].rate("1mbit"),
                    lambda lab, fault: lab[fault.host].rate(None)),
    "80 ms more to": (2, 5, 20, lambda lab, fault: lab[fault.host].delay(80),
                      lambda lab, fault: lab[fault.host].rate(None)),
    "reboot": (2, 0, 0, off("reboot"), None),
    "crash": (2, 1, 45, off("crash"), on_again),
    "set the clock of": (3, 2, 60, lambda lab, fault: set_clock(lab[fault.host], 7200 * fault.choice - 3600),
                         lambda lab, fault: set_clock(lab[fault.host], 0)),
    "fill the disk of": (2, 2, 20, lambda lab, fault: lab[fault.host].fill(), lambda lab, fault: lab[fault.host].unfill()),
}
BETWEEN = {"drop all between"}
NEEDS_UP = {"kill the watch of", "reboot", "crash"}
OF_THE_HEAD = {"kill the head on", "stop the head on"}
STOPS = {"stop the node agent of", "stop a supervisor on", "stop the head on"}


def plan(seed, seconds, count):
    """Faults for `count` hosts, the first of which is the head: at most two at a time, never two of the same
    host. The same for the same arguments."""
    dice = random.Random(seed)
    kinds = [kind for kind in KINDS if kind != "80 ms more to" or has_netem()]
    faults, busy, at = [], [0.0] * count, QUIET_S
    while at < seconds:
        kind = dice.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
        shortest, longest = KINDS[kind][1:3]
        # Short ones are as likely as long ones.
        lasts = shortest * (longest / shortest) ** dice.random() if longest else 0
        host = 0 if kind in OF_THE_HEAD else dice.randrange(count)
        other = dice.choice([index for index in range(count) if index != host])
        choice = dice.random()
        hosts = {host, other} if kind in BETWEEN else {host}
        two = sum(end > at for end in busy) >= 2
        if not two and all(busy[index] <= at for index in hosts):
            faults.append(Fault(round(at, 2), kind, host, other, round(lasts, 2), choice))
            for index in hosts:
                busy[index] = at + lasts + 2
        at += dice.expovariate(1 / 4)
    return faults


def do(lab, fault):
    return KINDS[fault.kind][3](lab, fault)


def undo(lab, fault):
    if KINDS[fault.kind][4]:
        KINDS[fault.kind][4](lab, fault)
