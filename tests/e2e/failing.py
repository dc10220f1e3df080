"""A cluster whose agents fail where a test arms them, and whose clocks it sets: ../faults."""

import struct

from doctor import DoctorCase
from harness import *

AGENT = BUILD / "tests" / "faults" / "dtrain-agent"


class FailingCase(DoctorCase):
    nodes = 0
    nodes_wanted = 2
    machines = {"DTRAIN_TEST_MACHINES": "apart"}  # the nodes' files are not the head's

    def setUp(self):
        super().setUp()
        self.faults = self.folder / "home" / "faults"
        self.faults.mkdir()
        (self.faults / "points").touch()
        self.env.update(self.machines, DTRAIN_AGENT=str(AGENT))
        self.write_cluster(self.nodes_wanted)

    def arm(self, point, role="-", part="-", hits=1, action="crash"):
        beside = self.faults / "arming"
        beside.write_text(f"{point} {role} {part} {hits} {action}\n")
        beside.rename(self.faults / "armed")

    def disarm(self):
        """Whether it had gone off."""
        try:
            (self.faults / "armed").unlink()
            return False
        except FileNotFoundError:
            return True

    @contextlib.contextmanager
    def reached(self):
        """What is reached inside: (point, role, detail)."""
        log = self.faults / "reached"
        log.touch()
        found = []
        try:
            yield found
            found += [tuple(line.split(" ", 2)) for line in log.read_text().splitlines()]
        finally:
            log.unlink()

    def set_clock(self, place, wall_s=0, monotonic_s=0):
        """The clocks of the processes whose root has this name jump: so far are they ahead."""
        with open(self.faults / f"clock-{place}", "r+b") as clock:
            clock.write(struct.pack("=qq", int(wall_s * 1e9), int(monotonic_s * 1e9)))
