"""What the tests of clusters over SSH share: hosts for each class of tests, and a dtrain that reaches
them as a person at a laptop would. Without root or namespaces every test is skipped, with the
reason, and counted as skipped."""

import fcntl
import gzip
import math
import pty
import select
import struct
import sys
import termios

from harness import *

sys.path.insert(0, str(SOURCE / "tests" / "support"))

from hosts import Hosts, UID, USER, write_yaml  # noqa: E402
import lab as laboratory  # noqa: E402

old_system = laboratory.old_system
known_hosts = laboratory.known_hosts

# No way in but sshd's and the head's: hosts meet the head, and not each other.
FIREWALL = ("add table inet lab\n"
            "add chain inet lab in { type filter hook input priority 0; }\n"
            "add rule inet lab in tcp flags & (syn | ack) == syn tcp dport != { 22, 28500-28599 } drop\n")

AGENT = BUILD / "agent" / "dtrain-agent"


def first_images(count, folder):
    """A folder with as many of Fashion-MNIST's images for training, and for testing: what `--limit` takes of it."""
    folder.mkdir()
    for file in Path("/usr/share/datasets/fashion-mnist").glob("*.gz"):
        with gzip.open(file) as whole, gzip.open(folder / file.name, "wb", compresslevel=1) as first:
            words = ">4I" if "images" in file.name else ">2I"
            kind, _, *sizes = struct.unpack(words, whole.read(struct.calcsize(words)))
            first.write(struct.pack(words, kind, count, *sizes))
            first.write(whole.read(count * math.prod(sizes)))
    return folder


class HostsCase(ClusterCase):
    """Tests beside `count` hosts of their own, made once for the class: self.lab[0] is the head of
    self.yaml. After each test the hosts are as they were."""

    count = 2
    options = {}  # of all hosts, see Hosts
    only = {}     # of some
    agents_on = ()  # the hosts that have dtrain's agent before each test, as after an `up`: indexes, or "all"
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
        for host in self.lab:
            if self.agents_on == "all" or host.index in self.agents_on:
                host.put_program(AGENT)
        self.env["HOME"] = os.environ["HOME"]  # the laboratory's, which ssh looks at
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

    def assert_only_these_listen(self, deadline=DEADLINE):
        """Nothing but sshd and the head: relays end with what they were for, or a moment later."""
        def others():
            return [name for host in self.lab for port, name in host.listening().items()
                    if port != 22 and not 28500 <= port < 28600]
        eventually(lambda: not others(), "relays end", deadline)

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

    def json(self, verb, *args, **more):
        """The answer's document; of what streams, the last one."""
        return json.loads(self.ok(verb, "--json", *args, **more).strip().split("\n")[-1])

    def states(self):
        """{node: state}; a node has its host's name."""
        return {n["node"]: n["state"] for n in self.json("status")["nodes"]}

    def assert_ready(self, *indexes):
        """These hosts are nodes and ready, and nobody else is."""
        self.assertEqual({node: state for node, state in self.states().items() if state != "gone"},
                         {f"h{index}": "ready" for index in indexes})

    def refused(self, *args, code=1, deadline=DEADLINE, **more):
        """Runs what must fail with `code`, and gives all that was said."""
        done = self.run_dtrain(*args, deadline=deadline, **more)
        self.assertEqual(done.returncode, code, f"dtrain {args}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def terminal(self, *args, size=(24, 80)):
        """Starts dtrain in a terminal of that many rows and columns."""
        return Terminal([str(DTRAIN), *map(str, args)], self.env, self.folder, size)

    def lines(self, index, path):
        """The lines of a file in the user's home of a host; none if it is not there."""
        path = self.lab[index].path(path)
        return path.read_text().splitlines() if path.exists() else []

    def left_on(self, index):
        """What of ours is on a host: processes, ports, files."""
        host = self.lab[index]
        processes = []
        for pid in host.processes(UID):
            with contextlib.suppress(OSError):  # it has just ended
                processes.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        tops = [host.path(top) for top in ("~/.dtrain", f"/tmp/dtrain-{UID}", f"/var/tmp/dtrain-{UID}")]
        files = [str((Path(folder) / name).relative_to(host.root)) for top in tops
                 for folder, _, names in os.walk(top) for name in names]  # it may be going just now
        return [*(p for p in processes if not p.startswith("sshd:")),
                *(f"port {port}" for port in host.listening() if port != 22), *files]

    def assert_clean(self, *indexes):
        """Nothing of ours is left on these hosts. A connection's end may be a moment away, and longer on a
        busy machine."""
        for index in indexes:
            try:
                eventually(lambda: not self.left_on(index), "clean")
            except AssertionError:
                self.assertEqual(self.left_on(index), [], f"left on h{index}")
                raise


class Terminal:
    """A program in a pseudo-terminal, as a person has it before them."""

    def __init__(self, argv, env, folder, size):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(argv[0], argv, {**env, "TERM": "xterm"})
        self.resize(*size)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def read_until(self, text, deadline=30):
        """Reads until `text` is seen, and forgets what was before its end."""
        until = time.monotonic() + deadline
        while text.encode() not in self.seen:
            if time.monotonic() > until:
                raise AssertionError(f"not seen in {deadline} s: {text!r}, but {self.seen!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    raise AssertionError(f"ended without {text!r}: {self.seen!r}") from None
        self.seen = self.seen.split(text.encode(), 1)[1]

    def end(self):
        """Its exit code, once it ends of itself."""
        with contextlib.suppress(OSError):
            while os.read(self.fd, 65536):
                pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def main():
    laboratory.enter()
    program = unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2, exit=False)
    result = program.result
    if result.testsRun and result.testsRun == len(result.skipped):
        sys.exit(77)  # meson: skipped
    sys.exit(0 if result.wasSuccessful() else 1)


__all__ = ["AGENT", "BUILD", "DEADLINE", "FIREWALL", "SOURCE", "DTRAIN", "HostsCase", "Hosts", "UID", "USER", "write_yaml", "contextlib", "eventually",
           "first_images", "known_hosts", "laboratory", "main", "json", "old_system", "os", "re", "signal", "stranger_at", "subprocess", "sys",
           "time", "unittest", "Path"]
