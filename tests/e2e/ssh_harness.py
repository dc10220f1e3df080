"""What the tests of clusters over SSH share: hosts for each class of tests, and a dtrain that reaches
them as a person at a laptop would. Without root or namespaces every test is skipped, with the
reason, and counted as skipped."""

import sys

from harness import *

sys.path.insert(0, str(SOURCE / "tests" / "support"))

from hosts import Hosts, UID, USER  # noqa: E402
import lab as laboratory  # noqa: E402

old_system = laboratory.old_system
known_hosts = laboratory.known_hosts


class HostsCase(ClusterCase):
    """Tests beside `count` hosts of their own, made once for the class: self.lab[0] is the head of
    self.yaml. After each test the hosts are as they were."""

    count = 2
    options = {}  # of all hosts, see Hosts
    only = {}     # of some
    nodes = 0

    @classmethod
    def setUpClass(cls):
        cls.reason = laboratory.available() or cls.unavailable()
        if cls.reason is None:
            cls.lab = Hosts(cls.count, only=cls.only, **cls.options)
            cls.lab.__enter__()
            cls.addClassCleanup(cls.lab.close)

    @classmethod
    def unavailable(cls):
        """Why these tests cannot run here, if they need more than hosts."""
        return None

    def setUp(self):
        if self.reason:
            self.skipTest(self.reason)
        super().setUp()
        self.yaml = self.folder / "cluster.yaml"

    def name(self):
        return "lab"

    def write(self, members=None, **more):
        return self.lab.cluster_yaml(self.yaml, self.name(), members, **more)

    def up(self, *flags, deadline=DEADLINE, **more):
        """Writes the cluster YAML if there is none yet, and brings it up; gives what was said."""
        if not self.yaml.exists():
            self.write()
        return self.ok("up", self.yaml, *flags, deadline=deadline, **more)

    def leave_nothing(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for host in self.lab:
            host.unfill()
            host.undrop()
            host.join()
            if not host.is_up():
                host.boot()
            host.wipe()
        self.lab.trust()

    def node(self, index):
        """The name of the node that host `index` is."""
        return next(n["node"] for n in self.json("status")["nodes"]
                    if self.lab[index].address in n["address"])

    def states(self):
        """{address: state} of the nodes."""
        return {n["address"].split(":")[0]: n["state"] for n in self.json("status")["nodes"]}

    def all_ready(self, *indexes):
        return all(self.states().get(self.lab[i].address) == "ready" for i in indexes)

    def lines(self, index, path):
        """The lines of a file in the user's home of a host; none if it is not there."""
        path = self.lab[index].path(path)
        return path.read_text().splitlines() if path.exists() else []

    def left_on(self, index):
        """What of ours is on a host: processes, ports, files."""
        host = self.lab[index]
        files = [str(p.relative_to(host.root)) for folder in ("~/.dtrain", f"/tmp/dtrain-{UID}", f"/var/tmp/dtrain-{UID}")
                 if (top := host.path(folder)).exists() for p in [top, *top.rglob("*")] if not p.is_dir()]
        return ([Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in host.processes(UID)],
                [port for port in host.listening() if port != 22], files)


def main():
    laboratory.enter()
    program = unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2, exit=False)
    result = program.result
    if result.testsRun and result.testsRun == len(result.skipped):
        sys.exit(77)  # meson: skipped
    sys.exit(0 if result.wasSuccessful() else 1)


__all__ = ["BUILD", "DEADLINE", "SOURCE", "DTRAIN", "HostsCase", "Hosts", "UID", "USER", "contextlib", "eventually",
           "known_hosts", "laboratory", "main", "json", "old_system", "os", "re", "signal", "subprocess", "sys", "time",
           "unittest", "Path"]
