"""Who is let in, who is let out, and who may not keep others out."""

import http.client
import pwd
import resource
import shutil
import socket
import ssl
import struct
import threading

from harness import *


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("dtrain", timeout=DEADLINE)
        self.unix_path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.unix_path)


class Port(ClusterCase):
    """The head's one TLS port."""

    nodes = 2

    def port(self):
        return json.loads((self.root() / "head" / "head.json").read_text())["port"]

    def api(self, method, path, body):
        connection = UnixConnection(str(next(s for s in self.sockets() if s.name == "head.sock")))
        connection.request(method, path, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200, text)
        return json.loads(text)

    def dial(self, node, path):
        """A node's connection, its WebSocket open, nothing said yet."""
        identity = self.root() / "nodes" / node / "identity"
        context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
        context.check_hostname = False
        context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
        stream = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port()), 10))
        stream.settimeout(10)
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: dtrain\r\nUpgrade: websocket\r\n"
                       "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += stream.recv(4096)
        self.assertIn(b" 101 ", answer)
        self.addCleanup(stream.close)
        return stream

    def say(self, stream, message):
        text = json.dumps(message).encode()
        stream.sendall(b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(text)) + bytes(4) + text)

    def assert_hung_up(self, stream):
        said = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while piece := stream.recv(4096):
                said += piece
        self.assertNotIn(b"welcome", said)

    def test_a_node_that_is_revoked_loses_every_connection(self):
        for pid in self.agents("node"):  # its own agent would only try again
            if b"node-1" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)
                self.addCleanup(os.kill, pid, signal.SIGKILL)
        content = [self.dial("node-1", f"/v1/node/{path}") for path in ("content", "checkpoint")]
        other = self.dial("node-0", "/v1/node/content")
        silent = self.dial("node-1", "/v1/node/control")
        answer = self.api("POST", "/v1/nodes/node-1/remove", {"force": True})
        self.assertEqual(answer["state"], "gone")
        for stream in content:
            self.assert_hung_up(stream)
        hello = json.loads((SOURCE / "tests/golden/wire/node/v1/node_hello.json").read_text())
        cluster = json.loads((self.root() / "head" / "head.json").read_text())["cluster"]
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.say(silent, {**hello, "cluster": cluster, "node": "node-1"})
        self.assert_hung_up(silent)
        self.assertEqual([n["node"] for n in self.json("status")["nodes"]], ["node-0"])
        other.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            other.recv(1)  # another's goes on

    def test_strangers_cannot_keep_a_node_out(self):
        """300 connections from another address that say nothing, opened anew as they close, while
        the head may have 160 descriptors."""
        for pid in self.agents("watch") + self.agents("head"):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (160, 160))
        head = self.agents("head")
        os.kill(head[0], signal.SIGKILL)
        eventually(lambda: (p := self.agents("head")) and p != head, "a new head")
        self.wait_ready()
        ending = threading.Event()
        flooded = threading.Event()

        def flood():
            strangers = {}
            while not ending.is_set():
                for each in [s for s in strangers if self.is_closed(s)]:
                    each.close()
                    del strangers[each]
                while len(strangers) < 300 and not ending.is_set():
                    with contextlib.suppress(OSError):
                        strangers[socket.create_connection(
                            ("127.0.0.1", self.port()), 1, ("127.0.0.2", 0))] = True
                flooded.set()
                time.sleep(0.01)  # as fast as a stranger may be, not as this machine can
            for each in strangers:
                each.close()

        stranger = threading.Thread(target=flood)
        stranger.start()
        try:
            self.assertTrue(flooded.wait(DEADLINE))
            nodes = self.agents("node")
            for pid in nodes:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(p := self.agents("node")) == 2 and not set(p) & set(nodes),
                       "new node agents")
            self.wait_ready()
            self.assertEqual(self.run_dtrain("exec", "--all", "--", "true").returncode, 0)
        finally:
            ending.set()
            stranger.join()
        self.assertIn("did not say who they are", (self.root() / "head" / "head.log").read_text())

    def wait_ready(self):
        def ready():
            told = self.run_dtrain("exec", "--all", "--json", "--", "true")
            return told.returncode == 0 and all(f"node-{i}" in told.stdout for i in range(2))
        eventually(ready, "both nodes take commands")

    @staticmethod
    def is_closed(stream):
        stream.setblocking(False)
        try:
            return stream.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


class TakenName(ClusterCase):
    """Another user has made /tmp/dtrain-UID: anybody can."""

    nodes = 0

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("another user is needed, so root")
        super().setUp()
        self.uid = next(uid for uid in range(54321, 60000)
                        if not os.path.lexists(f"/tmp/dtrain-{uid}")
                        and all(user.pw_uid != uid for user in pwd.getpwall()))
        os.mkdir(f"/tmp/dtrain-{self.uid}", 0o700)
        self.addCleanup(os.rmdir, f"/tmp/dtrain-{self.uid}")
        os.chown(self.folder, self.uid, self.uid)
        self.env["HOME"] = str(self.folder)
        if self.run_dtrain("--version").returncode != 0:
            self.skipTest("another user may not run what was built here")

    def run_dtrain(self, *args, **more):
        more = {"user": self.uid, "group": self.uid, "extra_groups": [], **more}
        return super().run_dtrain(*args, **more)

    def test_a_cluster_runs_all_the_same(self):
        self.write_cluster(2)
        self.ok("up", self.folder / "cluster.yaml")
        hidden = {s.parent.parent for s in self.sockets()}
        self.assertEqual((self.root() / "head" / "sockets").readlink().parent, *hidden)
        self.assertEqual(len(hidden), 1, hidden)  # the head's; nodes make theirs with the first job
        self.assertTrue(all(re.fullmatch(rf"/tmp/dtrain-{self.uid}\.\w{{6}}", str(h)) for h in hidden))
        done = self.run_dtrain("submit", "--nnodes", "2", "--", "sh", "-c", "echo rank $RANK is here")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 is here", done.stdout)
        self.ok("down", "-y")
        self.assertEqual(list(Path("/tmp").glob(f"dtrain-{self.uid}.*")), [])


if __name__ == "__main__":
    main()
